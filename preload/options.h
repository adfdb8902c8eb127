// SPDX-License-Identifier: MIT
// The table of variables (options.def), and the form of each one's value. The library and the launcher use it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/observe/text.h"

namespace fiberthread {

struct Form {
  enum Kind { Flag, Number, Size, Choice, Words, Text } kind;
  uint64_t low = 0, high = 0;    // the limits; for a flag, `high` is its default
  const char* values = nullptr;  // the valid words, divided by | or commas; for numbers, sizes and texts, a word for --help
};
constexpr Form flag(bool fallback) { return {Form::Flag, 0, fallback, "0|1"}; }
constexpr Form number(uint64_t low, uint64_t high) { return {Form::Number, low, high, "N"}; }
constexpr Form size(uint64_t low, uint64_t high) { return {Form::Size, low, high, "BYTES"}; }  // k, m and g may follow
constexpr Form choice(const char* values) { return {Form::Choice, 0, 0, values}; }
constexpr Form words(const char* values) { return {Form::Words, 0, 0, values}; }  // one or several, with commas
constexpr Form text(const char* what) { return {Form::Text, 0, 0, what}; }
constexpr Form text_or_empty(const char* what) { return {Form::Text, 0, 1, what}; }

struct OptionRow {
  const char* name;    // the variable's, after FIBERTHREAD_
  const char* option;  // the launcher's, or null
  char letter;
  Form form;
  const char* fallback;  // the default, in words
  const char* help;
};
extern const OptionRow kOptions[];
extern const size_t kOptionCount;

constexpr char kPrefix[] = "FIBERTHREAD_";

// Returns the row of a variable, by its name without the prefix, or null if there is no such variable.
const OptionRow* option_row(const char* name, size_t length);
// Returns the variable's name that is most like this one.
const char* nearest_option(const char* name, size_t length);

// Sets `n` to the value as a number, as options.def describes it. Returns false if the value is not valid.
bool understand(const Form& form, const char* value, uint64_t& n);
// Writes why the value is not valid: " is not a number from 1 to 1024" and the like.
void explain(Text& out, const Form& form, const char* value);

// Returns the least number of letters to change, add or leave out that turn one word into the other.
size_t distance(const char* a, size_t a_length, const char* b, size_t b_length);

}  // namespace fiberthread
