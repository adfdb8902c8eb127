// SPDX-License-Identifier: MIT
#include "sched/glibc/cancellation.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "sched/fiber.h"
#include "sched/glibc/processor.h"
#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/preempt.h"
#include "sched/spinlock.h"
#include "sched/syscall.h"

namespace fiberthread {

LibcCancelBit libc_cancel_asynchronous, libc_cancel_disabled;
LibcWait libc_wait;

namespace {

// Finds the bit that set(value, &old) sets. `cleared` is the setting without it. Other threads may change the caller's TCB meanwhile: they
// link theirs beside it, or request its cancellation. Then more than this bit changes, and the experiment is made again.
void find_bit(LibcCancelBit& bit, int (*set)(int, int*), int value, int cleared) {
  if (bit.offset.load(std::memory_order_acquire) >= 0) return;
  // The whole struct pthread is compared: glibc 2.34 and 2.35 have these two bits at its very end.
  unsigned char before[4096];
  const size_t size = tcb_size() < sizeof before ? tcb_size() : sizeof before;
  auto* tcb = static_cast<volatile unsigned char*>(self()->memory.tcb);
  Busy busy;
  constexpr int kMostTries = 1000;
  for (int tries = 0; tries < kMostTries; tries++) {
    int old, changes = 0;
    for (size_t i = 0; i < size; i++) before[i] = tcb[i];
    if (set(value, &old) != 0) return;
    int32_t at = -1;
    uint32_t changed = 0;
    for (size_t i = 0; i < size; i++) {
      uint32_t here = before[i] ^ tcb[i];
      if (!here) continue;
      changes += __builtin_popcount(here);
      at = static_cast<int32_t>(i);
      changed = here;
    }
    set(old, nullptr);
    if (old != cleared) return;
    if (changes != 1) continue;
    bit.bits.store(changed, std::memory_order_relaxed);
    bit.offset.store(at, std::memory_order_release);
    return;
  }
}

// What the signal has found. Written in its handler, on the thread that reads it.
struct Found {
  uintptr_t pc, back;
  bool asynchronous;
};
Found found;
// The thread that makes the experiment. Relaxed, as only that thread has to see itself there.
std::atomic<pthread_t> finder{0};
std::atomic<bool> looked{false};  // release: libc_wait is as it stays
SpinLock find_lock;

Found signal_in(void (*wait)(const sigset_t*), const sigset_t* mask) {
  found = {};
  if (raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), raw_syscall(SYS_gettid), kPreemptSignal) != 0) return found;
  // Another signal of that number, such as a tick, may end a wait first.
  constexpr int kMostWaits = 100;
  for (int i = 0; i < kMostWaits && !found.pc; i++) {
    errno = 0;
    wait(mask);
    if (errno != EINTR) break;
  }
  return found;
}

}  // namespace

void libc_find_cancel_bits(const LibcCancelCalls& libc) {
  find_bit(libc_cancel_disabled, libc.set_state, PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ENABLE);
  if (libc_cancel_asynchronous.offset.load(std::memory_order_acquire) >= 0) return;
  // With this type, libc would end a caller whose cancellation is requested.
  int state;
  if (libc.set_state(PTHREAD_CANCEL_DISABLE, &state) != 0) return;
  find_bit(libc_cancel_asynchronous, libc.set_type, PTHREAD_CANCEL_ASYNCHRONOUS, PTHREAD_CANCEL_DEFERRED);
  libc.set_state(state, nullptr);
}

void libc_find_wait(const LibcCancelCalls& libc) {
  if (looked.load(std::memory_order_acquire)) return;
  void* tcb = self()->memory.tcb;
  Busy busy;
  OwnCalls calls;
  SpinGuard guard(find_lock);
  if (looked.load(std::memory_order_relaxed)) return;
  int error = errno;
  uint64_t all = ~kTrapMask, before;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(&before), 8);
  // libc must take the caller for a thread that may be cancelled and is not. No other thread writes these bits meanwhile, because the first
  // pthread_cancel() comes here before it writes them, and all others wait for it.
  constexpr uint32_t kEnds = kLibcCanceled | kLibcExiting;
  uint32_t handling = __atomic_fetch_and(tcb_cancelhandling(tcb), ~kEnds, __ATOMIC_SEQ_CST) & kEnds;
  int state, type;
  libc.set_type(PTHREAD_CANCEL_DEFERRED, &type);
  libc.set_state(PTHREAD_CANCEL_ENABLE, &state);
  finder.store(pthread_self(), std::memory_order_relaxed);
  sigset_t mask;
  memset(&mask, 0, sizeof mask);
  uint64_t others = all & ~(uint64_t{1} << (kPreemptSignal - 1));
  memcpy(&mask, &others, sizeof others);
  Found a = signal_in(libc.wait, &mask), b = signal_in(libc.other_wait, &mask);
  finder.store(0, std::memory_order_relaxed);
  libc.set_state(state, nullptr);
  libc.set_type(type, nullptr);
  __atomic_fetch_or(tcb_cancelhandling(tcb), handling, __ATOMIC_SEQ_CST);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&before), 0, 8);
  errno = error;
  if (a.pc && a.pc == b.pc && !a.asynchronous && !b.asynchronous && glibc::is_system_call(a.pc - kSystemCallSize)) {
    constexpr uintptr_t kMost = 256;
    uintptr_t begin = glibc::called_before(a.back);
    // The range begins at libc's look for a request. A request that comes between the look and the call would be lost otherwise. If the
    // function's beginning is not found, the range is the call alone.
    if (a.pc - begin < kSystemCallSize || a.pc - begin > kMost) begin = a.pc - kSystemCallSize;
    libc_wait.begin.store(begin, std::memory_order_relaxed);
    libc_wait.end.store(a.pc, std::memory_order_release);
    preempt_only_asleep(begin, a.pc);
  }
  looked.store(true, std::memory_order_release);
}

bool libc_wait_probed(const ucontext_t* uc) {
  if (__builtin_expect(finder.load(std::memory_order_relaxed) != pthread_self(), 1)) return false;
  found = {interrupted_pc(uc), glibc::return_address(uc), libc_cancel_asynchronous.is_set(reinterpret_cast<void*>(pthread_self()))};
  return true;
}

bool libc_end_wait(void* tcb, ucontext_t* uc) {
  if (!libc_wait.holds(interrupted_pc(uc))) return false;
  uint32_t handling = __atomic_load_n(tcb_cancelhandling(tcb), __ATOMIC_SEQ_CST);
  if (!(handling & kLibcCanceled) || handling & kLibcExiting || libc_cancel_disabled.is_set(tcb)) return false;
  set_interrupted_pc(uc, libc_wait.end.load(std::memory_order_relaxed));
  set_interrupted_result(uc, -EINTR);
  return true;
}

FIBERTHREAD_IN_FORK_CHILD(Libc, libc_waits, [](FiberRecord*) {
  find_lock.reset();
  if (finder.load(std::memory_order_relaxed)) finder.store(0, std::memory_order_relaxed);  // else the page stays the parent's
})

}  // namespace fiberthread
