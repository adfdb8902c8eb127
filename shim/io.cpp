// read, write and their kin.
#include "shim/io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sched/syscall.h"
#include "sched/worker.h"
#include "shim/blocking.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/time.h"

namespace fiberthread {

// ---- what is known of a descriptor ----

uint32_t kind_of(int fd, PollNotes* notes) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if (__builtin_expect(kind & kKindMask, 1)) return kind;
  struct stat s;
  if (raw_syscall(SYS_fstat, fd, arg(&s)) != 0) return kPlain;
  char termios[64];
  if (S_ISCHR(s.st_mode) && raw_syscall(SYS_ioctl, fd, TCGETS, arg(termios)) == 0) {
    // With VMIN 0 or VTIME, read() ends when poll() would not say so, and in the background it stops the process.
    kind = kTerminal;
  } else if (S_ISSOCK(s.st_mode)) {
    int type = SOCK_SEQPACKET;  // if a filter refuses to tell
    socklen_t size = sizeof type;
    raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, arg(&type), arg(&size));
    // write() marks the end of a record, send() does not.
    kind = kSocket | uint32_t{type == SOCK_SEQPACKET ? kNowait : kMessage} | (type == SOCK_STREAM ? uint32_t{kStream} : 0);
  } else if (S_ISREG(s.st_mode) || S_ISBLK(s.st_mode)) {
    long flags = raw_syscall(SYS_fcntl, fd, F_GETFL);
    kind = kFile | (flags > 0 && flags & O_DIRECT ? uint32_t{kDirect} : 0);
  } else {
    kind = S_ISDIR(s.st_mode) ? kPlain : kNowait;
  }
  notes->kind.store(kind, std::memory_order_relaxed);
  return kind;
}

bool is_ready(int fd, uint32_t events) {
  pollfd p{fd, static_cast<short>(events), 0};
  timespec at_once{};
  return raw_syscall(SYS_ppoll, arg(&p), 1, arg(&at_once), 0, 8) != 0;
}

bool has_error(int fd) {
  pollfd p{fd, 0, 0};
  timespec at_once{};
  return raw_syscall(SYS_ppoll, arg(&p), 1, arg(&at_once), 0, 8) > 0 && p.revents & POLLERR;
}

long raise_if_broken(const PollNotes* notes, long result) {
  if (result == -EPIPE && notes->kind.load(std::memory_order_relaxed) & kStream) signal_raise_pipe();  // others say nothing
  return result;
}

namespace {

// Times that somebody set one of the options below, or O_NONBLOCK, plus one.
std::atomic<uint32_t> options_version{1};

// How the program set the descriptor. True if it is not to wait at all.
bool look_at_options(int fd, PollNotes* notes) {
  uint32_t version = options_version.load(std::memory_order_acquire);
  if (notes->version.load(std::memory_order_acquire) == version) return false;
  long flags = raw_syscall(SYS_fcntl, fd, F_GETFL);
  if (flags >= 0 && flags & O_NONBLOCK) {
    notes->kind.fetch_or(kNonblocking, std::memory_order_relaxed);
    return true;
  }
  // Of other files, another process may well change the flags.
  if (!(kind_of(fd, notes) & kSocket)) return false;
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
  return false;
}

// A socket's pending one, taken.
int error_of(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, arg(&error), arg(&size)) == 0 ? error : 0;
}

}  // namespace

std::atomic<bool> low_water_used{false};

void socket_options_changed(bool low_water) {
  if (low_water) low_water_used.store(true, std::memory_order_relaxed);
  options_version.fetch_add(1, std::memory_order_acq_rel);
}

size_t low_water(int fd, PollNotes* notes, size_t n) {
  if (!low_water_used.load(std::memory_order_relaxed) || !(kind_of(fd, notes) & kStream)) return 0;
  look_at_options(fd, notes);
  size_t low = notes->low_water.load(std::memory_order_relaxed);
  return low <= 1 ? 0 : low < n ? low : n;
}

// ---- waiting ----

