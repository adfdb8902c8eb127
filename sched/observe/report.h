// SPDX-License-Identifier: MIT
// The lines that describe a fiber, and where they go. The deadlock report, the report of a stack overflow, and `fiberthread dump` have one
// form, in the process and outside. No libc lock, no memory allocation.
#pragma once
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "sched/fiber.h"
#include "sched/syscall.h"
#include "sched/observe/text.h"

namespace fiberthread {

// Text that is written to a descriptor whenever its memory is full, and at its end.
class Output : Text {
 public:
  // begin() puts `prefix` before a line. If the reader takes nothing for `patience_ms` milliseconds, the rest is lost. Negative: no limit.
  explicit Output(int fd = 2, const char* prefix = "fiberthread: ", int patience_ms = 100)
      : Text(text_, sizeof text_), prefix_(prefix), fd_(fd), patience_ms_(patience_ms) {}
  ~Output() { flush(); }
  Output(const Output&) = delete;

  Output& begin() { return *this << prefix_; }
  Output& operator<<(const char* s) {
    while (*s) put(*s++);
    return *this;
  }
  Output& operator<<(uint64_t n) { return whole(n); }
  Output& operator<<(const void* p) { return whole(p); }
  void put(char c) {
    if (!room()) flush();
    Text::put(c);
  }
  void flush() {
    for (size_t at = 0; at < size() && !broken_;) {
      pollfd p{fd_, POLLOUT, 0};
      timespec patience{patience_ms_ / 1000, patience_ms_ % 1000 * 1'000'000L};
      long r = raw_syscall(SYS_ppoll, arg(&p), 1, patience_ms_ < 0 ? 0 : arg(&patience), 0, 8);
      if (r == -EINTR) continue;
      bool ready = r == 1 && !(p.revents & (POLLERR | POLLNVAL));
      if (ready) r = raw_syscall(SYS_write, fd_, arg(data() + at), static_cast<long>(size() - at));
      if (ready && r == -EINTR) continue;
      if (!ready || r <= 0) broken_ = true;
      else at += static_cast<size_t>(r);
    }
    clear();
  }
  bool broken() const { return broken_; }

 private:
  template <class T>
  Output& whole(T number) {
    if (room() < 24) flush();
    Text::operator<<(number);
    return *this;
  }
  const char* prefix_;
  int fd_, patience_ms_;
  bool broken_ = false;
  char text_[2048];  // less than PIPE_BUF, so a pipe that is ready takes all of it at once
};

struct Who {
  uint64_t id = 0;
  const char* name = "";  // up to 16 bytes, zero-terminated if shorter
  bool is_main = false;
};

struct WaitView {
  const char* what = "";
  const void* object = nullptr;
  enum { NoOwner, Itself, Other, Ended } owned = NoOwner;
  bool for_its_end = false;  // the object waited for is the owner itself
  Who owner;
};

struct FiberView {
  Who who;
  const void* start = nullptr;
  State state = State::Created;
  bool bound = false;
  uint64_t tid = 0;  // the kernel thread that runs it, if known
  bool preempted = false;
  WaitView wait;  // if it is parked
  uint64_t waited_ns = 0;
  bool at_least = false;  // it may have waited longer
  const char* file = "";
  uint64_t line = 0;
};

inline void put_name(Output& out, const Who& who) {
  out << "fiber " << who.id;
  if (who.is_main) out << " (main)";
  if (!*who.name) return;
  out << " '";
  for (size_t i = 0; i < 16 && who.name[i]; i++) out.put(who.name[i] >= ' ' && who.name[i] < 127 ? who.name[i] : '?');
  out << "'";
}

inline void put_wait(Output& out, const WaitView& w) {
  if (w.for_its_end) {  // a wait for a fiber is a wait for its end
    out << " waits for the end of ";
  } else {
    out << " waits for " << w.what;
    if (w.object) out << " " << w.object;
    if (w.owned != w.NoOwner) out << " held by ";
  }
  if (w.owned == w.Itself) out << "itself";
  else if (w.owned != w.NoOwner) put_name(out, w.owner);
  if (w.owned == w.Ended) out << ", which has ended";
}

inline void put_seconds(Output& out, uint64_t ns) {
  uint64_t ms = ns / 1'000'000;
  out << ms / 1000 << ".";
  for (uint64_t digit = 100; digit; digit /= 10) out.put(static_cast<char>('0' + ms / digit % 10));
  out << " s";
}

inline void put_fiber(Output& out, const FiberView& f) {
  put_name(out.begin(), f.who);
  if (f.start) out << ", started at " << f.start << ",";
  switch (f.state) {
    case State::Created: out << " is being made"; break;
    case State::Queued: out << (f.preempted ? " was preempted and waits for a worker" : " waits for a worker"); break;
    case State::Running:
      out << " runs";
      if (f.tid) out << " on thread " << f.tid;
      break;
    case State::Done: out << " has ended"; break;
    case State::Parked:
      put_wait(out, f.wait);
      out << (f.at_least ? ", for at least " : ", for ");
      put_seconds(out, f.waited_ns);
      out << " (" << f.file << ":" << f.line << ")";
      break;
  }
  if (f.bound) out << ", bound";
  out << "\n";
}

}  // namespace fiberthread
