#include "build_id.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

namespace echo {
namespace {

const char kWheels[] = "GCC: (GNU) 4.8.";
const std::size_t kMost = 1 << 16;  // bytes that such a section has at most

template <typename T>
bool read_at(std::ifstream* file, std::uint64_t offset, T* to, std::size_t bytes) {
  return file->seekg(static_cast<std::streamoff>(offset)) &&
         file->read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(bytes));
}

// The content of a section; empty where there is none.
std::string section(std::ifstream* file, const char* name) {
  Elf64_Ehdr head;
  if (!read_at(file, 0, &head, sizeof head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return "";
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shstrndx >= head.e_shnum)
    return "";
  std::vector<Elf64_Shdr> sections(head.e_shnum);
  if (!read_at(file, head.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr))) return "";
  const Elf64_Shdr& strings = sections[head.e_shstrndx];
  std::string names(std::min<std::size_t>(strings.sh_size, kMost), '\0');
  if (!read_at(file, strings.sh_offset, &names[0], names.size())) return "";
  for (const Elf64_Shdr& each : sections) {
    if (each.sh_name >= names.size() || std::strcmp(names.c_str() + each.sh_name, name) != 0) continue;
    std::string content(std::min<std::size_t>(each.sh_size, kMost), '\0');
    return read_at(file, each.sh_offset, &content[0], content.size()) ? content : "";
  }
  return "";
}

}  // namespace

std::string why_not_built_as_the_wheels(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string stamps = section(&file, ".comment");
  bool found = false;
  for (std::size_t at = 0; at < stamps.size(); at += std::strlen(stamps.c_str() + at) + 1) {
    const char* stamp = stamps.c_str() + at;
    if (*stamp == '\0') continue;
    if (std::strncmp(stamp, kWheels, sizeof kWheels - 1) != 0)
      return std::string("it was built by ") + stamp + ", the wheels by GCC 4.8";
    found = true;
  }
  return found ? "" : "it does not say which compiler built it, expected GCC 4.8 as of the wheels";
}

}  // namespace echo
