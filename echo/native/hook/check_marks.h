// What plans may ask for, as echo's Python side knows it: lists of names, given once before MXNet's passes are wrapped.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "layout.h"

namespace echo {

// Names with spaces between them: operators that may be recomputed; those of them all of whose outputs may then be read
// from the clone (of the others, the first one: a clone does not compute what follows it, or has no such output); and the
// exchanges OLD>NEW of gradient operators. What was given first stays.
void allow(const char* again, const char* all_outputs, const char* exchanges);

// Why a node must not be recomputed; empty where it may.
std::string why_not_again(const RawNode& node);

// How many outputs of a node, from the first one on, may be read from its clone.
std::uint32_t outputs_of_clone(const RawNode& node);

bool may_exchange(const std::string& before, const std::string& after);

// A number in decimal digits, from `at` to `end`; false where the text is anything else, or large beyond all use.
bool parse_number(const std::string& text, std::size_t at, std::size_t end, unsigned long* number);

// Numbers with commas between them; none where the text is anything else.
std::vector<unsigned long> parse_numbers(const std::string& text);

}  // namespace echo
