// MXNet asks the environment variable MXNET_USE_FUSION in the middle of a bind. Inside of a `_FusedOp`, a clone may be
// computed in another way than its original, and no output can be recomputed alone. To change the variable itself would
// change the binds of other threads; so the one word by which libmxnet.so finds `getenv` is exchanged, and the answer is
// another one only to threads that said so.
#include "pointwise.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace echo {
namespace {

using Getenv = char* (*)(const char*);

thread_local bool t_unfused = false;
Getenv* g_slot = nullptr;
Getenv g_original = nullptr;

char* answer(const char* name) {
  static char off[] = "0";
  return t_unfused && std::strcmp(name, "MXNET_USE_FUSION") == 0 ? off : std::getenv(name);
}

// The word of a library through which it calls `getenv`; nullptr where it has none that is known.
Getenv* slot_of_getenv(void* lib) {
  link_map* map = nullptr;
  if (dlinfo(lib, RTLD_DI_LINKMAP, static_cast<void*>(&map)) || !map) return nullptr;
  const ElfW(Rela)* relocations = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  std::size_t bytes = 0;
  bool has_addends = false;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_JMPREL) relocations = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_PLTREL) has_addends = entry->d_un.d_val == DT_RELA;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  }
  if (!relocations || !symbols || !names || !has_addends) return nullptr;
  for (std::size_t i = 0; i < bytes / sizeof *relocations; ++i) {
    const auto& one = relocations[i];
    if (ELF64_R_TYPE(one.r_info) != R_X86_64_JUMP_SLOT) continue;
    if (std::strcmp(names + symbols[ELF64_R_SYM(one.r_info)].st_name, "getenv") == 0)
      return reinterpret_cast<Getenv*>(map->l_addr + one.r_offset);
  }
  return nullptr;
}

// Whether the word can be written now: a library that was linked with all its functions known has it read-only.
bool make_writable(void* slot) {
  const std::uintptr_t page = sysconf(_SC_PAGESIZE);
  auto* start = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(slot) / page * page);
  return mprotect(start, page, PROT_READ | PROT_WRITE) == 0;
}

}  // namespace

void wrap_getenv(void* lib) {
  Getenv* slot = slot_of_getenv(lib);
  if (!slot || !make_writable(static_cast<void*>(slot))) return;
  g_original = __atomic_load_n(slot, __ATOMIC_SEQ_CST);
  __atomic_store_n(slot, &answer, __ATOMIC_SEQ_CST);
  g_slot = slot;
}

void unwrap_getenv() {
  if (g_slot && __atomic_load_n(g_slot, __ATOMIC_SEQ_CST) == &answer)
    __atomic_store_n(g_slot, g_original, __ATOMIC_SEQ_CST);
  g_slot = nullptr;
}

}  // namespace echo

// From now on the calling thread's binds and calls of a CachedOp leave pointwise operators as they are, or do not. Gives
// what held before, or -1, with nothing changed, where MXNet cannot be told.
ECHO_EXPORT int echo_keep_unfused(int on) {
  if (echo::g_slot == nullptr) return -1;
  const int before = echo::t_unfused;
  echo::t_unfused = on != 0;
  return before;
}
