// SPDX-License-Identifier: MIT
#include "sched/glibc/thread_list.h"

#include "sched/glibc/layout.h"

namespace fiberthread {
namespace glibc {
namespace {

// libc's low-level lock: 0 is free, 1 taken, 2 taken with waiters.
void list_lock() {
  int zero = 0;
  if (layout.list_lock->compare_exchange_strong(zero, 1, std::memory_order_acquire)) return;
  while (layout.list_lock->exchange(2, std::memory_order_acquire) != 0) futex_wait(layout.list_lock, 2);
}

void list_unlock() {
  if (layout.list_lock->exchange(0, std::memory_order_release) == 2) futex_wake(layout.list_lock, 1);
}

}  // namespace

void link_thread(char* pd) {
  char* node = pd + layout.list;
  list_lock();
  char* first = at<char*>(layout.stack_user, layout.list_next);
  at<char*>(node, layout.list_next) = first;
  at<char*>(node, layout.list_prev) = layout.stack_user;
  at<char*>(first, layout.list_prev) = node;
  std::atomic_thread_fence(std::memory_order_release);  // libc walks the list forward without the lock in dlopen
  at<char*>(layout.stack_user, layout.list_next) = node;
  list_unlock();
}

void unlink_thread(char* pd) {
  char* node = pd + layout.list;
  list_lock();
  char* next = at<char*>(node, layout.list_next);
  char* prev = at<char*>(node, layout.list_prev);
  at<char*>(next, layout.list_prev) = prev;
  at<char*>(prev, layout.list_next) = next;
  list_unlock();
}

}  // namespace glibc

void tcb_lock_for_fork() {
  if (glibc::layout.list_lock) glibc::list_lock();
}
void tcb_unlock_after_fork() {
  if (glibc::layout.list_lock) glibc::list_unlock();
}

}  // namespace fiberthread
