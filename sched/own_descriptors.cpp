// SPDX-License-Identifier: MIT
#include "sched/own_descriptors.h"

#include <fcntl.h>

#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/syscall.h"

namespace fiberthread {

namespace {
std::atomic<int> process{0};
std::atomic<std::atomic<int>*> own[32];   // the variables that have their numbers; the library has fewer
std::atomic<int> lowest_own{0x7fffffff};  // no own descriptor has ever been below this number

// Files of the program's that are kept for fibers.
struct Kept {
  std::atomic<int> number;  // 0: free, -1: it is being kept or let go
  std::atomic<const FiberRecord*> keeper;
};
constexpr uint32_t kMostKept = 4096;
FIBERTHREAD_LARGE Kept kept[kMostKept];
std::atomic<uint32_t> kept_now{0};   // in use
std::atomic<uint32_t> kept_most{0};  // no entry from this index on has ever been used

// Calls visit(entry, number) for each kept file, until it returns true.
template <class Visit>
void each_kept(Visit visit) {
  // Relaxed: a caller that is to know of a number has got it from the thread that kept it.
  if (kept_now.load(std::memory_order_relaxed) == 0) return;
  uint32_t n = kept_most.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++)
    if (int number = kept[i].number.load(std::memory_order_acquire); number > 0 && visit(kept[i], number)) return;
}

// Ends the entry. The number may be kept again as soon as it is closed, so the entry must not have it any more then.
template <class Close>
bool forget(Kept& k, int number, Close close) {
  if (!k.number.compare_exchange_strong(number, -1, std::memory_order_acq_rel, std::memory_order_relaxed)) return false;
  close(number);
  k.number.store(0, std::memory_order_release);
  kept_now.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void keep(std::atomic<int>& in, int fd) {
  int lowest = lowest_own.load(std::memory_order_relaxed);
  while (fd < lowest && !lowest_own.compare_exchange_weak(lowest, fd, std::memory_order_relaxed)) {
  }
  in.store(fd, std::memory_order_release);
}
}  // namespace

void know_process() {
  if (!process.load(std::memory_order_relaxed)) process.store(static_cast<int>(raw_syscall(SYS_getpid)), std::memory_order_relaxed);
}
bool another_process() { return static_cast<int>(raw_syscall(SYS_getpid)) != process.load(std::memory_order_relaxed); }

void own_fd_new_process() { process.store(static_cast<int>(raw_syscall(SYS_getpid)), std::memory_order_relaxed); }

FIBERTHREAD_IN_FORK_CHILD(Descriptors, descriptors, [](FiberRecord*) {
  own_fd_new_process();
  each_kept([](Kept& k, int number) {
    raw_syscall(SYS_close, number);
    k.number.store(0, std::memory_order_relaxed);
    return false;
  });
  // An entry that was being made is lost, and so may its descriptor be.
  kept_now.store(0, std::memory_order_relaxed);
})

bool is_own_fd(int fd) {
  if (fd < lowest_own.load(std::memory_order_relaxed)) return false;
  for (auto& o : own) {
    auto* where = o.load(std::memory_order_acquire);
    if (where && where->load(std::memory_order_relaxed) == fd) return fd >= 0 && !another_process();
  }
  bool is_kept = false;
  each_kept([&](Kept&, int number) { return is_kept = number == fd; });
  return is_kept && !another_process();
}

int own_fd_next(int fd) {
  int next = -1;
  for (auto& o : own) {
    auto* where = o.load(std::memory_order_acquire);
    int n = where ? where->load(std::memory_order_relaxed) : -1;
    if (n >= fd && (next < 0 || n < next)) next = n;
  }
  each_kept([&](Kept&, int n) {
    if (n >= fd && (next < 0 || n < next)) next = n;
    return false;
  });
  return next >= 0 && another_process() ? -1 : next;
}

void own_fd_take(long fd, std::atomic<int>& to) {
  if (fd < 0) return;
  know_process();
  bool known = false;
  for (auto& o : own) {
    std::atomic<int>* none = nullptr;
    known = o.load(std::memory_order_relaxed) == &to || o.compare_exchange_strong(none, &to, std::memory_order_acq_rel);
    if (known) break;
  }
  if (!known) {
    raw_syscall(SYS_close, fd);
    return;
  }
  long high = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kOwnFdsFrom);
  if (high >= 0) raw_syscall(SYS_close, fd);
  keep(to, static_cast<int>(high >= 0 ? high : fd));
}

void own_fd_close(std::atomic<int>& mine) {
  if (mine.load(std::memory_order_relaxed) < 0) return;  // in the child of a fork, a write would cost a page
  int fd = mine.exchange(-1, std::memory_order_relaxed);
  if (fd >= 0) raw_syscall(SYS_close, fd);
}

void own_fd_make_way(int fd) {
  for (auto& o : own) {
    auto* where = o.load(std::memory_order_acquire);
    if (!where || where->load(std::memory_order_relaxed) != fd || another_process()) continue;
    long to = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, fd + 1);
    if (to < 0) to = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kOwnFdsFrom);
    if (to >= 0) keep(*where, static_cast<int>(to));
  }
  // The fiber that waits for a kept file gets another duplicate, as for any descriptor that is replaced.
  each_kept([&](Kept& k, int number) { return number == fd && !another_process() && forget(k, number, [](int) {}); });
}

int own_fd_keep(int fd, const FiberRecord* keeper) {
  for (uint32_t i = 0; i < kMostKept; i++) {
    int none = 0;
    if (kept[i].number.load(std::memory_order_relaxed) != 0 ||
        !kept[i].number.compare_exchange_strong(none, -1, std::memory_order_acquire, std::memory_order_relaxed))
      continue;
    long number = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kOwnFdsFrom);
    if (number < 0) number = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);  // the limit is low
    if (number < 0) {
      kept[i].number.store(0, std::memory_order_release);
      return -1;
    }
    for (uint32_t most = kept_most.load(std::memory_order_relaxed);
         most <= i && !kept_most.compare_exchange_weak(most, i + 1, std::memory_order_release, std::memory_order_relaxed);) {
    }
    kept[i].keeper.store(keeper, std::memory_order_relaxed);
    kept_now.fetch_add(1, std::memory_order_relaxed);
    keep(kept[i].number, static_cast<int>(number));
    return static_cast<int>(number);
  }
  return -1;
}

void own_fd_let_go(int fd) {
  each_kept([&](Kept& k, int number) { return number == fd && forget(k, number, [](int n) { raw_syscall(SYS_close, n); }); });
}

int own_fd_next_kept(int from, const FiberRecord* keeper) {
  int next = -1;
  each_kept([&](Kept& k, int n) {
    if (k.keeper.load(std::memory_order_relaxed) == keeper && n >= from && (next < 0 || n < next)) next = n;
    return false;
  });
  return next;
}

}  // namespace fiberthread
