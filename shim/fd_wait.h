// SPDX-License-Identifier: MIT
// Calls that wait for descriptors. They try without blocking, then wait in the poller (sched/poller.h), and return what the kernel would
// have returned. Results are the kernel's own: a negative errno value is an error.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "sched/poller.h"
#include "shim/cancel.h"
#include "shim/result.h"
#include "shim/signal.h"

namespace fiberthread {

// Returned by an attempt that cannot find out more. The caller then makes the plain call, outside Busy. No errno value.
constexpr long kInKernel = -100'000;

// What is known of a descriptor (PollNotes::kind). These are hints only. A wrong one, as after a close that we did not see, costs one more
// call or a wait in the kernel.
enum Kind : uint32_t {
  kUnknown = 0,
  kNowait,   // RWF_NOWAIT works
  kMessage,  // a socket: MSG_DONTWAIT works
  kAsk,      // only poll() tells
  kPlain,    // never waits, or not for events that poll() reports
  kFile,     // on a disk
  kTerminal,
  kKindMask = 7,
  kSocket = 8,
  kStream = 16,       // a socket of type SOCK_STREAM
  kNonblocking = 32,  // the program has set O_NONBLOCK
  kDirect = 64,       // O_DIRECT, once is_direct() has asked
  kDirectKnown = 128,
  kNoFile = 256,  // an eventfd or the like, which no write waits for as long as a counter of 64 bits has room
};

enum WaitFlags : unsigned {
  kCancels = 1,     // a cancellation point
  kRestarts = 2,    // SA_RESTART counts: nothing has been transferred yet
  kAsks = 4,        // the attempt itself asks poll()
  kKeepsError = 8,  // the attempt itself finds the socket's error
};

// Returns the notes of `fd` if the caller shall wait for it here. Null: the caller makes the plain call.
inline PollNotes* notes_to_wait(int fd) {
  if (!may_park() && !give_up_habit()) return nullptr;
  PollNotes* notes = poll_notes(fd);
  return notes && !(notes->kind.load(std::memory_order_relaxed) & kNonblocking) ? notes : nullptr;
}
// Makes a reading call that the program made non-blocking. If it finds nothing, the program will often poll() next, so that is noted.
template <class Call>
ssize_t read_at_once(int fd, Call call) {
  signal_show_pending();
  if (!may_park()) return despite_others(call);
  PollSeen seen = poll_seen(fd);
  ssize_t r = call();
  if (r < 0 && errno == EAGAIN && may_park()) poll_was_empty(fd, seen);
  return r;
}

// Returns the kind, which is not kUnknown. kPlain if `fd` is no descriptor.
uint32_t kind_of(int fd, PollNotes* notes);
// The same for a descriptor that is about to be read: where it is a file, this takes half the time.
uint32_t kind_to_read(int fd, PollNotes* notes);
// Returns true if a file was opened with O_DIRECT. Most calls do not depend on that, so kind_of() does not ask for it.
bool is_direct(int fd, PollNotes* notes);
// Asks poll().
bool is_ready(int fd, uint32_t events);
// Returns true if there is an error that the next call would take. A call asks this before it goes on with a further part. What it has
// transferred is its result, and the error belongs to the next call.
bool has_error(int fd);
// Raises SIGPIPE where the kernel would have. The socket's call was made without MSG_NOSIGNAL, and was tried with it.
long raise_if_broken(const PollNotes* notes, long result);
// Called when SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT or O_NONBLOCK was set on any descriptor.
void socket_options_changed();
// The program has set SO_RCVLOWAT, which programs hardly ever do. It is stored before socket_options_changed() is called.
extern std::atomic<bool> low_water_used;
// Returns how many bytes a receiving call for n bytes on a stream waits for. 0: for the first one only.
size_t low_water(int fd, PollNotes* notes, size_t n);

struct Try {
  long (*call)(void*);
  void* data;
};
// Waits for `events`, and calls `again` until that no longer returns -EAGAIN. Returns its result, kInKernel, or the error that ended the
// wait. If `until` is not null, it holds the deadline of all parts of a call. The first part that waits sets it. 0: not set yet. If the
// descriptor is closed meanwhile, `fd` and `notes` become those by which the call goes on with the file.
long wait_and_try(int& fd, PollNotes*& notes, uint32_t events, PollSeen seen, unsigned how, Try again, uint64_t* until);

// Stands around a whole call. At its end, lets go of a file that the call went on with.
class GoesOn {
 public:
  GoesOn(int& fd, PollNotes*& notes) : fd_(fd), notes_(notes), fd_before_(fd), notes_before_(notes) {}
  explicit GoesOn(int& fd) : fd_(fd), notes_(unused_), fd_before_(fd), notes_before_(nullptr) {}
  ~GoesOn() {
    if (__builtin_expect(fd_ == fd_before_, 1)) return;
    poll_let_go(fd_);
    fd_ = fd_before_;
    notes_ = notes_before_;
  }
  GoesOn(const GoesOn&) = delete;

