// SPDX-License-Identifier: MIT
// The table of variables (options.def), and what a value must look like. Used by the library and by the launcher.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/observe/text.h"

namespace fiberthread {

struct Form {
  enum Kind { Flag, Number, Size, Choice, Words, Text } kind;
  uint64_t low = 0, high = 0;    // of a flag: `high` is its default
  const char* values = nullptr;  // divided by | or commas; what a text stands for
};
constexpr Form flag(bool fallback) { return {Form::Flag, 0, fallback, "0|1"}; }
constexpr Form number(uint64_t low, uint64_t high) { return {Form::Number, low, high, "N"}; }
constexpr Form size(uint64_t low, uint64_t high) { return {Form::Size, low, high, "BYTES"}; }  // k, m and g may follow
constexpr Form choice(const char* values) { return {Form::Choice, 0, 0, values}; }
constexpr Form words(const char* values) { return {Form::Words, 0, 0, values}; }  // one or several, with commas
constexpr Form text(const char* what) { return {Form::Text, 0, 0, what}; }

struct OptionRow {
  const char* name;    // of the variable, behind FIBERTHREAD_
  const char* option;  // of the launcher, or null
  char letter;
  Form form;
  const char* fallback;  // the default, in words
  const char* help;
};
extern const OptionRow kOptions[];
extern const size_t kOptionCount;

constexpr char kPrefix[] = "FIBERTHREAD_";

// The row of a variable, by its name without the prefix; null: there is none.
const OptionRow* option_row(const char* name, size_t length);
// The name that is most like this one.
const char* nearest_option(const char* name, size_t length);

// What a value means, as options.def says. False: nothing.
bool understand(const Form& form, const char* value, uint64_t& n);
// "is not a number from 1 to 256", …
void explain(Text& out, const Form& form, const char* value);

// The least number of letters to change, add or leave out that make one word of the other.
size_t distance(const char* a, size_t a_length, const char* b, size_t b_length);

}  // namespace fiberthread
