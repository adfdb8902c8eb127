// SPDX-License-Identifier: MIT
// Lines of text made without libc, for messages, statistics and traces. They are written where no libc lock may be taken.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/syscall.h"

namespace fiberthread {

// Text in memory of the caller. Text that does not fit is left out.
class Text {
 public:
  Text(char* memory, size_t size) : begin_(memory), at_(memory), end_(memory + size) {}
  Text& put(char c) {
    if (at_ != end_) *at_++ = c;
    return *this;
  }
  // Inlined, so that the compiler knows the length of a literal: traces are long.
  [[gnu::always_inline]] Text& operator<<(const char* s) { return put(s, __builtin_strlen(s)); }
  [[gnu::always_inline]] Text& put(const char* s, size_t n) {
    if (__builtin_expect(n > room(), 0)) {
      // Byte by byte: GCC 14 and 16 warn of a copy of room() bytes, which might be past the end of a short array.
      while (n--) put(*s++);
      return *this;
    }
    __builtin_memcpy(at_, s, n);
    at_ += n;
    return *this;
  }
  Text& operator<<(uint64_t n) {
    char digits[20];
    size_t i = sizeof digits;
    for (; n >= 100; n /= 100) {
      i -= 2;
      two(digits + i, n % 100);
    }
    if (n >= 10) two(digits + (i -= 2), n);
    else digits[--i] = static_cast<char>('0' + n);
    return put(digits + i, sizeof digits - i);
  }
  // Puts the first `n` bytes of `s`. It copies all N if there is room, because a copy of constant size is fast.
  template <size_t N>
  Text& put_padded(const char (&s)[N], size_t n) {
    if (__builtin_expect(N > room(), 0)) return put(s, n);
    __builtin_memcpy(at_, s, N);
    at_ += n;
    return *this;
  }
  Text& operator<<(const void* p) {
    auto n = reinterpret_cast<uintptr_t>(p);
    char digits[18];
    size_t i = sizeof digits;
    do digits[--i] = "0123456789abcdef"[n & 15];
    while (n >>= 4);
    digits[--i] = 'x';
    digits[--i] = '0';
    return put(digits + i, sizeof digits - i);
  }
  // Puts n / 1000 with three decimals: ns as µs.
  Text& thousandths(uint64_t n) {
    char rest[4] = {'.', static_cast<char>('0' + n / 100 % 10)};
    two(rest + 2, n % 100);
    return (*this << n / 1000).put(rest, sizeof rest);
  }
  // Puts `s` up to the first zero, at most `n` bytes. Bytes that may not stand in a JSON string become "?".
  Text& quoted(const char* s, size_t n) {
    for (; n-- && *s; s++) put(*s >= ' ' && *s < 127 && *s != '"' && *s != '\\' ? *s : '?');
    return *this;
  }
  const char* data() const { return begin_; }
  size_t size() const { return static_cast<size_t>(at_ - begin_); }
  size_t room() const { return static_cast<size_t>(end_ - at_); }
  void clear() { at_ = begin_; }
  void write_to(int fd) const { raw_syscall(SYS_write, fd, arg(begin_), static_cast<long>(size())); }

 private:
  static void two(char* to, uint64_t n) {
    static constexpr char kPairs[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    __builtin_memcpy(to, kPairs + 2 * n, 2);
  }
  char* begin_;
  char* at_;
  char* end_;
};

// One line for `fd`, written by the destructor.
class Line : public Text {
 public:
  explicit Line(int fd = 2) : Text(memory_, sizeof memory_ - 1), fd_(fd) { *this << "fiberthread: "; }
  ~Line() {
    memory_[size()] = '\n';
    raw_syscall(SYS_write, fd_, arg(memory_), static_cast<long>(size() + 1));
  }

 private:
  int fd_;
  char memory_[1024];
};

}  // namespace fiberthread
