// SPDX-License-Identifier: MIT
#include "sched/memory/reaper.h"

#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/memory/reclaim.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint64_t kTick = 100'000'000, kPatience = 5'000'000'000;
constexpr unsigned kRounds = 256;  // of kBatch, for one call of reaper_make_room()
constexpr unsigned kBatch = 16;    // groups of blocks that are taken at once
// The pieces that malloc got back from TCBs lie between others, and free() returns pages from the end of the heap only. So libc is asked to give
// memory back, which keeps other threads from an arena meanwhile: after many TCBs at once, and before a rest if more were released than
// fibers live, as after a crowd. It may not take more than a hundredth of the time.
constexpr unsigned kMany = 16384, kSome = 32;
constexpr uint64_t kTrimPause = 1'000'000'000;

std::atomic<uint32_t> work{0};   // futex: counts the pokes that wake the reaper
std::atomic<uint32_t> asked{0};  // calls of reaper_make_room(), and how many of these are done (a futex)
std::atomic<uint32_t> done{0};
std::atomic<bool> running{false};
std::atomic<bool> awake{true};  // the reaper looks again within a tick, or has not been started

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
using Join = int (*)(pthread_t, void**);

// Exits as the thread of the block, so libc's own end of a thread runs on the block's TCB and TLS.
void* adopt(void* p) {
  tcb_adopt(*static_cast<FiberRecord*>(p));
  return nullptr;
}

// Takes the TCB away. Returns false, and the block is usable as it was, if libc makes no kernel thread.
bool release(FiberRecord* f, Create create, Join join) {
  if (!tcb_is_pristine(*f)) {
    tcb_prepare_adoption(*f);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, tcb_libc_stack_size());
    pthread_t thread;
    bool made = create(&thread, &attr, adopt, f) == 0;
    pthread_attr_destroy(&attr);
    if (!made) return false;
    join(thread, nullptr);
  }
  tcb_release(*f);
  return true;
}

void* reap(void*) {
  tls_busy = 1;  // no code of the program ever runs here
  auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  auto join = reinterpret_cast<Join>(dlsym(RTLD_NEXT, "pthread_join"));
  FreeGroup idle[kBatch];
  unsigned released = 0;
  uint64_t next_tick = now_ns() + kTick, trim_due = 0;
  auto trim = [&] {
    uint64_t begin = now_ns();
    malloc_trim(0);
    uint64_t end = now_ns(), pause = (end - begin) * 100;
    trim_due = end + (pause > kTrimPause ? pause : kTrimPause);
    released = 0;
  };
  for (;;) {
    uint32_t seen = work.load(std::memory_order_acquire);
    uint64_t now = now_ns();
    bool tick = now >= next_tick;
    if (tick) next_tick = now + kTick;
    uint32_t calls = asked.load(std::memory_order_acquire), rounds = 0;
    bool all = calls != done.load(std::memory_order_relaxed);
    while (unsigned n = block_take_idle(idle, kBatch, tick, all && rounds++ < kRounds)) {
      tick = false;
      bool kept = false;
      for (unsigned i = 0; i < n; i++)
        for (uint64_t bits = idle[i].blocks; bits; bits &= bits - 1) {
          unsigned b = static_cast<unsigned>(__builtin_ctzll(bits));
          if (release(block_of(idle[i], b), create, join)) {
            released++;
          } else {
            block_keep(idle[i], b);
            kept = true;
          }
        }
      block_empty(idle, n);
      if (kept) break;
    }
    if (all) {
      block_unmap_idle();
      done.store(calls, std::memory_order_release);
      futex_wake(&done, INT_MAX);
    }
    if (released >= kMany) trim();
    if (block_any_idle()) {
      futex_wait(&work, seen, next_tick);
      continue;
    }
    if (released >= kSome && live_fibers() <= released) {
      if (now_ns() >= trim_due) trim();
      else futex_wait(&work, seen, trim_due < next_tick ? trim_due : next_tick);
      continue;
    }
    awake.exchange(false, std::memory_order_seq_cst);
    // A thread that put a block before it could see this store has not poked us, so we look once more. That thread has no fence between the
    // block and its look at `awake`. By the membarrier, either it sees the store, or we see the block.
    barrier_everywhere();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!block_any_idle()) futex_wait(&work, seen);
    awake.store(true, std::memory_order_relaxed);
  }
}

}  // namespace

void reaper_wake(Reap when) {
  entry_fence();  // pairs with the reaper's membarrier: the reaper sees the block, or we see that it sleeps
  if (__builtin_expect(awake.load(std::memory_order_relaxed) && when == Reap::AtTick, 1)) return;
  if (!running.load(std::memory_order_acquire)) return;
  awake.store(true, std::memory_order_relaxed);
  work.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&work, 1);
}

void reaper_start_if_needed() {
  if (__builtin_expect(running.load(std::memory_order_relaxed), 0) || running.exchange(true, std::memory_order_acq_rel)) return;
  uint64_t old;
  sched_block_signals(&old);
  auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, tcb_libc_stack_size());
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (create(&thread, &attr, reap, nullptr) != 0) running.store(false, std::memory_order_release);
  pthread_attr_destroy(&attr);
  sched_restore_signals(old);
}

bool reaper_make_room() {
  {
    Busy busy;
    if (Worker* w = this_worker()) block_put_kept(w);
    if (block_unmap_idle()) return true;
  }
  if (!block_any_free()) return false;
  reaper_start_if_needed();
  if (!reaper_running()) return false;
  uint32_t mine = asked.fetch_add(1, std::memory_order_acq_rel) + 1, now_done;
  reaper_wake(Reap::AtOnce);
  uint64_t deadline = now_ns() + kPatience;
  Blocking waits(Blocking::Sleep::Short);
  while (static_cast<int32_t>((now_done = done.load(std::memory_order_acquire)) - mine) < 0) {
    if (now_ns() >= deadline) return false;  // it may need a lock of libc that the caller holds
    futex_wait(&done, now_done, deadline);
  }
  return true;
}

bool reaper_running() { return running.load(std::memory_order_acquire); }

FIBERTHREAD_IN_FORK_CHILD(Reaper, reaper, [](FiberRecord*) {
  running.store(false);
  awake.store(true);
  done.store(asked.load());
})

}  // namespace fiberthread
