"""The native libraries with AddressSanitizer and UBSan, or with ThreadSanitizer, under any command.

    python -m tests.sanitize address python -m pytest tests/native
    python -m tests.sanitize thread python -m pytest tests/kernels/test_cpu.py

They are built into ``build/sanitize`` and take the place of the installed ones in the command and in its children. The
first fault ends the process that has it, with a report.
"""
