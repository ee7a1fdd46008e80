// kernels.ptx as an array of bytes in this library.
#ifdef __APPLE__
#define ECHO_SYMBOL "_echo_kernels_ptx"
#define ECHO_SECTION ".const_data"
#else
#define ECHO_SYMBOL "echo_kernels_ptx"
#define ECHO_SECTION ".section .rodata"
#endif

__asm__(ECHO_SECTION
        "\n"
        ".globl " ECHO_SYMBOL
        "\n"
#ifndef __APPLE__
        ".hidden " ECHO_SYMBOL
        "\n"
#endif
        ".balign 16\n" ECHO_SYMBOL
        ":\n"
        ".incbin \"" ECHO_PTX_FILE
        "\"\n"
        ".byte 0\n"
#ifndef __APPLE__
        ".text\n"
#endif
);
