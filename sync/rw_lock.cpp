// SPDX-License-Identifier: MIT
#include "fiberthread/rw_lock.h"

#include "sync/checks.h"
#include "sync/park_error.h"

namespace fiberthread {
namespace {

enum Kind : uint32_t { kReads, kWrites };  // Waiter::tag

// Takes the readers at the head of the queue, up to the next writer. Returns their number.
uint64_t take_readers(LockedQueue& q, WakeList& list) {
  uint64_t n = 0;
  for (; q.first() && q.first()->tag == kReads; n++) list.add(q, *q.first());
  return n;
}

}  // namespace

RwLock::~RwLock() {
  if (!kDebugChecks) return;
  uint64_t w = word_.load(std::memory_order_relaxed);
  check_unused(w, "RwLock", this);
  check((w & ~kWaiting) == 0, "RwLock", this, "is destroyed while it is locked");
  word_.store(kDestroyedWord, std::memory_order_relaxed);
}

int RwLock::lock_slow(bool writer, uint64_t deadline_ns, uint32_t ends) {
  check(word_.load(std::memory_order_relaxed) != kDestroyedWord, "RwLock", this, "is locked after it was destroyed");
  Waiter w;
  w.tag = writer ? kWrites : kReads;
  {
    LockedQueue q(this);
    uint64_t now = word_.load(std::memory_order_relaxed);
    for (;;) {
      uint64_t held = now & ~kWaiting;
      bool free = !q.first() && (writer ? held == 0 : !(held & kWriter));
      if (free) {  // `waiting` was left over, or the lock was unlocked just now
        if (word_.compare_exchange_weak(now, held + (writer ? kWriter : kReader), std::memory_order_acquire, std::memory_order_relaxed))
          return 0;
      } else if (now & kWaiting || word_.compare_exchange_weak(now, now | kWaiting, std::memory_order_relaxed)) {
        break;
      }
    }
    q.add(w);
  }
  // A waiter that gives up takes itself out, and wakes in the same step the readers that have queued behind a writer. A handler that runs
  // later, or the end of the thread, would come between the two.
  auto withdraw = [&] {
    WakeList list;
    {
      LockedQueue q(this);
      // The thread that unlocks takes waiters out before its last touch. So while we are queued, the lock is there.
      if (!w.bucket.load(std::memory_order_relaxed)) return false;
      q.remove(w);
      uint64_t now = word_.load(std::memory_order_relaxed);
      if (!(now & kWriter)) {
        uint64_t add = take_readers(q, list) * kReader, waiting = q.first() ? kWaiting : 0;
        while (
            !word_.compare_exchange_weak(now, ((now & ~kWaiting) + add) | waiting, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        }
      }
    }
    list.wake_all();
    return true;
  };
  switch (wait_signaled(w.fiber, w.signaled, {writer ? "RwLock (write)" : "RwLock (read)", this}, plain_deadline(deadline_ns),
                        ends ? uint32_t{kInterruptEnd} : 0, withdraw)) {
    case WakeReason::TimedOut: return ETIMEDOUT;
    case WakeReason::Interrupted: return ECANCELED;
    default: return 0;  // the lock is ours
  }
}

void RwLock::unlock_slow(uint64_t mine) {
  WakeList list;
  {
    LockedQueue q(this);
    uint64_t w = word_.load(std::memory_order_relaxed);
    check(w >= mine && !(mine == kWriter && !(w & kWriter)), "RwLock", this, "is unlocked but was not locked");
    // Readers may have come while we waited for the lock of the queue. If a wait that was given up has cleared the bit, readers still come.
    while (w != (mine | kWaiting))
      if (word_.compare_exchange_weak(w, w - mine, std::memory_order_release, std::memory_order_relaxed)) return;
    // From here on the lock is ours alone, because new threads wait for the lock of the queue. Acquire: we pass on the releases of other
    // readers.
    std::atomic_thread_fence(std::memory_order_acquire);
    uint64_t holds = 0;
    if (Waiter* first = q.first(); first && first->tag == kWrites) {
      list.add(q, *first);
      holds = kWriter;
    } else {
      holds = take_readers(q, list) * kReader;
    }
    // Our last touch. Only the woken threads touch the lock after it.
    word_.store(holds | (q.first() ? kWaiting : 0), std::memory_order_release);
  }
  list.wake_all();
}

}  // namespace fiberthread
