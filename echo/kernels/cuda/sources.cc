#include "sources.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

#ifdef __APPLE__
#define ECHO_SYMBOL(name) "_echo_source_" #name
#define ECHO_BEGIN(name) ".const_data\n.globl " ECHO_SYMBOL(name) "\n"
#define ECHO_END ".byte 0\n"
#else
#define ECHO_SYMBOL(name) "echo_source_" #name
#define ECHO_BEGIN(name) ".section .rodata\n.globl " ECHO_SYMBOL(name) "\n.hidden " ECHO_SYMBOL(name) "\n"
#define ECHO_END ".byte 0\n.text\n"
#endif

// The assembler puts each file into this library, with a zero at its end.
#define ECHO_SOURCES(X)                       \
  X(arguments, "arguments.h", "")             \
  X(attention, "attention.cuh", "")           \
  X(attention_grad, "attention_grad.cuh", "") \
  X(cells, "cells.cuh", "")                   \
  X(cross_entropy, "cross_entropy.cuh", "")   \
  X(device, "device.cuh", "")                 \
  X(formulas, "formulas.h", "../")            \
  X(gemm, "gemm.cuh", "")                     \
  X(gru, "gru.cuh", "")                       \
  X(lstm, "lstm.cuh", "")                     \
  X(norm_cell, "norm_cell.cuh", "")           \
  X(pointwise, "pointwise.cuh", "")           \
  X(rnn, "rnn.cuh", "")                       \
  X(rows, "rows.cuh", "")                     \
  X(softmax_output, "softmax_output.cuh", "") \
  X(steps, "steps.cuh", "")                   \
  X(tile, "tile.cuh", "")

#define ECHO_EMBED(name, file, folder)                                                                          \
  __asm__(ECHO_BEGIN(name) ECHO_SYMBOL(name) ":\n.incbin \"" ECHO_CUDA_FOLDER "/" folder file "\"\n" ECHO_END); \
  extern "C" const char echo_source_##name[];
ECHO_SOURCES(ECHO_EMBED)

namespace echo_cuda {
namespace {

struct Family {
  std::string name;
  std::vector<std::string_view> words;  // between "#if ECHO_IN(name)" and the end of the file
};

bool in_word(char letter) { return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_'; }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> found;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && in_word(text[end])) ++end;
    if (end > at) found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

const std::vector<Family>& read_families() {
  static const std::vector<Family>& all = *[] {
    auto* made = new std::vector<Family>;
    for (const Source& source : sources()) {
      const std::string_view file(source.name), text(source.text);
      const std::string name(file.substr(0, file.find('.')));
      const std::size_t start = text.find("#if ECHO_IN(" + name + ")");
      if (start != std::string_view::npos) made->push_back({name, words_of(text.substr(start))});
    }
    return made;
  }();
  return all;
}

}  // namespace

const std::vector<Source>& sources() {
#define ECHO_ROW(name, file, folder) {file, echo_source_##name},
  static const std::vector<Source>& all = *new std::vector<Source>{ECHO_SOURCES(ECHO_ROW)};
  return all;
}

const std::vector<std::string>& families() {
  static const std::vector<std::string>& names = *[] {
    auto* made = new std::vector<std::string>;
    for (const Family& family : read_families()) made->push_back(family.name);
    return made;
  }();
  return names;
}

const std::string& family_of(const std::string& kernel) {
  static const std::string none;
  const std::string* found = &none;
  std::size_t longest = 1;  // a word of one letter is an argument of a macro
  for (const Family& family : read_families()) {
    for (const std::string_view word : family.words) {
      if (word.size() <= longest || kernel.compare(0, word.size(), word) != 0) continue;
      longest = word.size();
      found = &family.name;
    }
  }
  return *found;
}

// FNV-1a, 64 bits: it tells versions of the sources apart, and protects from nothing.
const std::string& sources_digest() {
  static const std::string& digest = *[] {
    std::uint64_t sum = 0xcbf29ce484222325u;
    for (const Source& source : sources()) {
      for (const char* text : {source.name, source.text}) {
        for (std::size_t i = 0, end = std::strlen(text); i <= end; ++i) {
          sum = (sum ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
        }
      }
    }
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum));
    return new std::string(digits);
  }();
  return digest;
}

}  // namespace echo_cuda
