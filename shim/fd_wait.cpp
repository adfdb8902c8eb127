// SPDX-License-Identifier: MIT
// How a call waits for a descriptor.
#include "shim/fd_wait.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "sched/syscall.h"
#include "sched/wait.h"
#include "sched/scheduler.h"
#include "shim/signal.h"

namespace fiberthread {

// ---- what is known of a descriptor ----

uint32_t kind_of(int fd, PollNotes* notes) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if (__builtin_expect(kind & kKindMask, 1)) return kind;
  struct stat s;
  if (raw_syscall(SYS_fstat, fd, arg(&s)) != 0) return kPlain;
  char termios[64];
  if (S_ISCHR(s.st_mode) && raw_syscall(SYS_ioctl, fd, TCGETS, arg(termios)) == 0) {
    // With VMIN 0 or VTIME, read() may end when poll() shows nothing. In the background it stops the process.
    kind = kTerminal;
  } else if (S_ISSOCK(s.st_mode)) {
    int type = SOCK_SEQPACKET;  // a filter may refuse to tell
    socklen_t size = sizeof type;
    raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, arg(&type), arg(&size));
    // write() marks the end of a record, and send() does not.
    kind = kSocket | uint32_t{type == SOCK_SEQPACKET ? kNowait : kMessage} | (type == SOCK_STREAM ? uint32_t{kStream} : 0);
  } else if (S_ISREG(s.st_mode) || S_ISBLK(s.st_mode)) {
    kind = kFile;
  } else {
    kind = S_ISDIR(s.st_mode) ? uint32_t{kPlain} : kNowait | (s.st_mode & S_IFMT ? 0 : uint32_t{kNoFile});
  }
  notes->kind.store(kind, std::memory_order_relaxed);
  return kind;
}

uint32_t kind_to_read(int fd, PollNotes* notes) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if (__builtin_expect(kind & kKindMask, 1)) return kind;
  // readahead() succeeds for what kind_of() calls a file, and for nothing else. There are no pages to read beyond the end.
  constexpr long kBeyondAnyEnd = 0x7fff'ffff'ffff'0000;
  if (raw_syscall(SYS_readahead, fd, kBeyondAnyEnd, 1) != 0) return kind_of(fd, notes);
  notes->kind.store(kFile, std::memory_order_relaxed);
  return kFile;
}

bool is_direct(int fd, PollNotes* notes) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if (__builtin_expect(kind & kDirectKnown, 1)) return kind & kDirect;
  long flags = raw_syscall(SYS_fcntl, fd, F_GETFL);
  bool direct = flags > 0 && flags & O_DIRECT;
  notes->kind.store(kind | kDirectKnown | (direct ? uint32_t{kDirect} : 0), std::memory_order_relaxed);
  return direct;
}

namespace {
long poll_at_once(pollfd& p) {
  return at_once([&] {
    timespec none{};
    return raw_syscall(SYS_ppoll, arg(&p), 1, arg(&none), 0, 8);
  });
}
}  // namespace

bool is_ready(int fd, uint32_t events) {
  pollfd p{fd, static_cast<short>(events), 0};
  return poll_at_once(p) != 0;
}

bool has_error(int fd) {
  pollfd p{fd, 0, 0};
  return poll_at_once(p) > 0 && p.revents & POLLERR;
}

long raise_if_broken(const PollNotes* notes, long result) {
  if (result == -EPIPE && notes->kind.load(std::memory_order_relaxed) & kStream) signal_raise_pipe();  // other sockets raise nothing
  return result;
}

namespace {

// How often one of the options below, or O_NONBLOCK, was set on any descriptor, plus one.
std::atomic<uint32_t> options_version{1};

enum class SetTo { Wait, NotWait, Fail };

// Reads how the program has set the descriptor, and says whether calls that wait for `events` wait at all.
SetTo look_at_options(int fd, PollNotes* notes, uint32_t events) {
  uint32_t version = options_version.load(std::memory_order_acquire);
  if (notes->version.load(std::memory_order_acquire) == version) return SetTo::Wait;
  long flags = raw_syscall(SYS_fcntl, fd, F_GETFL);
  // poll() would never report it, and the call fails at once.
  if (flags >= 0 && (flags & O_ACCMODE) == (events & EPOLLIN ? O_WRONLY : O_RDONLY)) return SetTo::Fail;
  if (flags >= 0 && flags & O_NONBLOCK) {
    notes->kind.fetch_or(kNonblocking, std::memory_order_relaxed);
    return SetTo::NotWait;
  }
  // The flags of other files may well be changed by another process.
  if (!(kind_of(fd, notes) & kSocket)) return SetTo::Wait;
  auto get = [&](int option) -> uint32_t {  // milliseconds: the kernel counts its ticks
    timeval t{};
    socklen_t size = sizeof t;
    if (raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, option, arg(&t), arg(&size)) != 0) return 0;
    int64_t ms = t.tv_sec * 1000 + (t.tv_usec + 999) / 1000;
    return static_cast<uint32_t>(ms > 0xffffffff ? 0xffffffff : ms);
  };
  uint32_t low = 0;
  socklen_t size = sizeof low;
  if (low_water_used.load(std::memory_order_relaxed)) raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, arg(&low), arg(&size));
  notes->receive.store(get(SO_RCVTIMEO), std::memory_order_relaxed);
  notes->send.store(get(SO_SNDTIMEO), std::memory_order_relaxed);
  notes->low_water.store(low, std::memory_order_relaxed);
  notes->version.store(version, std::memory_order_release);
  return SetTo::Wait;
}

