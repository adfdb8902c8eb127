// Lines of text made without libc, for messages, statistics and traces: they are written where no libc lock may be taken.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/syscall.h"

namespace fiberthread {

// Fills memory of the caller's; what does not fit is left out.
class Text {
 public:
  Text(char* memory, size_t size) : begin_(memory), at_(memory), end_(memory + size) {}
  Text& put(char c) {
    if (at_ != end_) *at_++ = c;
    return *this;
  }
  Text& operator<<(const char* s) {
    while (*s) put(*s++);
    return *this;
  }
  Text& operator<<(uint64_t n) {
    char digits[20];
    int i = 0;
    do digits[i++] = static_cast<char>('0' + n % 10);
    while (n /= 10);
    while (i) put(digits[--i]);
    return *this;
  }
  Text& operator<<(const void* p) {
    auto n = reinterpret_cast<uintptr_t>(p);
    *this << "0x";
    int shift = 60;
    while (shift && n >> shift == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) put("0123456789abcdef"[n >> shift & 15]);
    return *this;
  }
  // n / 1000 with its three decimals: ns as µs.
  Text& thousandths(uint64_t n) {
    *this << n / 1000;
    put('.');
    for (uint64_t digit = 100; digit; digit /= 10) put(static_cast<char>('0' + n / digit % 10));
    return *this;
  }
  // What may stand between the quotes of a JSON string; at most `n` bytes, up to the first zero.
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
  char* begin_;
  char* at_;
  char* end_;
};

// One line for stderr, written when it ends.
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
