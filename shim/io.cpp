// SPDX-License-Identifier: MIT
// read, write and their kin.
#include "shim/io.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sched/syscall.h"
#include "sched/scheduler.h"
#include "shim/blocking.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/time.h"

namespace fiberthread {

namespace {

// Transfers with RWF_NOWAIT at the file's own position, or asks poll() where that flag is not known.
long nowait(long nr, int fd, PollNotes* notes, uint32_t events, const iovec* v, size_t n) {
  uint32_t kind = notes->kind.load(std::memory_order_relaxed);
  if ((kind & kKindMask) != kAsk) {
    Busy busy;  // stays on this kernel thread, until it is known where SIGPIPE went
    long r = raw_syscall(nr, fd, arg(v), static_cast<long>(n), -1, -1, RWF_NOWAIT);
    if (r == -EPIPE) signal_take_pipe();
    if (r != -EOPNOTSUPP && r != -ENOSYS && r != -EPERM) return r;  // the file, the kernel or a filter does not know the call
    notes->kind.store((kind & ~uint32_t{kKindMask}) | kAsk, std::memory_order_relaxed);
  }
  return is_ready(fd, events) ? kInKernel : -EAGAIN;
}

bool takes_messages(const PollNotes* notes) { return (notes->kind.load(std::memory_order_relaxed) & kKindMask) == kMessage; }

// The number is no socket: another file has it.
long forget_kind(PollNotes* notes) {
  notes->kind.store(kUnknown, std::memory_order_relaxed);
  return kInKernel;
}

long read_here(int fd, PollNotes* notes, void* buf, size_t n) {
  auto at = [&](size_t done) { return static_cast<char*>(buf) + done; };
  return receive(
      fd, notes, low_water(fd, notes, n), Taking::Takes,
      [&](size_t done) -> long {
        iovec v{at(done), n - done};
        if (!takes_messages(notes)) return nowait(SYS_preadv2, fd, notes, EPOLLIN, &v, 1);
        long r = raw_syscall(SYS_recvfrom, fd, arg(at(done)), static_cast<long>(n - done), MSG_DONTWAIT, 0, 0);
        return r == -ENOTSOCK ? forget_kind(notes) : r;
      },
      [&](size_t done) { return REAL(read)(fd, at(done), n - done); });
}

// Passes on the result of a call that was made plainly.
ssize_t and_take_pipe(ssize_t r) {
  if (r < 0 && errno == EPIPE) {
    signal_take_pipe();
    errno = EPIPE;
  }
  return r;
}

Pipe pipe_of(const PollNotes* notes) { return takes_messages(notes) ? Pipe::Raised : Pipe::Kernel; }

long write_here(int fd, PollNotes* notes, const void* buf, size_t n) {
  constexpr size_t kMost = 0x7ffff000;  // the most that the kernel writes
  if (n > kMost) n = kMost;
  auto at = [&](size_t done) { return static_cast<const char*>(buf) + done; };
  return send_parts(
      fd, notes, 0, pipe_of(notes),
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
  bool limited = low_water_used.load(std::memory_order_relaxed);
  return receive(
      fd, notes, limited ? low_water(fd, notes, total_length(all, static_cast<size_t>(count))) : 0, Taking::Takes,
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
      fd, notes, 0, pipe_of(notes),
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
      // The kernel has read the pieces, so they can be read here.
      [&] { return total_length(all, static_cast<size_t>(count)); });
}

// Returns the notes of `fd`. Null: the plain call will do.
PollNotes* notes_for_transfer(int fd) {
  PollNotes* notes = notes_to_wait(fd);
  return notes && (kind_of(fd, notes) & kKindMask) < kPlain ? notes : nullptr;
}

long not_now() { return -EAGAIN; }

// Does read() and readv() on files that the poller has nothing to do with. These never try to read a part of a file. Other threads may use
// the same position, and could then read between the parts of one call.
template <class Plain, class Raw>
ssize_t read_plainly(int fd, uint32_t kind, Plain plain, Raw raw) {
  if (kind == kFile) return file_call(plain, raw, not_now);
  if (kind != kTerminal || is_ready(fd, EPOLLIN) || !has_slot_to_give()) return plain();
  Blocking blocking;
  return plain();
}

// Returns the notes of a file that is read or written at a position. Null: it is no file.
PollNotes* notes_of_file(int fd) {
  PollNotes* notes = notes_to_wait(fd);
  return notes && (kind_to_read(fd, notes) & kKindMask) == kFile ? notes : nullptr;
}

bool writes_wait(int fd) {  // without O_DIRECT, writes end in memory
  PollNotes* notes = notes_of_file(fd);
  return notes && is_direct(fd, notes);
}

// Reads what the kernel has in memory of a file. -EAGAIN if that is not all of what was asked for.
long read_from_memory(int fd, PollNotes* notes, const iovec* v, size_t n, off64_t at) {
  if (at < 0 || is_direct(fd, notes)) return -EAGAIN;  // it would wait; -1 would be the file's own position
  long r = raw_syscall(SYS_preadv2, fd, arg(v), static_cast<long>(n), at, 0, RWF_NOWAIT);
  if (r == -EOPNOTSUPP || r == -ENOSYS || r == -EPERM) return -EAGAIN;  // the file, the kernel or a filter does not know the call
  return r <= 0 || static_cast<size_t>(r) >= total_length(v, n) ? r : -EAGAIN;
}

// Called before a call that can only be made plainly. Waits until that has something to begin with. Returns 0, or the error to return. The
// caller has a GoesOn for `fd`.
long until_ready(int& fd, uint32_t events, unsigned how) {
  PollNotes* notes = notes_for_transfer(fd);
  if (!notes) return 0;
  // It waits once only, as the event that ends the wait may be one that poll() does not show.
  bool waited = false;
  auto look = [&]() -> long {
    if (waited || is_ready(fd, events)) return 0;
    waited = true;
    return -EAGAIN;
  };
  long r = wait_for_part(fd, notes, events, how | kRestarts | kAsks, look, [] { return 0; });
  bool nonblocking = r == -EAGAIN && notes->kind.load(std::memory_order_relaxed) & kNonblocking;
  return nonblocking ? 0 : r;  // the kernel finds out
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
  uint32_t kind = notes ? kind_to_read(fd, notes) & kKindMask : kUnknown;
  if (kind < kPlain) take_turns();
  if (!notes) return n ? read_at_once(fd, [&] { return REAL(read)(fd, buf, n); }) : REAL(read)(fd, buf, n);
  if (kind < kPlain) return with_errno(read_here(fd, notes, buf, n));
  return read_plainly(
      fd, kind, [&] { return REAL(read)(fd, buf, n); }, [&] { return program_syscall(SYS_read, fd, arg(buf), static_cast<long>(n)); });
}
FIBERTHREAD_ALIAS(__read, read);

// This is a cancellation point. libc's own __read_chk is one only from 2.36 on.
extern "C" ssize_t __read_chk(int fd, void* buf, size_t n, size_t size);
FIBERTHREAD_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t size) {
  return n > size ? REAL(__read_chk)(fd, buf, n, size) : read(fd, buf, n);
}

FIBERTHREAD_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  PollNotes* notes = n ? notes_to_wait(fd) : nullptr;
  uint32_t known = notes ? kind_of(fd, notes) : uint32_t{kPlain}, kind = known & kKindMask;
  if (kind < kPlain && !(known & kNoFile)) return with_errno(write_here(fd, notes, buf, n));
  if (kind != kFile || !is_direct(fd, notes)) return despite_others([&] { return REAL(write)(fd, buf, n); });
  return file_call([&] { return REAL(write)(fd, buf, n); }, [&] { return program_syscall(SYS_write, fd, arg(buf), static_cast<long>(n)); },
                   not_now);
}
FIBERTHREAD_ALIAS(__write, write);

FIBERTHREAD_EXPORT ssize_t readv(int fd, const iovec* v, int n) {
  PollNotes* notes = n > 0 ? notes_to_wait(fd) : nullptr;
  uint32_t kind = notes ? kind_to_read(fd, notes) & kKindMask : kUnknown;
  if (kind < kPlain) take_turns();
  if (!notes) return read_at_once(fd, [&] { return REAL(readv)(fd, v, n); });
  if (kind < kPlain) return with_errno(readv_here(fd, notes, v, n));
  return read_plainly(fd, kind, [&] { return REAL(readv)(fd, v, n); }, [&] { return program_syscall(SYS_readv, fd, arg(v), n); });
}

FIBERTHREAD_EXPORT ssize_t pread64(int fd, void* buf, size_t n, off64_t at) {
  PollNotes* notes = notes_of_file(fd);
  if (!notes) return REAL(pread64)(fd, buf, n, at);
  iovec v{buf, n};
  return file_call([&] { return REAL(pread64)(fd, buf, n, at); },
                   [&] { return program_syscall(SYS_pread64, fd, arg(buf), static_cast<long>(n), at); },
                   [&] { return read_from_memory(fd, notes, &v, 1, at); });
}
FIBERTHREAD_ALIAS(pread, pread64);
FIBERTHREAD_ALIAS(__pread64, pread64);

extern "C" ssize_t __pread64_chk(int fd, void* buf, size_t n, off64_t at, size_t size);
FIBERTHREAD_EXPORT ssize_t __pread64_chk(int fd, void* buf, size_t n, off64_t at, size_t size) {
  return n > size ? REAL(__pread64_chk)(fd, buf, n, at, size) : pread64(fd, buf, n, at);
}
FIBERTHREAD_ALIAS(__pread_chk, __pread64_chk);

FIBERTHREAD_EXPORT ssize_t preadv64(int fd, const iovec* v, int n, off64_t at) {
  PollNotes* notes = n > 0 ? notes_of_file(fd) : nullptr;
  if (!notes) return REAL(preadv64)(fd, v, n, at);
  return file_call([&] { return REAL(preadv64)(fd, v, n, at); }, [&] { return program_syscall(SYS_preadv, fd, arg(v), n, at, 0); },
                   [&] { return read_from_memory(fd, notes, v, static_cast<size_t>(n), at); });
}
FIBERTHREAD_ALIAS(preadv, preadv64);

FIBERTHREAD_EXPORT ssize_t pwrite64(int fd, const void* buf, size_t n, off64_t at) {
  if (!writes_wait(fd)) return REAL(pwrite64)(fd, buf, n, at);
  return file_call([&] { return REAL(pwrite64)(fd, buf, n, at); },
                   [&] { return program_syscall(SYS_pwrite64, fd, arg(buf), static_cast<long>(n), at); }, not_now);
}
FIBERTHREAD_ALIAS(pwrite, pwrite64);
FIBERTHREAD_ALIAS(__pwrite64, pwrite64);

FIBERTHREAD_EXPORT ssize_t pwritev64(int fd, const iovec* v, int n, off64_t at) {
  if (!writes_wait(fd)) return REAL(pwritev64)(fd, v, n, at);
  return file_call([&] { return REAL(pwritev64)(fd, v, n, at); }, [&] { return program_syscall(SYS_pwritev, fd, arg(v), n, at, 0); },
                   not_now);
}
FIBERTHREAD_ALIAS(pwritev, pwritev64);

FIBERTHREAD_EXPORT ssize_t writev(int fd, const iovec* v, int n) {
  PollNotes* notes = n > 0 ? notes_for_transfer(fd) : nullptr;
  return notes && !(kind_of(fd, notes) & kNoFile) ? with_errno(writev_here(fd, notes, v, n))
                                                  : despite_others([&] { return REAL(writev)(fd, v, n); });
}

FIBERTHREAD_EXPORT ssize_t sendfile(int out, int in, off_t* at, size_t n) noexcept {
  GoesOn whole(out);
  if (long r = until_ready(out, EPOLLOUT, 0)) return with_errno(r);
  return and_take_pipe(REAL(sendfile)(out, in, at, n));
}
FIBERTHREAD_ALIAS(sendfile64, sendfile);

FIBERTHREAD_EXPORT ssize_t splice(int in, off64_t* in_at, int out, off64_t* out_at, size_t n, unsigned flags) {
  GoesOn from(in), to(out);
  if (!(flags & SPLICE_F_NONBLOCK)) {
    if (long r = until_ready(in, EPOLLIN, kCancels)) return with_errno(r);
    if (long r = until_ready(out, EPOLLOUT, kCancels)) return with_errno(r);
  }
  return and_take_pipe(REAL(splice)(in, in_at, out, out_at, n, flags));
}

FIBERTHREAD_EXPORT ssize_t tee(int in, int out, size_t n, unsigned flags) {
  GoesOn from(in), to(out);
  if (!(flags & SPLICE_F_NONBLOCK)) {
    if (long r = until_ready(in, EPOLLIN, kCancels)) return with_errno(r);
    if (long r = until_ready(out, EPOLLOUT, kCancels)) return with_errno(r);
  }
  return and_take_pipe(REAL(tee)(in, out, n, flags));
}