long wait_and_try(int fd, PollNotes* notes, uint32_t events, PollSeen seen, unsigned how, Try again, uint64_t* until) {
  if (look_at_options(fd, notes)) return -EAGAIN;
  FiberRecord* me = self();
  // Those of what is no socket are of the number's last life that was one.
  bool socket = kind_of(fd, notes) & kSocket;
  uint64_t timeout = socket ? uint64_t{(events & EPOLLIN ? notes->receive : notes->send).load(std::memory_order_relaxed)} * 1'000'000 : 0;
  uint64_t deadline = until && *until ? *until : timeout ? (now_ns() + timeout + 1) & ~kFollowsRealtime : kNever;
  if (until) *until = deadline;
  for (;;) {
    PollEnd end;
    {
      // From here to the result, handlers wait: each that comes ends the call, or would have if it had nothing to give.
      Busy busy;
      if (!may_park()) return kInKernel;  // a handler has forked since the caller looked, and this is the child
      uint32_t interrupts = kInterruptSafePoint | (how & kCancels ? wait_interrupts(me) : 0);
      for (;;) {
        end = poll_wait(fd, events, seen, deadline, interrupts);
        if (end != PollEnd::Ready) break;
        PollSeen now = poll_seen(fd);
        if (now.life != seen.life) {
          end = PollEnd::Closed;
          break;
        }
        seen = now;
        // An error that came while it waited goes before what a new call would find.
        long r = events & EPOLLOUT && how & kRestarts && !(how & kKeepsError) ? -error_of(fd) : 0;
        if (r == 0) r = again.call(again.data);
        if (r == kInKernel) return r;
        if (r != -EAGAIN) {
          poll_pass(fd, events);
          return r;
        }
        // Ready, and still EAGAIN: only the kernel knows what it waits for, or that it does not mean to.
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
    if (timeout || !(how & kRestarts) || !signal_restarts(me)) return -EINTR;
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

namespace {

// RWF_NOWAIT at the file's own position, or a look by poll() where it is not known.
long nowait(long nr, int fd, PollNotes* notes, uint32_t events, const iovec* v, size_t n) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if ((kind & kKindMask) != kAsk) {
    Busy busy;  // on this kernel thread, until it is known where SIGPIPE went
    long r = raw_syscall(nr, fd, arg(v), static_cast<long>(n), -1, -1, RWF_NOWAIT);
    if (r == -EPIPE) signal_take_pipe();
    if (r != -EOPNOTSUPP && r != -ENOSYS && r != -EPERM) return r;  // the file, the kernel or a filter knows it not
    notes->kind.store((kind & ~uint32_t{kKindMask}) | kAsk, std::memory_order_relaxed);
  }
  return is_ready(fd, events) ? kInKernel : -EAGAIN;
}

bool takes_messages(PollNotes* notes) { return (notes->kind.load(std::memory_order_relaxed) & kKindMask) == kMessage; }

// It is none: somebody else's file has the number.
long forget_kind(PollNotes* notes) {
  notes->kind.store(kUnknown, std::memory_order_relaxed);
  return kInKernel;
}

long read_here(int fd, PollNotes* notes, void* buf, size_t n) {
  auto at = [&](size_t done) { return static_cast<char*>(buf) + done; };
  return receive(
      fd, notes, low_water(fd, notes, n), false,
      [&](size_t done) -> long {
        iovec v{at(done), n - done};
        if (!takes_messages(notes)) return nowait(SYS_preadv2, fd, notes, EPOLLIN, &v, 1);
        long r = raw_syscall(SYS_recvfrom, fd, arg(at(done)), static_cast<long>(n - done), MSG_DONTWAIT, 0, 0);
        return r == -ENOTSOCK ? forget_kind(notes) : r;
      },
      [&](size_t done) { return REAL(read)(fd, at(done), n - done); });
}

// Of a call that was made plainly.
ssize_t and_take_pipe(ssize_t r) {
  if (r < 0 && errno == EPIPE) {
    signal_take_pipe();
    errno = EPIPE;
  }
  return r;
}

long write_here(int fd, PollNotes* notes, const void* buf, size_t n) {
  constexpr size_t kMost = 0x7ffff000;  // the kernel's
  if (n > kMost) n = kMost;
  auto at = [&](size_t done) { return static_cast<const char*>(buf) + done; };
  return send_parts(
      fd, notes, 0, takes_messages(notes), true,
      [&](size_t done) -> long {
        iovec v{const_cast<char*>(at(done)), n - done};
        if (!takes_messages(notes)) return nowait(SYS_pwritev2, fd, notes, EPOLLOUT, &v, 1);
        long r = raw_syscall(SYS_sendto, fd, arg(at(done)), static_cast<long>(n - done), MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
        return r == -ENOTSOCK ? forget_kind(notes) : r;
      },
      [&](size_t done) { return and_take_pipe(REAL(write)(fd, at(done), n - done)); }, [&] { return n; });
}

long readv_here(int fd, PollNotes* notes, const iovec* all, int count) {
  iovec rest[kPieces];
  struct {
    const iovec* v;
    size_t n;
  } now;
  auto from = [&](size_t done) {
    now = {all, static_cast<size_t>(count)};
    if (done) now = {rest, remaining(all, static_cast<size_t>(count), done, rest)};
  };
  return receive(
      fd, notes, low_water_used.load(std::memory_order_relaxed) ? low_water(fd, notes, total_length(all, static_cast<size_t>(count))) : 0, false,
      [&](size_t done) -> long {
        from(done);
        if (!takes_messages(notes)) return nowait(SYS_preadv2, fd, notes, EPOLLIN, now.v, now.n);
        msghdr m{};
        m.msg_iov = const_cast<iovec*>(now.v);
        m.msg_iovlen = now.n;
        long r = raw_syscall(SYS_recvmsg, fd, arg(&m), MSG_DONTWAIT);
        return r == -ENOTSOCK ? forget_kind(notes) : r == -EMSGSIZE ? kInKernel : r;
      },
      [&](size_t done) {
        from(done);
        return REAL(readv)(fd, now.v, static_cast<int>(now.n));
      });
}

long writev_here(int fd, PollNotes* notes, const iovec* all, int count) {
  iovec rest[kPieces];
  struct {
    const iovec* v;
    size_t n;
  } now;
  auto from = [&](size_t done) {
    now = {all, static_cast<size_t>(count)};
    if (done) now = {rest, remaining(all, static_cast<size_t>(count), done, rest)};
  };
  return send_parts(
      fd, notes, 0, takes_messages(notes), true,
      [&](size_t done) -> long {
        from(done);
        if (!takes_messages(notes)) return nowait(SYS_pwritev2, fd, notes, EPOLLOUT, now.v, now.n);
        msghdr m{};
        m.msg_iov = const_cast<iovec*>(now.v);
        m.msg_iovlen = now.n;
        long r = raw_syscall(SYS_sendmsg, fd, arg(&m), MSG_DONTWAIT | MSG_NOSIGNAL);
        return r == -ENOTSOCK ? forget_kind(notes) : r == -EMSGSIZE ? kInKernel : r;
      },
      [&](size_t done) {
        from(done);
        return and_take_pipe(REAL(writev)(fd, now.v, static_cast<int>(now.n)));
      },
      // The kernel has read the pieces, so they are there.
      [&] { return total_length(all, static_cast<size_t>(count)); });
}

// Null if the plain call will do.
PollNotes* notes_for_transfer(int fd, bool something) {
  PollNotes* notes = something ? notes_to_wait(fd) : nullptr;
  return notes && (kind_of(fd, notes) & kKindMask) < kPlain ? notes : nullptr;
}

long not_now() { return -EAGAIN; }

// read() and readv() of what is no matter of the poller's. Of a file, what one call has read and what the next one reads are apart
// where others use the same position: so these never try for a part.
template <class Plain, class Raw>
ssize_t read_plainly(int fd, uint32_t kind, Plain plain, Raw raw) {
  if (kind == kFile) return file_call(plain, raw, not_now);
  if (kind != kTerminal || is_ready(fd, EPOLLIN) || !has_slot_to_give()) return plain();
  Blocking blocking;
  return plain();
}

// The kind of what is read or written at a position: only files do.
uint32_t file_kind(int fd) {
  PollNotes* notes = notes_to_wait(fd);
  uint32_t kind = notes ? kind_of(fd, notes) : uint32_t{kPlain};
  return (kind & kKindMask) == kFile ? kind : 0;
}

// What the kernel has in memory of a file, if it is all that was asked for.
long read_from_memory(int fd, uint32_t kind, const iovec* v, size_t n, off64_t at) {
  if (kind & kDirect || at < 0) return -EAGAIN;  // it would wait; -1 would be the file's own position
  long r = raw_syscall(SYS_preadv2, fd, arg(v), static_cast<long>(n), at, 0, RWF_NOWAIT);
  if (r == -EOPNOTSUPP || r == -ENOSYS || r == -EPERM) return -EAGAIN;  // the file, the kernel or a filter knows it not
  return r <= 0 || static_cast<size_t>(r) >= total_length(v, n) ? r : -EAGAIN;
}

// Before a call that can only be made plainly: waits until it has something to begin with. 0, or the error to return.
long until_ready(int fd, uint32_t events, unsigned how) {
  PollNotes* notes = notes_for_transfer(fd, true);
  if (!notes) return 0;
  // Once only: what ends the wait may be something that poll() does not show.
  bool waited = false;
  auto look = [&]() -> long {
    if (waited || is_ready(fd, events)) return 0;
    waited = true;
    return -EAGAIN;
  };
  long r = wait_for(fd, notes, events, how | kRestarts | kAsks, look, [] { return 0; });
  bool nonblocking = r == -EAGAIN && notes->kind.load(std::memory_order_relaxed) & kNonblocking;
  return nonblocking ? 0 : r;  // the kernel's to say
}

}  // namespace

void io_init() {
  (void)REAL(read);
  (void)REAL(write);
  (void)REAL(readv);
  (void)REAL(writev);
  (void)REAL(pread64);
  (void)REAL(pwrite64);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  PollNotes* notes = n ? notes_to_wait(fd) : nullptr;
  uint32_t kind = notes ? kind_of(fd, notes) & kKindMask : kUnknown;
  if (kind < kPlain) take_turns();
  if (!notes) return n ? read_at_once(fd, [&] { return REAL(read)(fd, buf, n); }) : REAL(read)(fd, buf, n);
  if (kind < kPlain) return with_errno(read_here(fd, notes, buf, n));
  return read_plainly(
      fd, kind, [&] { return REAL(read)(fd, buf, n); }, [&] { return program_syscall(SYS_read, fd, arg(buf), static_cast<long>(n)); });
}
FIBERTHREAD_ALIAS(__read, read);

// A cancellation point, which libc's own is from 2.36 on only.
extern "C" ssize_t __read_chk(int fd, void* buf, size_t n, size_t size);
FIBERTHREAD_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t size) {
  return n > size ? REAL(__read_chk)(fd, buf, n, size) : read(fd, buf, n);
}

FIBERTHREAD_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  PollNotes* notes = n ? notes_to_wait(fd) : nullptr;
  uint32_t kind = notes ? kind_of(fd, notes) : uint32_t{kPlain};
  if ((kind & kKindMask) < kPlain) return with_errno(write_here(fd, notes, buf, n));
  if (!(kind & kDirect)) return REAL(write)(fd, buf, n);
  return file_call([&] { return REAL(write)(fd, buf, n); }, [&] { return program_syscall(SYS_write, fd, arg(buf), static_cast<long>(n)); }, not_now);
}
FIBERTHREAD_ALIAS(__write, write);

FIBERTHREAD_EXPORT ssize_t readv(int fd, const iovec* v, int n) {
  PollNotes* notes = n > 0 ? notes_to_wait(fd) : nullptr;
  uint32_t kind = notes ? kind_of(fd, notes) & kKindMask : kUnknown;
  if (kind < kPlain) take_turns();
  if (!notes) return read_at_once(fd, [&] { return REAL(readv)(fd, v, n); });
  if (kind < kPlain) return with_errno(readv_here(fd, notes, v, n));
  return read_plainly(
      fd, kind, [&] { return REAL(readv)(fd, v, n); }, [&] { return program_syscall(SYS_readv, fd, arg(v), n); });
}

FIBERTHREAD_EXPORT ssize_t pread64(int fd, void* buf, size_t n, off64_t at) {
  uint32_t kind = file_kind(fd);
  if (!kind) return REAL(pread64)(fd, buf, n, at);
  iovec v{buf, n};
  return file_call([&] { return REAL(pread64)(fd, buf, n, at); },
                   [&] { return program_syscall(SYS_pread64, fd, arg(buf), static_cast<long>(n), at); },
                   [&] { return read_from_memory(fd, kind, &v, 1, at); });
}
FIBERTHREAD_ALIAS(pread, pread64);
FIBERTHREAD_ALIAS(__pread64, pread64);

extern "C" ssize_t __pread64_chk(int fd, void* buf, size_t n, off64_t at, size_t size);
FIBERTHREAD_EXPORT ssize_t __pread64_chk(int fd, void* buf, size_t n, off64_t at, size_t size) {
  return n > size ? REAL(__pread64_chk)(fd, buf, n, at, size) : pread64(fd, buf, n, at);
}
FIBERTHREAD_ALIAS(__pread_chk, __pread64_chk);

FIBERTHREAD_EXPORT ssize_t preadv64(int fd, const iovec* v, int n, off64_t at) {
  uint32_t kind = n > 0 ? file_kind(fd) : 0;
  if (!kind) return REAL(preadv64)(fd, v, n, at);
  return file_call([&] { return REAL(preadv64)(fd, v, n, at); }, [&] { return program_syscall(SYS_preadv, fd, arg(v), n, at, 0); },
                   [&] { return read_from_memory(fd, kind, v, static_cast<size_t>(n), at); });
}
FIBERTHREAD_ALIAS(preadv, preadv64);

// Without O_DIRECT, writes end in memory.
FIBERTHREAD_EXPORT ssize_t pwrite64(int fd, const void* buf, size_t n, off64_t at) {
  if (!(file_kind(fd) & kDirect)) return REAL(pwrite64)(fd, buf, n, at);
  return file_call([&] { return REAL(pwrite64)(fd, buf, n, at); },
                   [&] { return program_syscall(SYS_pwrite64, fd, arg(buf), static_cast<long>(n), at); }, not_now);
}
FIBERTHREAD_ALIAS(pwrite, pwrite64);
FIBERTHREAD_ALIAS(__pwrite64, pwrite64);

FIBERTHREAD_EXPORT ssize_t pwritev64(int fd, const iovec* v, int n, off64_t at) {
  if (!(file_kind(fd) & kDirect)) return REAL(pwritev64)(fd, v, n, at);
  return file_call([&] { return REAL(pwritev64)(fd, v, n, at); }, [&] { return program_syscall(SYS_pwritev, fd, arg(v), n, at, 0); }, not_now);
}
FIBERTHREAD_ALIAS(pwritev, pwritev64);

FIBERTHREAD_EXPORT ssize_t writev(int fd, const iovec* v, int n) {
  PollNotes* notes = notes_for_transfer(fd, n > 0);
  return notes ? with_errno(writev_here(fd, notes, v, n)) : REAL(writev)(fd, v, n);
}

FIBERTHREAD_EXPORT ssize_t sendfile(int out, int in, off_t* at, size_t n) noexcept {
  if (long r = until_ready(out, EPOLLOUT, 0)) return with_errno(r);
  return and_take_pipe(REAL(sendfile)(out, in, at, n));
}
FIBERTHREAD_ALIAS(sendfile64, sendfile);

FIBERTHREAD_EXPORT ssize_t splice(int in, off64_t* in_at, int out, off64_t* out_at, size_t n, unsigned flags) {
  if (!(flags & SPLICE_F_NONBLOCK)) {
    if (long r = until_ready(in, EPOLLIN, kCancels)) return with_errno(r);
    if (long r = until_ready(out, EPOLLOUT, kCancels)) return with_errno(r);
  }
  return and_take_pipe(REAL(splice)(in, in_at, out, out_at, n, flags));
}

FIBERTHREAD_EXPORT ssize_t tee(int in, int out, size_t n, unsigned flags) {
  if (!(flags & SPLICE_F_NONBLOCK)) {
    if (long r = until_ready(in, EPOLLIN, kCancels)) return with_errno(r);
    if (long r = until_ready(out, EPOLLOUT, kCancels)) return with_errno(r);
  }
  return and_take_pipe(REAL(tee)(in, out, n, flags));
}
