// SPDX-License-Identifier: MIT
// Calls that wait in the kernel for what epoll cannot report: other processes, locks, disks, names, lines. Calls that can ask without
// waiting do so first. Then their slot goes to other fibers at once (Blocking). A call that is not here loses its slot within a
// millisecond.
#include "shim/blocking.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "sched/arch/arch.h"
#include "sched/life/fork.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/parking_lot.h"

namespace fiberthread {

thread_local constinit uint8_t tls_file_calls __attribute__((tls_model("initial-exec"))) = 0;

bool has_slot_to_give() { return may_park() && !in_vfork_child(); }

namespace {

constexpr int kMostAtDisk = 64;
constexpr uint64_t kTurn = 100'000'000;  // ns
std::atomic<int> at_disk{0};
std::atomic<uint32_t> waiting{0};
// The caller's turn. A thread that is unwound out of its call (by a handler that jumps, or by asynchronous cancellation) keeps the turn for
// its next call, or until it ends.
thread_local constinit bool has_turn __attribute__((tls_model("initial-exec"))) = false;

bool try_disk() {
  int n = at_disk.load(std::memory_order_relaxed);
  while (n < kMostAtDisk)
    if (at_disk.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) return true;
  return false;
}

// Counts the reads that were slow. So many fast reads make the library forget that they were.
constexpr uint32_t kMemory = 16;
constexpr uint64_t kSlowUs = 1000;
std::atomic<uint32_t> slow_calls{0};

}  // namespace

bool take_disk_turn() {
  if (!has_slot_to_give()) return false;
  if (has_turn) return true;  // a handler has left, or has interrupted, the call that took it
  uint64_t deadline = 0;
  for (;;) {
    Busy busy;  // handlers run while it is in no queue, and each turn that is counted is noted
    if (try_disk()) {
      has_turn = true;
      break;
    }
    if (!deadline) deadline = deadline_in(kTurn);
    if (now_ns() >= deadline) {
      at_disk.fetch_add(1, std::memory_order_relaxed);
      has_turn = true;
      break;
    }
    // Sequentially consistent, as is the look at the number. A thread that leaves lowers the number, and then looks here.
    waiting.fetch_add(1, std::memory_order_seq_cst);
    Waiter w;
    park(&at_disk, w, [] { return at_disk.load(std::memory_order_seq_cst) >= kMostAtDisk; }, {"disk"}, deadline, kInterruptSafePoint);
    waiting.fetch_sub(1, std::memory_order_relaxed);
  }
  return true;
}

void leave_disk() {
  if (!has_turn) return;  // a handler's call has given it back
  Busy busy;
  has_turn = false;
  at_disk.fetch_sub(1, std::memory_order_seq_cst);
  if (waiting.load(std::memory_order_seq_cst)) unpark_waiters(&at_disk, 1);
}

bool files_are_slow() { return slow_calls.load(std::memory_order_relaxed); }
void note_file_time(uint64_t begun) {
  bool slow = cycles() - begun > kSlowUs * cycles_per_us;
  uint32_t n = slow_calls.load(std::memory_order_relaxed);
  if (__builtin_expect(slow || n, 0)) slow_calls.store(slow ? kMemory : n - 1, std::memory_order_relaxed);  // others' counts may be lost
}

FIBERTHREAD_IN_FORK_CHILD(EmbeddersThreads, blocking, [](FiberRecord*) {
  has_turn = false;
  at_disk.store(0, std::memory_order_relaxed);
  waiting.store(0, std::memory_order_relaxed);
})

namespace {

// Makes a call that is `likely` to wait. Results and errors are libc's.
template <class Call>
auto blocked_if(bool likely, Call call) {
  if (!likely || !has_slot_to_give()) return call();
  Blocking blocking;
  cancel_if_asynchronous();  // a libc that is asynchronous already does not look
  return call();
}

template <class Call>
auto blocked(Call call) {
  return blocked_if(true, call);
}

// Makes a call that waits for a disk. It is a cancellation point at its beginning only.
long at_the_disk(long nr, long a, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  test_cancel();
  return with_errno(wait_for_disk([&] { return program_syscall(nr, a, b, c, d, e, f); }));
}

// Returns true if the other end still has to take something.
bool line_is_busy(int fd) {
  int n = 0;
  return raw_syscall(SYS_ioctl, fd, TIOCOUTQ, arg(&n)) == 0 && n > 0;
}

bool is_numeric(const char* name) {
  char address[16];
  return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

// ---- processes ----

FIBERTHREAD_EXPORT pid_t wait4(pid_t pid, int* status, int options, struct rusage* usage) {
  if (options & WNOHANG || !has_slot_to_give()) return despite_others([&] { return REAL(wait4)(pid, status, options, usage); });
  pid_t r = REAL(wait4)(pid, status, options | WNOHANG, usage);
  return r != 0 ? r : blocked([&] { return despite_others([&] { return REAL(wait4)(pid, status, options, usage); }); });
}
FIBERTHREAD_EXPORT pid_t wait3(int* status, int options, struct rusage* usage) noexcept { return wait4(-1, status, options, usage); }
FIBERTHREAD_EXPORT pid_t waitpid(pid_t pid, int* status, int options) { return wait4(pid, status, options, nullptr); }
FIBERTHREAD_ALIAS(__waitpid, waitpid);
FIBERTHREAD_EXPORT pid_t wait(int* status) { return wait4(-1, status, 0, nullptr); }
extern "C" pid_t __wait(int* status);
FIBERTHREAD_EXPORT pid_t __wait(int* status) { return wait4(-1, status, 0, nullptr); }

FIBERTHREAD_EXPORT int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  siginfo_t now{};
  bool likely = !(options & WNOHANG) && has_slot_to_give() && REAL(waitid)(type, id, &now, options | WNOHANG | WNOWAIT) == 0 && !now.si_pid;
  return blocked_if(likely, [&] { return despite_others([&] { return REAL(waitid)(type, id, info, options); }); });
}

FIBERTHREAD_EXPORT int system(const char* command) {
  return blocked_if(command, [&] { return REAL(system)(command); });
}

// ---- locks of files ----

FIBERTHREAD_EXPORT int flock(int fd, int operation) noexcept {
  if (operation & LOCK_NB || !has_slot_to_give()) return REAL(flock)(fd, operation);
  int r = REAL(flock)(fd, operation | LOCK_NB);
  return r == 0 || errno != EWOULDBLOCK ? r : blocked([&] { return despite_others([&] { return REAL(flock)(fd, operation); }); });
}

FIBERTHREAD_EXPORT int lockf64(int fd, int command, off64_t size) {
  if (command != F_LOCK || !has_slot_to_give()) return REAL(lockf64)(fd, command, size);
  int r = REAL(lockf64)(fd, F_TLOCK, size);
  return r == 0 || (errno != EAGAIN && errno != EACCES)
             ? r
             : blocked([&] { return despite_others([&] { return REAL(lockf64)(fd, F_LOCK, size); }); });
}
FIBERTHREAD_ALIAS(lockf, lockf64);

// ---- System V's and POSIX's queues ----

FIBERTHREAD_EXPORT ssize_t msgrcv(int id, void* m, size_t n, long type, int flags) {
  if (flags & IPC_NOWAIT || !has_slot_to_give()) return REAL(msgrcv)(id, m, n, type, flags);
  ssize_t r = despite_others([&] { return REAL(msgrcv)(id, m, n, type, flags | IPC_NOWAIT); });
  return r >= 0 || errno != ENOMSG ? r : blocked([&] { return despite_others([&] { return REAL(msgrcv)(id, m, n, type, flags); }); });
}

FIBERTHREAD_EXPORT int msgsnd(int id, const void* m, size_t n, int flags) {
  if (flags & IPC_NOWAIT || !has_slot_to_give()) return REAL(msgsnd)(id, m, n, flags);
  int r = despite_others([&] { return REAL(msgsnd)(id, m, n, flags | IPC_NOWAIT); });
  return r == 0 || errno != EAGAIN ? r : blocked([&] { return despite_others([&] { return REAL(msgsnd)(id, m, n, flags); }); });
}

FIBERTHREAD_EXPORT int semtimedop(int id, sembuf* all, size_t n, const timespec* t) noexcept {
  if (!has_slot_to_give()) return REAL(semtimedop)(id, all, n, t);
  timespec none{}, left;
  if (t && !copy_user(&left, t)) return static_cast<int>(with_errno(-EFAULT));
  if (t && (!valid(left) || left.tv_sec < 0 || left.tv_sec > 4'000'000'000)) return REAL(semtimedop)(id, all, n, t);
  int64_t end = t ? static_cast<int64_t>(now_ns()) + left.tv_sec * kNsPerSec + left.tv_nsec : 0;
  int r = despite_others([&] { return REAL(semtimedop)(id, all, n, &none); });
  if (r == 0 || errno != EAGAIN) return r;
  return blocked([&] {
    return despite_others([&] {
      int64_t rest = t ? end - static_cast<int64_t>(now_ns()) : 0;
      if (t) left = rest > 0 ? timespec{rest / kNsPerSec, rest % kNsPerSec} : none;
      return REAL(semtimedop)(id, all, n, t ? &left : nullptr);
    });
  });
}
FIBERTHREAD_EXPORT int semop(int id, sembuf* all, size_t n) noexcept { return semtimedop(id, all, n, nullptr); }

FIBERTHREAD_EXPORT ssize_t mq_receive(mqd_t queue, char* m, size_t n, unsigned* priority) {
  return blocked_if(may_park() && !is_ready(queue, EPOLLIN),
                    [&] { return despite_others([&] { return REAL(mq_receive)(queue, m, n, priority); }); });
}
FIBERTHREAD_EXPORT ssize_t mq_timedreceive(mqd_t queue, char* m, size_t n, unsigned* priority, const timespec* t) {
  return blocked_if(may_park() && !is_ready(queue, EPOLLIN), [&] {
    return despite_others(
        [&] { return in_kernel_time(CLOCK_REALTIME, t, [&](auto t) { return REAL(mq_timedreceive)(queue, m, n, priority, t); }); });
  });
}
FIBERTHREAD_EXPORT int mq_send(mqd_t queue, const char* m, size_t n, unsigned priority) {
  return blocked_if(may_park() && !is_ready(queue, EPOLLOUT),
                    [&] { return despite_others([&] { return REAL(mq_send)(queue, m, n, priority); }); });
}
FIBERTHREAD_EXPORT int mq_timedsend(mqd_t queue, const char* m, size_t n, unsigned priority, const timespec* t) {
  return blocked_if(may_park() && !is_ready(queue, EPOLLOUT), [&] {
    return despite_others(
        [&] { return in_kernel_time(CLOCK_REALTIME, t, [&](auto t) { return REAL(mq_timedsend)(queue, m, n, priority, t); }); });
  });
}

// ---- lines ----

FIBERTHREAD_EXPORT int tcdrain(int fd) {
  return blocked_if(may_park() && line_is_busy(fd), [&] { return REAL(tcdrain)(fd); });
}
FIBERTHREAD_EXPORT int tcsetattr(int fd, int when, const termios* t) noexcept {
  return blocked_if(when != TCSANOW && may_park() && line_is_busy(fd), [&] { return REAL(tcsetattr)(fd, when, t); });
}
FIBERTHREAD_EXPORT int tcsendbreak(int fd, int duration) noexcept {
  return blocked([&] { return REAL(tcsendbreak)(fd, duration); });
}

// ---- names ----

FIBERTHREAD_EXPORT int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** result) {
  bool asks = name && !(hints && hints->ai_flags & AI_NUMERICHOST) && !is_numeric(name);
  return blocked_if(asks, [&] { return REAL(getaddrinfo)(name, service, hints, result); });
}
FIBERTHREAD_EXPORT int getnameinfo(const sockaddr* address, socklen_t size, char* name, socklen_t name_size, char* service,
                                   socklen_t service_size, int flags) {
  bool asks = name && !(flags & NI_NUMERICHOST);
  return blocked_if(asks, [&] { return REAL(getnameinfo)(address, size, name, name_size, service, service_size, flags); });
}
FIBERTHREAD_EXPORT hostent* gethostbyname(const char* name) {
  return blocked_if(!is_numeric(name), [&] { return REAL(gethostbyname)(name); });
}
FIBERTHREAD_EXPORT hostent* gethostbyname2(const char* name, int family) {
  return blocked_if(!is_numeric(name), [&] { return REAL(gethostbyname2)(name, family); });
}
FIBERTHREAD_EXPORT int gethostbyname_r(const char* name, hostent* h, char* buffer, size_t n, hostent** result, int* error) {
  return blocked_if(!is_numeric(name), [&] { return REAL(gethostbyname_r)(name, h, buffer, n, result, error); });
}
FIBERTHREAD_EXPORT int gethostbyname2_r(const char* name, int family, hostent* h, char* buffer, size_t n, hostent** result, int* error) {
  return blocked_if(!is_numeric(name), [&] { return REAL(gethostbyname2_r)(name, family, h, buffer, n, result, error); });
}
FIBERTHREAD_EXPORT hostent* gethostbyaddr(const void* address, socklen_t size, int family) {
  return blocked([&] { return REAL(gethostbyaddr)(address, size, family); });
}
FIBERTHREAD_EXPORT int gethostbyaddr_r(const void* address, socklen_t size, int family, hostent* h, char* buffer, size_t n,
                                       hostent** result, int* error) {
  return blocked([&] { return REAL(gethostbyaddr_r)(address, size, family, h, buffer, n, result, error); });
}

// ---- disks ----

FIBERTHREAD_EXPORT int fsync(int fd) { return static_cast<int>(at_the_disk(SYS_fsync, fd)); }
FIBERTHREAD_EXPORT int fdatasync(int fd) { return static_cast<int>(at_the_disk(SYS_fdatasync, fd)); }
FIBERTHREAD_EXPORT void sync() noexcept {
  wait_for_disk([] { return program_syscall(SYS_sync); });
}
FIBERTHREAD_EXPORT int syncfs(int fd) noexcept {
  return static_cast<int>(with_errno(wait_for_disk([&] { return program_syscall(SYS_syncfs, fd); })));
}
FIBERTHREAD_EXPORT int msync(void* from, size_t n, int flags) {
  if (!(flags & MS_SYNC)) return REAL(msync)(from, n, flags);
  return static_cast<int>(at_the_disk(SYS_msync, arg(from), static_cast<long>(n), flags));
}
FIBERTHREAD_EXPORT int sync_file_range(int fd, off64_t from, off64_t n, unsigned flags) {
  return static_cast<int>(at_the_disk(SYS_sync_file_range, fd, from, n, static_cast<long>(flags)));
}
FIBERTHREAD_EXPORT ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t n, unsigned flags) {
  return at_the_disk(SYS_copy_file_range, in, arg(in_at), out, arg(out_at), static_cast<long>(n), static_cast<long>(flags));
}
