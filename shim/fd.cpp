// SPDX-License-Identifier: MIT
// The life of descriptors. The poller has to know when a number is closed or given to another file. Programs that close descriptors which
// they do not know must not close the library's own.
#include <errno.h>
#include <fcntl.h>
#include <linux/vt.h>
#include <mqueue.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "sched/asleep.h"
#include "sched/own_descriptors.h"
#include "sched/syscall.h"
#include "sched/scheduler.h"
#include "shim/blocking.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/io.h"
#include "shim/process.h"
#include "shim/real.h"
#include "shim/signal.h"

namespace fiberthread {
namespace {

// Surrounds a call that ends the life of `fd`.
class Closing {
 public:
  explicit Closing(int fd) : fd_(fd) { poll_closing(fd); }
  ~Closing() { poll_closed(fd_); }
  Closing(const Closing&) = delete;

 private:
  int fd_;
};

long duplicate(long nr, int from, int to, int flags) {
  // A descriptor is replaced only if `from` can be duplicated.
  if (from == to || raw_syscall(SYS_fcntl, from, F_GETFD) < 0) return program_syscall(nr, from, to, flags);
  if (is_own_fd(to)) own_fd_make_way(to);
  Closing closing(to);
  return program_syscall(nr, from, to, flags);
}

// Closes all descriptors of the range except our own.
long close_range_here(unsigned first, unsigned last, int flags) {
  long r = 0;
  unsigned from = first;
  while (r == 0) {
    int mine = from <= 0x7fffffff ? own_fd_next(static_cast<int>(from)) : -1;
    bool last_part = mine < 0 || static_cast<unsigned>(mine) > last;
    unsigned to = last_part ? last : static_cast<unsigned>(mine) - 1;
    if (from <= to || (last_part && from == first)) r = program_syscall(SYS_close_range, from, to, flags);
    if (last_part || static_cast<unsigned>(mine) == last) break;
    from = static_cast<unsigned>(mine) + 1;
  }
  return r;
}

int closing_stream(FILE* f) {
  int error = errno, fd = fileno(f);  // -1 for a stream in memory
  errno = error;
  return fd;
}

// Called when O_NONBLOCK or O_DIRECT may have changed.
void forget_flags(int fd) {
  if (!sched_started()) return;
  if (PollNotes* notes = poll_notes(fd)) notes->kind.fetch_and(~uint32_t{kNonblocking | kDirectKnown | kDirect}, std::memory_order_relaxed);
  socket_options_changed();
}

}  // namespace

void fd_init() {
  (void)REAL(close);
  (void)REAL(fcntl);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int close(int fd) {
  if (is_own_fd(fd)) return static_cast<int>(with_errno(-EBADF));
  Closing closing(fd);
  return REAL(close)(fd);
}
FIBERTHREAD_ALIAS(__close, close);

FIBERTHREAD_EXPORT int mq_close(mqd_t queue) noexcept {
  Closing closing(queue);
  return REAL(mq_close)(queue);
}

FIBERTHREAD_EXPORT int mq_notify(mqd_t queue, const sigevent* event) noexcept {
  if (event) asleep_make_no_copies();
  return REAL(mq_notify)(queue, event);
}

FIBERTHREAD_EXPORT int dup2(int from, int to) noexcept {
#ifdef SYS_dup2
  return static_cast<int>(with_errno(duplicate(SYS_dup2, from, to, 0)));
#else
  if (from == to) return REAL(dup2)(from, to);
  return static_cast<int>(with_errno(duplicate(SYS_dup3, from, to, 0)));
#endif
}
FIBERTHREAD_ALIAS(__dup2, dup2);

FIBERTHREAD_EXPORT int dup3(int from, int to, int flags) noexcept {
  return static_cast<int>(with_errno(duplicate(SYS_dup3, from, to, flags)));
}

FIBERTHREAD_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  // With flags, the call only marks descriptors, as ours are marked, or closes them for this kernel thread alone.
  if (flags || first > last) return REAL(close_range)(first, last, flags);
  poll_closing_range(first, last);
  long r = close_range_here(first, last, flags);
  poll_closed_range(first, last);
  return static_cast<int>(with_errno(r));
}

FIBERTHREAD_EXPORT void closefrom(int first) noexcept {
  if (first < 0) first = 0;
  auto from = static_cast<unsigned>(first);
  poll_closing_range(from, ~0u);
  long r = close_range_here(from, ~0u, 0);
  if (r < 0 && own_fd_next(first) < 0) {
    REAL(closefrom)(first);
  } else if (r < 0) {  // an old kernel or a filter refused
    int most = static_cast<int>(sysconf(_SC_OPEN_MAX));
    for (int fd = first; fd < most; fd++)
      if (!is_own_fd(fd)) raw_syscall(SYS_close, fd);
  }
  poll_closed_range(from, ~0u);
}

FIBERTHREAD_EXPORT int fclose(FILE* f) {
  Closing closing(closing_stream(f));
  return REAL(fclose)(f);
}

FIBERTHREAD_EXPORT int pclose(FILE* f) {
  Closing closing(closing_stream(f));
  if (!has_slot_to_give()) return REAL(pclose)(f);
  Blocking blocking;
  return REAL(pclose)(f);
}

FIBERTHREAD_EXPORT FILE* freopen(const char* path, const char* mode, FILE* f) {
  Closing closing(closing_stream(f));
  return REAL(freopen)(path, mode, f);
}

FIBERTHREAD_EXPORT FILE* freopen64(const char* path, const char* mode, FILE* f) {
  Closing closing(closing_stream(f));
  return REAL(freopen64)(path, mode, f);
}

FIBERTHREAD_EXPORT int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  long argument = va_arg(list, long);
  va_end(list);
  if ((command == F_SETLKW || command == F_OFD_SETLKW) && has_slot_to_give()) {
    int r = REAL(fcntl)(fd, command == F_SETLKW ? F_SETLK : F_OFD_SETLK, argument);
    if (r == 0 || (errno != EAGAIN && errno != EACCES)) return r;
    Blocking blocking;
    return despite_others([&] { return REAL(fcntl)(fd, command, argument); });
  }
  if (command == F_SETOWN_EX) return set_owner(fd, reinterpret_cast<const f_owner_ex*>(argument));
  if (command == F_GETOWN_EX) return get_owner(fd, reinterpret_cast<f_owner_ex*>(argument));
  // If a file has no owner, these make the calling kernel thread the one that gets the signals. It may end before the fiber does.
  bool makes_owner = (command == F_SETLEASE && argument != F_UNLCK) || command == F_NOTIFY;
  makes_owner = makes_owner && has_slot_to_give() && REAL(fcntl)(fd, F_GETOWN) == 0;
  int r = REAL(fcntl)(fd, command, argument);
  if (command == F_SETFL) forget_flags(fd);
  if (makes_owner && r == 0) REAL(fcntl)(fd, F_SETOWN, getpid());
  return r;
}
FIBERTHREAD_ALIAS(fcntl64, fcntl);
FIBERTHREAD_ALIAS(__fcntl, fcntl);

FIBERTHREAD_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  long argument = va_arg(list, long);
  va_end(list);
  // These wait for a line, or for the user.
  bool waits = request == TCSBRK || request == TCSBRKP || request == TCSETSW || request == TCSETSF || request == TIOCMIWAIT ||
               request == VT_WAITACTIVE;
  if (waits && has_slot_to_give()) {
    Blocking blocking;
    return REAL(ioctl)(fd, request, argument);
  }
  int r = REAL(ioctl)(fd, request, argument);
  if (request == FIONBIO) forget_flags(fd);
  return r;
}
