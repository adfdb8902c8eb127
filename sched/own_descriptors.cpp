// SPDX-License-Identifier: MIT
#include "sched/own_descriptors.h"

#include <fcntl.h>

#include "sched/life/fork.h"
#include "sched/syscall.h"

namespace fiberthread {

namespace {
std::atomic<int> process{0};
std::atomic<std::atomic<int>*> own[32];   // the variables that have their numbers; the library has fewer
std::atomic<int> lowest_own{0x7fffffff};  // no own descriptor has ever been below this number

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

FIBERTHREAD_IN_FORK_CHILD(Descriptors, descriptors, [](FiberRecord*) { own_fd_new_process(); })

bool is_own_fd(int fd) {
  if (fd < lowest_own.load(std::memory_order_relaxed)) return false;
  for (auto& o : own) {
    auto* where = o.load(std::memory_order_acquire);
    if (where && where->load(std::memory_order_relaxed) == fd) return fd >= 0 && !another_process();
  }
  return false;
}

int own_fd_next(int fd) {
  int next = -1;
  for (auto& o : own) {
    auto* where = o.load(std::memory_order_acquire);
    int n = where ? where->load(std::memory_order_relaxed) : -1;
    if (n >= fd && (next < 0 || n < next)) next = n;
  }
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
}

}  // namespace fiberthread