 private:
  int& fd_;
  PollNotes*& notes_;
  int fd_before_;
  PollNotes* notes_before_;
  PollNotes* unused_ = nullptr;
};

// Makes a part of a call, which ends with the whole. attempt() returns -EAGAIN if it would wait, kInKernel, or the result. plain() makes
// libc's call. Both take the `fd` and `notes` that the caller of the whole has, by reference.
template <class Attempt, class Plain>
long wait_for_part(int& fd, PollNotes*& notes, uint32_t events, unsigned how, Attempt attempt, Plain plain, uint64_t* until = nullptr) {
  if (how & kCancels) test_cancel();
  PollSeen seen = poll_seen(fd);
  long r = attempt();
  if (__builtin_expect(r == -EAGAIN, 0))
    r = wait_and_try(fd, notes, events, seen, how, {[](void* p) { return (*static_cast<Attempt*>(p))(); }, &attempt}, until);
  if (__builtin_expect(r == kInKernel || r == -ENOSYS, 0)) {  // a filter may allow the program's call, but not the one that was tried
    r = kernel_result(despite_others(plain));
    poll_pass(fd, events);
  }
  return r;
}

// The same for a call of one part.
template <class Attempt, class Plain>
long wait_for(int& fd, PollNotes*& notes, uint32_t events, unsigned how, Attempt attempt, Plain plain) {
  GoesOn whole(fd, notes);
  return wait_for_part(fd, notes, events, how, attempt, plain);
}

// Makes a receiving call that ends when it has `want` bytes. 0: any number. attempt(done) receives behind the first `done` bytes.
// ends_here() is asked after each part.
enum class Taking { Takes, Peeks };
template <class Attempt, class Plain, class Ends>
long receive(int& fd, PollNotes*& notes, size_t want, Taking taking, Attempt attempt, Plain plain, Ends ends_here) {
  constexpr unsigned kHow = kCancels | kRestarts;
  GoesOn whole(fd, notes);
  if (__builtin_expect(!want, 1))
    return wait_for_part(fd, notes, EPOLLIN, kHow, [&] { return attempt(size_t{0}); }, [&] { return plain(size_t{0}); });
  if (taking == Taking::Peeks) {
    long seen = 0;
    auto look = [&]() -> long {
      long r = attempt(size_t{0});
      if (r > seen) seen = r;
      // This asks whether the peer can send more.
      return r <= 0 || static_cast<size_t>(r) >= want || is_ready(fd, EPOLLRDHUP) ? r : -EAGAIN;
    };
    long r = wait_for_part(fd, notes, EPOLLIN, kHow | kAsks, look, [&] { return plain(size_t{0}); });
    return r < 0 && seen ? seen : r;
  }
  uint64_t until = 0;
  for (size_t done = 0;;) {
    auto part = [&]() -> long { return done && has_error(fd) ? 0 : attempt(done); };
    long r = wait_for_part(fd, notes, EPOLLIN, done ? unsigned{kCancels} : kHow, part, [&] { return plain(done); }, &until);
    if (r <= 0) return done ? static_cast<long>(done) : r;
    done += static_cast<size_t>(r);
    if (done >= want || ends_here()) return static_cast<long>(done);
  }
}

template <class Attempt, class Plain>
long receive(int& fd, PollNotes*& notes, size_t want, Taking taking, Attempt attempt, Plain plain) {
  return receive(fd, notes, want, taking, attempt, plain, [] { return false; });
}

// What becomes of SIGPIPE in a sending call.
enum class Pipe {
  Kernel,   // attempt() makes a call that raises it
  Raised,   // attempt() sends with MSG_NOSIGNAL, and send_parts() raises it
  Ignored,  // attempt() sends with MSG_NOSIGNAL, as the program does
};
// Makes a sending call, which ends when everything has gone. Only streams and pipes ever take less at once. attempt(done) sends behind the
// first `done` bytes. size() is asked once some bytes have gone.
template <class Attempt, class Plain, class Size>
long send_parts(int& fd, PollNotes*& notes, size_t done, Pipe pipe, Attempt attempt, Plain plain, Size size) {
  GoesOn whole(fd, notes);
  uint64_t until = 0;
  for (;;) {
    bool tried = false;
    long r = wait_for_part(
        fd, notes, EPOLLOUT, done ? kCancels : kCancels | kRestarts,
        [&]() -> long {
          if (pipe != Pipe::Kernel && done && has_error(fd)) return 0;
          tried = true;
          return attempt(done);
        },
        [&] {
          tried = false;
          return plain(done);
        },
        &until);
    if (r <= 0) return done ? static_cast<long>(done) : tried && pipe == Pipe::Raised ? raise_if_broken(notes, r) : r;
    done += static_cast<size_t>(r);
    if (done >= size()) return static_cast<long>(done);
  }
}

// When the rest of a transfer is moved, that many pieces go at once.
constexpr size_t kPieces = 16;
// Puts what is left of `all` after its first `done` bytes into `rest`, at most kPieces of it. Returns the number of pieces.
size_t remaining(const iovec* all, size_t n, size_t done, iovec* rest);
size_t total_length(const iovec* all, size_t n);

}  // namespace fiberthread
