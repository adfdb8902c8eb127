// SPDX-License-Identifier: MIT
// The set*id family. The kernel keeps user and group ids per kernel thread; POSIX has them per process.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "sched/life/fork.h"
#include "sched/preempt.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "fiberthread/fiber_mutex.h"

namespace fiberthread {
namespace {

// libc would signal the threads that it knows, and take the TCBs of fibers for threads. So the library makes these calls itself: on the
// caller's kernel thread, and then on each other one, in a handler of the signal that libc uses for this. No thread blocks that signal.
// libc's handler is back afterwards, also in the child of a fork that comes in between.

struct Thread {
  std::atomic<int32_t> tid;
  std::atomic<uint32_t> obeyed;
};

struct Order {
  long number, a, b, c;
  std::atomic<Thread*> threads;  // who shall obey; null: nobody, what comes is late
  std::atomic<size_t> count;
  std::atomic<uint32_t> obeyed;  // futex: how many have
  std::atomic<bool> failed;
};
constexpr size_t kMaxThreads = 1 << 20;
constinit Order order{};
// Of zeros, and never destroyed: threads may change ids until the process is gone.
alignas(FiberMutex) constinit unsigned char ids_mutex_memory[sizeof(FiberMutex)] = {};
FiberMutex& ids_mutex = reinterpret_cast<FiberMutex&>(ids_mutex_memory);

// libc's handler. It is known from the first time on that ours is installed. Under ids_mutex.
constinit kernel_handler libcs_handler{};

void on_order(int, siginfo_t*, void*) {
  auto tid = static_cast<int32_t>(raw_syscall(SYS_gettid));
  Thread* threads = order.threads.load(std::memory_order_acquire);
  size_t n = threads ? order.count.load(std::memory_order_acquire) : 0;  // with the release there, the order is seen
  for (size_t i = n; i-- > 0;) {
    Thread& t = threads[i];
    if (t.tid.load(std::memory_order_relaxed) != tid) continue;
    if (t.obeyed.exchange(1, std::memory_order_relaxed)) return;
    if (raw_syscall(order.number, order.a, order.b, order.c) != 0) order.failed.store(true, std::memory_order_relaxed);
    order.obeyed.fetch_add(1, std::memory_order_release);
    futex_wake(&order.obeyed, 1);
    return;
  }
}

// Makes the threads from `first` on obey, all at once.
void command(int pid, Thread* threads, size_t first, size_t count) {
  order.obeyed.store(0, std::memory_order_relaxed);
  order.count.store(count, std::memory_order_release);
  size_t gone = 0;
  auto missing = [&](Thread& t, int sig) {
    if (raw_syscall(SYS_tgkill, pid, t.tid.load(std::memory_order_relaxed), sig) == 0) return;
    if (!t.obeyed.exchange(1, std::memory_order_relaxed)) gone++;  // it has ended
  };
  for (size_t i = first; i < count; i++) missing(threads[i], kLibcSetxidSignal);
  uint32_t n;
  while ((n = order.obeyed.load(std::memory_order_acquire)) + gone < count - first) {
    if (futex_wait(&order.obeyed, n, now_ns() + 100'000'000) != -ETIMEDOUT) continue;
    for (size_t i = first; i < count; i++)
      if (!threads[i].obeyed.load(std::memory_order_relaxed)) missing(threads[i], 0);
  }
}

// As in libc: a process whose threads have different ids must not go on.
[[noreturn]] void end_process() {
  static const char kText[] = "fiberthread: not all threads could change their ids, so the process is aborted\n";
  raw_syscall(SYS_write, 2, arg(kText), sizeof kText - 1);
  abort();
}

// Threads that we did not make (libc's helpers) are found only here.
template <class Visit>
void each_listed_thread(Visit visit) {
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/self/task"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  alignas(8) char buffer[1024];  // stacks may be small
  long n;
  while ((n = raw_syscall(SYS_getdents64, fd, arg(buffer), sizeof buffer)) > 0)
    for (long at = 0; at < n;) {
      struct Entry {
        uint64_t ino, off;
        uint16_t length;
        unsigned char type;
        char name[];
      };
      auto* e = reinterpret_cast<Entry*>(buffer + at);
      int32_t tid = 0;
      for (const char* p = e->name; *p >= '0' && *p <= '9'; p++) tid = tid * 10 + (*p - '0');
      if (tid) visit(tid);
      at += e->length;
    }
  raw_syscall(SYS_close, fd);
}

long everywhere(long number, long a, long b, long c) {
  long r;
  bool failed = false;
  {
    Busy busy;  // stays on this kernel thread, and no handler that changes ids comes in while we hold the lock
    ids_mutex.lock();
    // Mapped before the first thread has other ids, because there is no way back from there.
    char* mem = map_memory(kMaxThreads * sizeof(Thread), PROT_READ | PROT_WRITE, MAP_NORESERVE);
    r = mem ? raw_syscall(number, a, b, c) : -EAGAIN;
    if (r == 0) {
      raw_syscall(SYS_rt_sigaction, kLibcSetxidSignal, 0, arg(&libcs_handler), sizeof libcs_handler.mask);
      install_kernel_handler(kLibcSetxidSignal, on_order);
      order.number = number;
      order.a = a;
      order.b = b;
      order.c = c;
      int pid = static_cast<int>(raw_syscall(SYS_getpid));
      auto* threads = reinterpret_cast<Thread*>(mem);
      order.count.store(0, std::memory_order_relaxed);
      order.threads.store(threads, std::memory_order_release);
      size_t known = 1;
      threads[0].tid.store(static_cast<int32_t>(raw_syscall(SYS_gettid)), std::memory_order_relaxed);
      threads[0].obeyed.store(1, std::memory_order_relaxed);
      // Threads made meanwhile have the ids of their makers. Once none is left that has not obeyed, no maker is.
      for (;;) {
        size_t count = known;
        auto look = [&](int32_t tid) {
          for (size_t i = 0; i < count; i++)
            if (threads[i].tid.load(std::memory_order_relaxed) == tid) return;
          if (tid > 0 && count < kMaxThreads) threads[count++].tid.store(tid, std::memory_order_relaxed);
        };
        for (Worker* w = all_workers(); w; w = w->thread.all_next) look(__atomic_load_n(&w->thread.tid, __ATOMIC_ACQUIRE));
        look(sysmon_tid());
        each_listed_thread(look);
        if (count == known) break;
        command(pid, threads, known, count);
        known = count;
      }
      order.threads.store(nullptr, std::memory_order_release);
      failed = order.failed.load(std::memory_order_relaxed);
      restore_kernel_handler(kLibcSetxidSignal, libcs_handler);
    }
    if (mem) unmap_memory(mem, kMaxThreads * sizeof(Thread));
    ids_mutex.unlock();
  }
  if (failed) end_process();  // without the lock and not Busy: the program may have a handler of SIGABRT
  if (r == 0) return 0;
  errno = static_cast<int>(-r);
  return -1;
}

// libc's calls will do while it knows all threads, and in the child of a vfork, which is one of its own.
bool by_libc() { return !sched_started() || in_vfork_child(); }

}  // namespace

// A thread of the parent may have been changing the ids. No thread of the child would put libc's handler back, and libc would wait for ever
// for what its handler does. The kernel copies handlers before memory, so only the kernel knows which of the two is installed in the child.
FIBERTHREAD_IN_FORK_CHILD(EmbeddersThreads, ids, [](FiberRecord*) {
  new (&ids_mutex) FiberMutex;
  if (Thread* threads = order.threads.exchange(nullptr, std::memory_order_relaxed)) unmap_memory(threads, kMaxThreads * sizeof(Thread));
  if (!libcs_handler.handler) return;
  kernel_handler now;
  raw_syscall(SYS_rt_sigaction, kLibcSetxidSignal, 0, arg(&now), sizeof now.mask);
  if (now.handler == on_order) restore_kernel_handler(kLibcSetxidSignal, libcs_handler);
})

}  // namespace fiberthread

