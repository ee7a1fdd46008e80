#include "texts.h"

#include <string_view>
#include <unordered_map>

#include "driver.h"

// kernels.ptx, which the assembler put into this library; it ends in a zero.
extern "C" const char echo_kernels_ptx[];

namespace echo_cuda {
namespace {

struct Texts {
  std::string_view head;  // version, target, and what all kernels declare
  std::unordered_map<std::string, std::string_view> kernels;
};

// Kernels stand one behind the other, and declare what they alone have inside of them.
Texts split(std::string_view all) {
  constexpr std::string_view entry = "\n.visible .entry ";
  std::size_t at = all.find(entry);
  Texts made = {all.substr(0, at), {}};
  while (at != std::string_view::npos) {
    const std::size_t end = all.find(entry, at + 1), name = at + entry.size();
    made.kernels.emplace(all.substr(name, all.find('(', name) - name), all.substr(at, end - at));
    at = end;
  }
  return made;
}

}  // namespace

std::string text_of(const std::string& kernel) {
  static const Texts& texts = *new Texts(split(echo_kernels_ptx));
  const auto found = texts.kernels.find(kernel);
  if (found == texts.kernels.end()) throw DeviceError(kernel + " is not in kernels.ptx, which `make ptx` makes");
  std::string text(texts.head);
  return text.append(found->second).append("\n");
}

}  // namespace echo_cuda
