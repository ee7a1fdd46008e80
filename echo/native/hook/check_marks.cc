#include "check_marks.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <unordered_set>

#include "batch_norm.h"
#include "mxnet_api.h"

namespace echo {

namespace {

using Names = std::unordered_set<std::string>;

struct Allowed {
  Names again, all_outputs, exchanges;
};

Allowed& allowed() {
  static Allowed lists;
  return lists;
}

void read_once(const char* text, Names* names) {
  if (!names->empty()) return;  // another thread may be reading them
  std::istringstream words(text);
  for (std::string word; words >> word;) names->insert(word);
}

// The output of a Dropout is a product of its input and the mask that its forward pass left: where there is no mask, or
// one of another shape, it is not.
bool has_mask(const RawNode& node) {
  const std::string* axes = map_find<std::string>(node.attrs.dict, "axes");
  if (axes && *axes != "()" && *axes != "[]" && *axes != "None") return false;
  const std::string* p = map_find<std::string>(node.attrs.dict, "p");
  return !p || std::strtod(p->c_str(), nullptr) > 0;
}

}  // namespace

void allow(const char* again, const char* all_outputs, const char* exchanges) {
  read_once(again, &allowed().again);
  read_once(all_outputs, &allowed().all_outputs);
  read_once(exchanges, &allowed().exchanges);
}

std::string why_not_again(const RawNode& node) {
  const std::string& op = node.attrs.op->name;
  if (op == "Dropout" && !has_mask(node)) return "has no mask of its input's shape";
  if (op != "Dropout" && is_random(node.attrs)) return "draws random numbers";
  const bool has_order = map_find<std::string>(node.attrs.dict, kSignsAttribute) != nullptr;
  if (op != "BatchNorm" && !has_order && mutates(node.attrs)) return "writes into its inputs";
  return allowed().again.count(op) ? "" : "is not known to be safe to run twice";
}

std::uint32_t outputs_of_clone(const RawNode& node) {
  const std::uint32_t outputs = api().num_outputs(&node);
  return allowed().all_outputs.count(node.attrs.op->name) ? outputs : std::min<std::uint32_t>(outputs, 1);
}

bool may_exchange(const std::string& before, const std::string& after) {
  return allowed().exchanges.count(before + ">" + after) > 0;
}

bool parse_number(const std::string& text, std::size_t at, std::size_t end, unsigned long* number) {
  constexpr std::size_t most_digits = 9;
  if (at >= end || end - at > most_digits) return false;
  *number = 0;
  for (; at < end; ++at) {
    if (text[at] < '0' || text[at] > '9') return false;
    *number = 10 * *number + static_cast<unsigned long>(text[at] - '0');
  }
  return true;
}

std::vector<unsigned long> parse_numbers(const std::string& text) {
  std::vector<unsigned long> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t stop = std::min(text.find(',', at), text.size());
    unsigned long number = 0;
    if (!parse_number(text, at, stop, &number)) return {};
    numbers.push_back(number);
    at = stop + 1;
  }
  return numbers;
}

}  // namespace echo