// Returns a socket's pending error, and takes it.
int error_of(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, arg(&error), arg(&size)) == 0 ? error : 0;
}

}  // namespace

std::atomic<bool> low_water_used{false};

void socket_options_changed() { options_version.fetch_add(1, std::memory_order_acq_rel); }

size_t low_water(int fd, PollNotes* notes, size_t n) {
  if (!low_water_used.load(std::memory_order_relaxed) || !(kind_of(fd, notes) & kStream)) return 0;
  look_at_options(fd, notes, EPOLLIN);
  size_t low = notes->low_water.load(std::memory_order_relaxed);
  return low <= 1 ? 0 : low < n ? low : n;
}

// ---- waiting ----

namespace {
// If the descriptor was closed under the wait, `fd` and `notes` become those of its file. Returns whether they did.
bool go_on_with(const PollItem& item, int& fd, PollNotes*& notes) {
  int number = item.number();
  if (__builtin_expect(number == fd, 1)) return false;
  fd = number;
  notes = poll_notes(fd);
  kind_of(fd, notes);
  return true;
}
}  // namespace

long wait_and_try(int& fd, PollNotes*& notes, uint32_t events, PollSeen seen, unsigned how, Try again, uint64_t* until) {
  SetTo set = look_at_options(fd, notes, events);
  if (set != SetTo::Wait) return set == SetTo::NotWait ? -EAGAIN : kInKernel;
  if (signal_show_pending()) return kInKernel;
  FiberRecord* me = self();
  // If this is no socket, the timeouts are those of a former life of the number, when it was one.
  bool socket = kind_of(fd, notes) & kSocket;
  uint64_t timeout = socket ? uint64_t{(events & EPOLLIN ? notes->receive : notes->send).load(std::memory_order_relaxed)} * 1'000'000 : 0;
  uint64_t deadline = until && *until ? *until : timeout ? deadline_in(timeout) : kNever;
  if (until) *until = deadline;
  for (;;) {
    PollEnd end;
    HandlersBefore handlers;
    {
      // From here to the result, handlers wait. Each that comes ends the call, or would have ended it if there was nothing to transfer.
      Busy busy;
      if (!may_park()) return kInKernel;  // a handler has forked since the caller looked, and this is the child
      uint32_t interrupts = kInterruptSafePoint | (how & kCancels ? wait_interrupts(me) : 0);
      for (;;) {
        PollItem item{.fd = fd, .events = events, .seen = seen, .exclusive = true, .stays = true};
        end = poll_wait_any(&item, 1, deadline, interrupts);
        bool goes_on = go_on_with(item, fd, notes);
        if (end != PollEnd::Ready) break;
        PollSeen now = poll_seen(fd);
        if (now.life != seen.life && !goes_on) {
          poll_leave(item);  // by then, the thread that closes it has moved the item
          if (!go_on_with(item, fd, notes)) {
            end = PollEnd::Closed;
            break;
          }
          now = poll_seen(fd);
        }
        seen = now;
        // An error that came during the wait goes before what a new call would find.
        auto try_again = [&]() -> long {
          long error = events & EPOLLOUT && how & kRestarts && !(how & kKeepsError) ? -error_of(fd) : 0;
          return error ? error : again.call(again.data);
        };
        long r = try_again();
        poll_leave(item);
        if (go_on_with(item, fd, notes)) {  // closed just before the try, or after it
          seen = poll_seen(fd);
          if (r == -EBADF) r = try_again();
        }
        if (r == kInKernel) return r;
        if (r != -EAGAIN) {
          poll_pass(fd, events);
          return r;
        }
        // It is ready, and the call still says EAGAIN. Only the kernel knows what the call waits for, or whether it means to wait.
        if (!(how & kAsks) && is_ready(fd, events)) return kInKernel;
      }
    }
    switch (end) {
      case PollEnd::Closed: return -EBADF;
      case PollEnd::TimedOut: return -EAGAIN;
      case PollEnd::Refused: return kInKernel;
      default: break;
    }
    if (how & kCancels) test_cancel();
    if (!may_park()) return kInKernel;  // a handler has forked, and this is the child
    if (how & kCancels && end_pending(me)) return -ECANCELED;
    if (!handlers.none_since() && (timeout || !(how & kRestarts) || !signal_restarts(me))) return -EINTR;
    if (signal_show_pending()) return kInKernel;
    seen = poll_seen(fd);
    long r = again.call(again.data);
    if (r != -EAGAIN) return r;
  }
}

size_t total_length(const iovec* all, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += all[i].iov_len;
  return sum;
}

size_t remaining(const iovec* all, size_t n, size_t done, iovec* rest) {
  size_t i = 0, k = 0;
  for (; i < n && done >= all[i].iov_len; i++) done -= all[i].iov_len;
  for (; i < n && k < kPieces; i++, k++) {
    rest[k] = {static_cast<char*>(all[i].iov_base) + done, all[i].iov_len - done};
    done = 0;
  }
  return k;
}

}  // namespace fiberthread
