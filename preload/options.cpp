// SPDX-License-Identifier: MIT
#include "preload/settings.h"

#include <cstring>

namespace fiberthread {

const OptionRow kOptions[] = {
#define OPTION(name, option, letter, form, fallback, help, ...) {#name, option, letter, form, fallback, help},
#include "preload/options.def"
#undef OPTION
};
const size_t kOptionCount = sizeof kOptions / sizeof *kOptions;
static_assert(sizeof kOptions / sizeof *kOptions <= kMostOptions);

namespace {

constexpr size_t kLongest = 32;  // letters of a word that distance() compares

// Calls visit(word, length, place) for each word of a list divided by commas or |, until visit returns true. Returns whether it did.
template <class Visit>
bool each_word(const char* list, Visit visit) {
  for (size_t place = 0;; place++) {
    size_t n = strcspn(list, ",|");
    if (visit(list, n, place)) return true;
    if (!list[n]) return false;
    list += n + 1;
  }
}

bool in_list(const char* list, const char* word, size_t length, uint64_t& place) {
  return each_word(list, [&](const char* w, size_t n, size_t i) {
    place = i;
    return n == length && !memcmp(w, word, n);
  });
}

bool read_number(const char* s, const char* end, uint64_t& n) {
  if (s == end) return false;
  for (n = 0; s != end; s++)
    if (*s < '0' || *s > '9' || __builtin_mul_overflow(n, uint64_t{10}, &n) || __builtin_add_overflow(n, uint64_t(*s - '0'), &n))
      return false;
  return true;
}

void put_size(Text& out, uint64_t n) {
  const char* unit = "\0kmgt";
  for (; n && n % 1024 == 0 && unit[1]; n /= 1024) unit++;
  out << n;
  if (*unit) out.put(*unit);
}

}  // namespace

const OptionRow* option_row(const char* name, size_t length) {
  for (const OptionRow& row : kOptions)
    if (strlen(row.name) == length && !memcmp(row.name, name, length)) return &row;
  return nullptr;
}

// Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals", 1966. Of the usual table, two rows are kept.
size_t distance(const char* a, size_t a_length, const char* b, size_t b_length) {
  if (a_length > kLongest) a_length = kLongest;
  if (b_length > kLongest) b_length = kLongest;
  size_t rows[2][kLongest + 1];
  for (size_t j = 0; j <= b_length; j++) rows[0][j] = j;
  for (size_t i = 1; i <= a_length; i++) {
    size_t* above = rows[(i - 1) % 2];
    size_t* row = rows[i % 2];
    row[0] = i;
    for (size_t j = 1; j <= b_length; j++) {
      size_t least = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < least) least = above[j] + 1;
      if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
      row[j] = least;
    }
  }
  return rows[a_length % 2][b_length];
}

const char* nearest_option(const char* name, size_t length) {
  const char* nearest = kOptions[0].name;
  size_t least = SIZE_MAX;
  for (const OptionRow& row : kOptions)
    if (size_t d = distance(name, length, row.name, strlen(row.name)); d < least) {
      least = d;
      nearest = row.name;
    }
  return nearest;
}

bool understand(const Form& form, const char* value, uint64_t& n) {
  const char* end = value + strlen(value);
  n = 0;
  if (!*value && form.values[0] == '0') return true;  // set but empty is off
  switch (form.kind) {
    case Form::Number: return read_number(value, end, n) && n >= form.low && n <= form.high;
    case Form::Size: {
      int shift = 0;
      if (end != value) switch (end[-1] | ' ') {
          case 'k': shift = 10; break;
          case 'm': shift = 20; break;
          case 'g': shift = 30; break;
        }
      if (!read_number(value, end - (shift != 0), n) || n > UINT64_MAX >> shift) return false;
      n <<= shift;
      return n >= form.low && n <= form.high;
    }
    case Form::Flag:
    case Form::Choice: return in_list(form.values, value, strlen(value), n);
    case Form::Words:
      return !each_word(value, [&](const char* w, size_t length, size_t) {
        uint64_t place;
        bool known = in_list(form.values, w, length, place);
        if (known) n |= uint64_t{1} << place;
        return !known;
      });
    case Form::Text: return *value || form.high;
  }
  return false;
}

void explain(Text& out, const Form& form, const char* value) {
  switch (form.kind) {
    case Form::Number: out << " is not a number from " << form.low << " to " << form.high; return;
    case Form::Size:
      out << " is not a size from ";
      put_size(out, form.low);
      out << " to ";
      put_size(out, form.high);
      return;
    case Form::Text: out << " is empty"; return;
    default: break;
  }
  const char* nearest = form.values;
  size_t nearest_length = 0, least = SIZE_MAX;
  size_t count = 0;
  each_word(form.values, [&](const char*, size_t, size_t) { return count++, false; });
  out << (form.kind == Form::Words ? " is not one or several of " : count > 1 ? " is none of " : " is not ");
  each_word(form.values, [&](const char* w, size_t n, size_t place) {
    if (place) out << ", ";
    out.put(w, n);
    each_word(value, [&](const char* given, size_t length, size_t) {
      uint64_t known;
      if (in_list(form.values, given, length, known)) return false;  // of several words, this one is right
      if (size_t d = distance(given, length, w, n); d < least) {
        least = d;
        nearest = w;
        nearest_length = n;
      }
      return false;
    });
    return false;
  });
  if (count > 2) {
    out << " (nearest: ";
    out.put(nearest, nearest_length) << ")";
  }
}

}  // namespace fiberthread