using namespace fiberthread;

#define SET_IDS(name, parameters, arguments, number, a, b, c) \
  FIBERTHREAD_EXPORT int name parameters noexcept { \
    if (by_libc()) return REAL(name) arguments; \
    return static_cast<int>(everywhere(number, a, b, c)); \
  }

// (uid_t)-1 as a long must have its upper half clear or set alike: the kernel takes 32 bits.
SET_IDS(setuid, (uid_t u), (u), SYS_setuid, u, 0, 0)
SET_IDS(setgid, (gid_t g), (g), SYS_setgid, g, 0, 0)
SET_IDS(setreuid, (uid_t r, uid_t e), (r, e), SYS_setreuid, r, e, 0)
SET_IDS(setregid, (gid_t r, gid_t e), (r, e), SYS_setregid, r, e, 0)
SET_IDS(setresuid, (uid_t r, uid_t e, uid_t s), (r, e, s), SYS_setresuid, r, e, s)
SET_IDS(setresgid, (gid_t r, gid_t e, gid_t s), (r, e, s), SYS_setresgid, r, e, s)
SET_IDS(setgroups, (size_t n, const gid_t* list), (n, list), SYS_setgroups, static_cast<long>(n), arg(list), 0)

// Alone in the family, these two do not take -1 for "as it is".
FIBERTHREAD_EXPORT int seteuid(uid_t e) noexcept {
  if (by_libc()) return REAL(seteuid)(e);
  if (e == static_cast<uid_t>(-1)) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(everywhere(SYS_setresuid, -1, e, -1));
}
FIBERTHREAD_EXPORT int setegid(gid_t e) noexcept {
  if (by_libc()) return REAL(setegid)(e);
  if (e == static_cast<gid_t>(-1)) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(everywhere(SYS_setresgid, -1, e, -1));
}

// libc's would call its own setgroups.
FIBERTHREAD_EXPORT int initgroups(const char* user, gid_t group) {
  if (by_libc()) return REAL(initgroups)(user, group);
  int room = 64;
  for (;;) {
    auto* list = static_cast<gid_t*>(malloc(static_cast<size_t>(room) * sizeof(gid_t)));
    if (!list) {
      errno = ENOMEM;
      return -1;
    }
    int n = room;
    if (getgrouplist(user, group, list, &n) >= 0) {
      // More than the kernel takes are left out, as libc does.
      long most = sysconf(_SC_NGROUPS_MAX);
      if (most > 0 && n > most) n = static_cast<int>(most);
      int r = setgroups(static_cast<size_t>(n), list);
      free(list);
      return r;
    }
    free(list);
    room = n > room ? n : room * 2;
  }
}
