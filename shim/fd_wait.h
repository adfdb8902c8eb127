// SPDX-License-Identifier: MIT
// Calls that wait for descriptors: try without blocking, then wait in the poller (sched/poller.h), and say what the kernel
// would have said. Results are the kernel's own: a negative errno value is an error.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "sched/poller.h"
#include "shim/cancel.h"
#include "shim/result.h"

namespace fiberthread {

// What a try answers when it cannot know more: the plain call shall be made, outside Busy.
constexpr long kInKernel = -100'000;

// What is known of a descriptor: PollNotes::kind. Only hints: a wrong one, as after a close that we did not see, costs a call more
// or a wait in the kernel.
enum Kind : uint32_t {
  kUnknown = 0,
  kNowait,   // RWF_NOWAIT does
  kMessage,  // a socket: MSG_DONTWAIT does
  kAsk,      // only poll() tells
  kPlain,    // never waits, or not for what poll() knows
  kFile,     // of a disk
  kTerminal,
  kKindMask = 7,
  kSocket = 8,
  kStream = 16,       // a socket of that type
  kNonblocking = 32,  // as the program set it
  kDirect = 64,       // O_DIRECT
};

enum WaitFlags : unsigned {
  kCancels = 1,     // a cancellation point
  kRestarts = 2,    // SA_RESTART counts: nothing has been transferred yet
  kAsks = 4,        // the try asks poll() itself
  kKeepsError = 8,  // a socket's error is the try's to find
};

// The notes of `fd`, if the caller shall wait for it here. Null: by the plain call.
inline PollNotes* notes_to_wait(int fd) {
  if (!may_park()) return nullptr;
  PollNotes* notes = poll_notes(fd);
  return notes && !(notes->kind.load(std::memory_order_relaxed) & kNonblocking) ? notes : nullptr;
}
// A reading call that the program made non-blocking. What it finds empty, the program will often poll() next.
template <class Call>
ssize_t read_at_once(int fd, Call call) {
  if (!may_park()) return call();
  PollSeen seen = poll_seen(fd);
  ssize_t r = call();
  if (r < 0 && errno == EAGAIN && may_park()) poll_was_empty(fd, seen);
  return r;
}

// kUnknown no more, unless it is no descriptor.
uint32_t kind_of(int fd, PollNotes* notes);
// By poll().
bool is_ready(int fd, uint32_t events);
// There is an error that the next call would take. Looked at before a call goes on with a part: what has been transferred is its
// result, and the error is the next call's.
bool has_error(int fd);
// A socket's call without MSG_NOSIGNAL, which was tried with it: raises SIGPIPE where the kernel would have.
long raise_if_broken(const PollNotes* notes, long result);
// When SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT or O_NONBLOCK was set, somewhere.
void socket_options_changed();
// Somebody has set SO_RCVLOWAT, as nobody ever does. Set before socket_options_changed().
extern std::atomic<bool> low_water_used;
// Of a stream, what a receiving call for n bytes waits for besides the first one. 0: nothing.
size_t low_water(int fd, PollNotes* notes, size_t n);

struct Try {
  long (*call)(void*);
  void* data;
};
// `until`, if not null, is the deadline of all parts of a call: the first one that waits sets it. 0: not yet.
long wait_and_try(int fd, PollNotes* notes, uint32_t events, PollSeen seen, unsigned how, Try again, uint64_t* until);

// attempt(): -EAGAIN if it would wait, kInKernel, or the result. plain(): libc's call.
template <class Attempt, class Plain>
long wait_for(int fd, PollNotes* notes, uint32_t events, unsigned how, Attempt attempt, Plain plain, uint64_t* until = nullptr) {
  if (how & kCancels) test_cancel();
  PollSeen seen = poll_seen(fd);
  long r = attempt();
  if (__builtin_expect(r == -EAGAIN, 0))
    r = wait_and_try(fd, notes, events, seen, how, {[](void* p) { return (*static_cast<Attempt*>(p))(); }, &attempt}, until);
  if (__builtin_expect(r == kInKernel || r == -ENOSYS, 0)) {  // a filter may know the program's call, and not the one that was tried
    r = kernel_result(plain());
    poll_pass(fd, events);
  }
  return r;
}

// A receiving call that ends when it has `want` bytes, 0: any. attempt(done) receives behind the first `done` of them. ends_here()
// is asked after each part.
enum class Taking { Takes, Peeks };
template <class Attempt, class Plain, class Ends>
long receive(int fd, PollNotes* notes, size_t want, Taking taking, Attempt attempt, Plain plain, Ends ends_here) {
  constexpr unsigned kHow = kCancels | kRestarts;
  if (__builtin_expect(!want, 1))
    return wait_for(fd, notes, EPOLLIN, kHow, [&] { return attempt(size_t{0}); }, [&] { return plain(size_t{0}); });
  if (taking == Taking::Peeks) {
    long seen = 0;
    auto look = [&]() -> long {
      long r = attempt(size_t{0});
      if (r > seen) seen = r;
      // Will there be more?
      return r <= 0 || static_cast<size_t>(r) >= want || is_ready(fd, EPOLLRDHUP) ? r : -EAGAIN;
    };
    long r = wait_for(fd, notes, EPOLLIN, kHow | kAsks, look, [&] { return plain(size_t{0}); });
    return r < 0 && seen ? seen : r;
  }
  uint64_t until = 0;
  for (size_t done = 0;;) {
    auto part = [&]() -> long { return done && has_error(fd) ? 0 : attempt(done); };
    long r = wait_for(fd, notes, EPOLLIN, done ? unsigned{kCancels} : kHow, part, [&] { return plain(done); }, &until);
    if (r <= 0) return done ? static_cast<long>(done) : r;
    done += static_cast<size_t>(r);
    if (done >= want || ends_here()) return static_cast<long>(done);
  }
}

template <class Attempt, class Plain>
long receive(int fd, PollNotes* notes, size_t want, Taking taking, Attempt attempt, Plain plain) {
  return receive(fd, notes, want, taking, attempt, plain, [] { return false; });
}

// A sending call: it ends when all has gone; only streams and pipes ever take a part at once. attempt(done) sends behind the first
// `done` bytes; with MSG_NOSIGNAL where `quiet`, and SIGPIPE is raised here if the call `raises` it. size() is asked once some has gone.
template <class Attempt, class Plain, class Size>
long send_parts(int fd, PollNotes* notes, size_t done, bool quiet, bool raises, Attempt attempt, Plain plain, Size size) {
  uint64_t until = 0;
  for (;;) {
    bool tried = false;
    long r = wait_for(
        fd, notes, EPOLLOUT, done ? kCancels : kCancels | kRestarts,
        [&]() -> long {
          if (quiet && done && has_error(fd)) return 0;
          tried = quiet;
          return attempt(done);
        },
        [&] {
          tried = false;
          return plain(done);
        },
        &until);
    if (r <= 0) return done ? static_cast<long>(done) : tried && raises ? raise_if_broken(notes, r) : r;
    done += static_cast<size_t>(r);
    if (done >= size()) return static_cast<long>(done);
  }
}

// So many pieces at once when the rest of a transfer is moved.
constexpr size_t kPieces = 16;
// What is left of `all` after the first `done` bytes, or the beginning of that. Returns how many pieces.
size_t remaining(const iovec* all, size_t n, size_t done, iovec* rest);
size_t total_length(const iovec* all, size_t n);

}  // namespace fiberthread
