// SPDX-License-Identifier: MIT
#include "shim/shared_use.h"

#include <linux/futex.h>
#include <pthread.h>

#include "sched/cord.h"
#include "sched/glibc/tcb.h"
#include "sched/worker.h"
#include "shim/futex.h"
#include "shim/real.h"
#include "shim/thread.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

// The kernel's struct robust_list_head. An entry is the address of a word that holds the next entry. The futex is at `offset` from the
// entry. The lowest bit of an entry says that its futex has priority inheritance. The list ends at its head.
struct RobustList {
  uintptr_t first;
  long offset;
  uintptr_t pending;  // being locked or unlocked
};
constexpr uintptr_t kInherits = 1;
constexpr int kLongest = 2048;  // the kernel follows at most so many entries
static_assert(sizeof(RobustList) == kRobustListSize && sizeof(RobustList) == sizeof(Worker::Thread::robust_list));

// The worker for whose kernel thread the fiber's list is registered. TLS belongs to the fiber.
constinit thread_local Worker* registered = nullptr;
constinit thread_local bool never = false;
// The fiber's tid if the kernel may know it as an owner from before it was a fiber. The child of a fork has another tid, so this does not
// count there.
constinit thread_local uint32_t owned_before = 0;

bool has_own_thread(FiberRecord* me) {
  Worker* own = me->run.bound.load(std::memory_order_relaxed);
  return own && own == registered && !never;
}

bool get_own_thread(FiberRecord* me) {
  if (has_own_thread(me)) return true;
  if (cord_of(me)) return false;  // the kernel thread is the cord's: other fibers with its tid would be taken for this one
  if (me->identity.is_main) sched_bind_to_initial();
  // A fiber that has failed here once keeps its virtual tid, because it may own mutexes by that. With another tid it could not unlock them.
  if (never || sched_bind(me) != 0) {
    never = true;
    return false;
  }
  Worker* own = me->run.bound.load(std::memory_order_relaxed);
  if (me->run.worker != own) return false;  // the caller is a signal handler, which stays where it is
  if (void* list = tcb_robust_list(me->memory.tcb)) raw_syscall(SYS_set_robust_list, arg(list), sizeof(RobustList));
  registered = own;
  return true;
}

// Learns where libc keeps account of priorities in the TCB. libc drops that account with its thread, so a later fiber in this block of
// memory must not find it.
void learn_ceilings() {
  static std::atomic<bool> learned{false};
  if (learned.load(std::memory_order_relaxed) || learned.exchange(true, std::memory_order_relaxed)) return;
  (void)REAL(pthread_mutex_init), (void)REAL(pthread_mutex_trylock), (void)REAL(pthread_mutex_unlock);
  Busy busy;
  tcb_learn([] {
    pthread_mutexattr_t a;
    pthread_mutex_t m;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_PROTECT);
    if (REAL(pthread_mutex_init)(&m, &a) == 0 && REAL(pthread_mutex_trylock)(&m) == 0) REAL(pthread_mutex_unlock)(&m);
  });
}

enum class Entry { Listed, Pending };  // Pending: being locked or unlocked

// Does what the kernel does for each entry.
void owner_died(uintptr_t entry, long offset, uint32_t tid, uint32_t other_tid, Entry kind) {
  auto* word = reinterpret_cast<uint32_t*>((entry & ~kInherits) + static_cast<uintptr_t>(offset));
  uint32_t now;
  if (reinterpret_cast<uintptr_t>(word) % sizeof *word || fiberthread_user_load(word, &now) != 0) return;
  uint32_t owner = now & FUTEX_TID_MASK;
  if (kind == Entry::Pending && now == 0) raw_syscall(SYS_futex, arg(word), FUTEX_WAKE, 1);  // the dead thread may have owed a wake-up
  while (owner != 0 && (owner == tid || owner == other_tid)) {
    uint32_t dead = (now & FUTEX_WAITERS) | FUTEX_OWNER_DIED;
    long changed = fiberthread_user_exchange(word, &now, dead);
    if (changed < 0) return;
    if (changed == 1) {
      owner = now & FUTEX_TID_MASK;
      continue;
    }
    if (now & FUTEX_WAITERS) {
      raw_syscall(SYS_futex, arg(word), FUTEX_WAKE, 1);
      pi_owner_died(word);
    }
    return;
  }
}

