// ECHO_DEBUG=WORD,WORD=VALUE,...: of its words, the kernels read `level` and `cublas`.
#ifndef ECHO_KERNELS_DEBUG_H_
#define ECHO_KERNELS_DEBUG_H_
#include <cstdlib>
#include <sstream>
#include <string>

namespace echo {
namespace kernels {

// The value of a word of ECHO_DEBUG, the last one where it is repeated; empty without it.
inline std::string debug_value(const std::string& word) {
  const char* const text = std::getenv("ECHO_DEBUG");
  const char* const space = " \t\r\n\v\f";
  std::istringstream words(text == nullptr ? "" : text);
  std::string found;
  for (std::string each; std::getline(words, each, ',');) {
    const size_t start = each.find_first_not_of(space);
    if (start == std::string::npos || each.compare(start, word.size() + 1, word + "=") != 0) continue;
    found = each.substr(start + word.size() + 1, each.find_last_not_of(space) - start - word.size());
  }
  return found;
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_DEBUG_H_
