#include "inplace.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mxnet_api.h"

namespace echo {
namespace {

static const char kNoInplaceAttribute[] = "__echo_apart__";

using Pairs = std::vector<std::pair<int, int>>;
using PairsInvoker = Pairs (*)(const void* functor, const RawAttrs& attrs);
using FlagsInvoker = std::vector<bool> (*)(const void* functor, const RawAttrs& attrs);

// MXNet's own invokers, by the number of the operator.
std::vector<PairsInvoker> g_options;
std::vector<FlagsInvoker> g_identities;

[[noreturn]] void refuse(const RawAttrs& attrs, const std::string& text) {
  throw std::runtime_error("echo: node '" + attrs.name +
                           "': expected OPERATOR:INPUT>OUTPUT,... with ; between operators in " + kNoInplaceAttribute +
                           ", got '" + text + "'");
}

int parse_number(const RawAttrs& attrs, const std::string& text, std::size_t* at) {
  const std::size_t first = *at;
  int number = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9' && *at - first < 6)
    number = 10 * number + (text[(*at)++] - '0');
  if (*at == first) refuse(attrs, text);
  return number;
}

// The pairs that the attribute keeps apart on an operator of this node's kind.
Pairs parse_no_inplace(const RawAttrs& attrs, const std::string& text) {
  Pairs no_inplace;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t colon = text.find(':', at);
    if (colon == std::string::npos) refuse(attrs, text);
    const bool own = text.compare(at, colon - at, attrs.op->name) == 0;
    for (at = colon; at < text.size() && text[at] != ';';) {
      ++at;  // the colon or a comma
      const int input = parse_number(attrs, text, &at);
      if (at >= text.size() || text[at] != '>') refuse(attrs, text);
      ++at;
      const int output = parse_number(attrs, text, &at);
      if (at < text.size() && text[at] != ',' && text[at] != ';') refuse(attrs, text);
      if (own) no_inplace.emplace_back(input, output);
    }
    if (at == text.size()) break;
    ++at;
    if (at == text.size()) refuse(attrs, text);
  }
  return no_inplace;
}

thread_local bool t_all = false;

Pairs no_inplace_of(const RawAttrs& attrs) {
  if (t_all) return {};
  const std::string* text = map_find<std::string>(attrs.dict, kNoInplaceAttribute);
  return text ? parse_no_inplace(attrs, *text) : Pairs();
}

bool holds(const Pairs& pairs, const std::pair<int, int>& pair) {
  return std::find(pairs.begin(), pairs.end(), pair) != pairs.end();
}

Pairs inplace_option(const void* functor, const RawAttrs& attrs) {
  Pairs pairs = g_options[attrs.op->index](functor, attrs);
  const Pairs no_inplace = no_inplace_of(attrs);
  if (!no_inplace.empty())
    pairs.erase(std::remove_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return holds(no_inplace, pair); }),
                pairs.end());
  return pairs;
}

// One flag for each pair of the operator's own option, less those that are left out there.
std::vector<bool> inplace_identity(const void* functor, const RawAttrs& attrs) {
  std::vector<bool> flags = g_identities[attrs.op->index](functor, attrs);
  const Pairs no_inplace = no_inplace_of(attrs);
  const RawFunction* option = no_inplace.empty() ? nullptr : function_of("FInplaceOption", attrs.op->index);
  if (!option) return flags;
  const Pairs pairs = g_options[attrs.op->index](option->functor, attrs);
  std::vector<bool> kept;
  for (std::size_t i = 0; i < pairs.size() && i < flags.size(); ++i)
    if (!holds(no_inplace, pairs[i])) kept.push_back(flags[i]);
  return kept;
}

template <typename Invoker>
void wrap_all(const char* attribute, Invoker replacement, std::vector<Invoker>* originals) {
  const RawAny* any = api().op_attr_map(attribute);
  if (!any || !any->type) return;
  const std::size_t count = static_cast<const RawOpMap<InplaceOption>*>(any->heap_value)->data.size();
  originals->assign(count, nullptr);
  for (std::size_t op = 0; op < count; ++op) wrap_function(function_of(attribute, op), replacement, &(*originals)[op]);
}

template <typename Invoker>
void unwrap_all(const char* attribute, Invoker replacement, const std::vector<Invoker>& originals) {
  for (std::size_t op = 0; op < originals.size(); ++op)
    unwrap_function(function_of(attribute, op), replacement, originals[op]);
}

}  // namespace

ScopedInplace::ScopedInplace(bool all) : before_(t_all) { t_all = all; }
ScopedInplace::~ScopedInplace() { t_all = before_; }

void wrap_inplace() {
  wrap_all("FInplaceIdentity", inplace_identity, &g_identities);
  wrap_all("FInplaceOption", inplace_option, &g_options);
}

void unwrap_inplace() {
  unwrap_all("FInplaceOption", inplace_option, g_options);
  unwrap_all("FInplaceIdentity", inplace_identity, g_identities);
}

}  // namespace echo