// Goes through the list. Only the kernel can release mutexes with inheritance, so these are put into `rest` if that is given.
void release_all(RobustList* head, uint32_t tid, uint32_t other_tid, RobustList* rest) {
  RobustList list;
  if (!head || !copy_user(&list, head)) return;
  uintptr_t* rest_end = rest ? &rest->first : nullptr;
  uintptr_t entry = list.first;
  for (int i = 0; i < kLongest && (entry & ~kInherits) && (entry & ~kInherits) != reinterpret_cast<uintptr_t>(head); i++) {
    uintptr_t next;
    if (!copy_user(&next, reinterpret_cast<uintptr_t*>(entry & ~kInherits))) break;
    if (entry & kInherits && rest) {
      *rest_end = entry;
      rest_end = reinterpret_cast<uintptr_t*>(entry & ~kInherits);
    } else if ((entry & ~kInherits) != (list.pending & ~kInherits)) {
      owner_died(entry, list.offset, tid, other_tid, Entry::Listed);
    }
    entry = next;
  }
  if (rest) *rest_end = reinterpret_cast<uintptr_t>(rest);
  if (list.pending) owner_died(list.pending, list.offset, tid, other_tid, Entry::Pending);
}

}  // namespace

uint32_t owner_tid(FiberRecord* me, Use use) {
  bool as_process = me->identity.is_main && use < Use::KernelOwns;
  return me->run.kernel || as_process || !has_own_thread(me) ? me->identity.id : static_cast<uint32_t>(registered->thread.tid);
}

AsKernelThread::AsKernelThread(Use use) {
  FiberRecord* me = self();
  if (me->run.kernel) {
    if (use >= Use::KernelOwns) owned_before = me->identity.id;
    return;
  }
  if (use >= Use::KernelOwns || (use == Use::Owns && !me->identity.is_main)) get_own_thread(me);
  mine_ = owner_tid(me, use);
  if (mine_ == me->identity.id) return;
  tid_ = tcb_tid(me->memory.tcb);
  before_ = *tid_;
  *tid_ = mine_;
  if (use == Use::Ceiling) learn_ceilings();
}

AsKernelThread::~AsKernelThread() {
  if (tid_ && *tid_ == mine_) *tid_ = before_;  // otherwise a handler has forked, and this is the child
}

void shared_scheduler_started() {
  if (owned_before == self()->identity.id) sched_bind_to_initial();
}

void shared_robust_owner_died(FiberRecord* me) {
  if (me->run.kernel) return;  // the kernel releases them
  release_all(static_cast<RobustList*>(own_robust_list(me)), me->identity.id, 0, nullptr);
  auto* head = static_cast<RobustList*>(tcb_robust_list(me->memory.tcb));
  Worker* own = has_own_thread(me) ? registered : nullptr;
  // These are TLS of the library, which is not reset with the block. When the next fiber has this block, the worker may be another fiber's.
  registered = nullptr;
  never = false;
  if (!head) return;
  if (head->first != reinterpret_cast<uintptr_t>(head) || head->pending) {
    RobustList* rest = own ? reinterpret_cast<RobustList*>(own->thread.robust_list) : nullptr;
    if (rest) *rest = {reinterpret_cast<uintptr_t>(rest), head->offset, 0};
    release_all(head, me->identity.id, own ? static_cast<uint32_t>(own->thread.tid) : 0, rest);
    head->first = reinterpret_cast<uintptr_t>(head);
    head->pending = 0;
    if (rest && rest->first != reinterpret_cast<uintptr_t>(rest)) {
      own->thread.owes_its_end = true;
      me->join.leaves_with = own;
      me->join.leaves_tid = static_cast<uint32_t>(own->thread.tid);
      raw_syscall(SYS_set_robust_list, arg(rest), sizeof *rest);
      return;
    }
  }
  if (own) raw_syscall(SYS_set_robust_list, 0, sizeof(RobustList));
}

void*& own_robust_list(FiberRecord* f) { return shim_share<void*, 112, 128>(f); }

}  // namespace fiberthread
