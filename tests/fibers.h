// SPDX-License-Identifier: MIT
// Fibers for tests. With the whole library they are POSIX threads, as in programs. -DALONE is for tests that are linked only with `sched`,
// or with `sched` and `sync` (build/tests/alone/). There sched's own calls make the fibers.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "sched/life/join.h"
#include "sched/worker.h"
#ifdef ALONE
#include "sched/embedder.h"
#include "sched/glibc/tcb.h"
#include "sched/memory/block.h"
#include "sched/memory/reaper.h"
#define REAL(function) (&::function)  // no function of the library replaces libc's own
#else
#include "shim/real.h"
#endif

namespace fibers {

#ifdef ALONE

using fiberthread::FiberRecord;

// Starts the library as preload/init.cpp does, but with an empty embedder and without options.
[[gnu::constructor(101)]] inline void start() {
  fiberthread::sched_embed({});
  fiberthread::context_init();
  fiberthread::sched_init();
}

// The function that every fiber runs. It is Busy at its beginning and at its end.
inline void run(FiberRecord* f) {
  fiberthread::tcb_first_steps();
  {
    fiberthread::Busy leave;
    fiberthread::tls_busy = fiberthread::tls_busy - 1;
  }
  f->identity.result = f->identity.start(f->identity.arg);
  fiberthread::tcb_call_tls_destructors();
  fiberthread::sched_count_end();
  fiberthread::tls_busy = 1;
  fiberthread::tcb_end(*f);
}

using Handle = fiberthread::FiberRecord*;

inline Handle spawn(void* (*start)(void*), void* argument = nullptr) {
  using namespace fiberthread;
  constexpr size_t kStack = 256 * 1024, kGuard = 4096;
  cr_assert(sched_start());
  FiberRecord* f;
  {
    Busy busy;
    f = block_get(kStack, kGuard, nullptr);
  }
  cr_assert(f);
  if (blocks_are_many()) reaper_start_if_needed();
  f->run.sigmask = self()->run.sigmask;
  sched_prepare(f, run);
  f->identity.start = start;
  f->identity.arg = argument;
  f->join.valid.store(true, std::memory_order_release);
  sched_spawn(f);
  return f;
}

inline void* join(Handle f) {
  using namespace fiberthread;
  FiberRecord* me = self();
  {
    Busy busy;
    SpinPairGuard guard(me->join.lock, f->join.lock);
    f->join.joiner = me;
    me->wait.pins++;
  }
  void* result;
  cr_assert(join_wait(f, &result, kNever, 0));
  wait_over(me);
  return result;
}

inline void detach(Handle f) {
  using namespace fiberthread;
  Busy busy;
  bool ended;
  {
    SpinGuard guard(f->join.lock);
    f->join.detached = true;
    ended = f->join.done.load(std::memory_order_relaxed);
  }
  if (!ended) return;
  f->join.valid.store(false, std::memory_order_release);
  block_put(f);
}

#else

using Handle = pthread_t;

inline Handle spawn(void* (*start)(void*), void* argument = nullptr) {
  pthread_t t;
  cr_assert_eq(pthread_create(&t, nullptr, start, argument), 0);
  return t;
}
inline void* join(Handle t) {
  void* result;
  cr_assert_eq(pthread_join(t, &result), 0);
  return result;
}
inline void detach(Handle t) { pthread_detach(t); }

#endif

// Lets the caller, a fiber or a foreign thread, sleep for `us` microseconds by parking.
inline void nap(uint64_t us) {
  static const std::atomic<uint32_t> never{0};
  uint64_t deadline = fiberthread::now_ns() + us * 1000;
  while (fiberthread::park_if(&never, 0, {.what = "sleep", .plain = true}, deadline)) {
  }
}

}  // namespace fibers

// Threads of a test. The destructor joins them, so declare this after the objects that the threads use.
class Threads {
 public:
  ~Threads() { join(); }
  void fiber(std::function<void()> body) {
    threads_.push_back({fibers::spawn(run, new std::function<void()>(std::move(body))), {}, false});
  }
  void kernel(std::function<void()> body) {
    pthread_t t;
    cr_assert_eq(REAL(pthread_create)(&t, nullptr, run, new std::function<void()>(std::move(body))), 0);
    threads_.push_back({{}, t, true});
  }
  void bound(std::function<void()> body) {
    fiber([body = std::move(body)] {
      cr_assert_eq(fiberthread::sched_bind(fiberthread::self()), 0);
      body();
    });
  }
  // Makes a fiber, a kernel thread or a bound fiber in turn, by `i`.
  void any(size_t i, std::function<void()> body) {
    i % 3 == 0 ? fiber(std::move(body)) : i % 3 == 1 ? kernel(std::move(body)) : bound(std::move(body));
  }
  void join() {
    for (auto& t : threads_) t.is_kernel ? (void)REAL(pthread_join)(t.kernel, nullptr) : (void)fibers::join(t.fiber);
    threads_.clear();
  }

 private:
  struct One {
    fibers::Handle fiber;
    pthread_t kernel;
    bool is_kernel;
  };
  static void* run(void* p) {
    auto* body = static_cast<std::function<void()>*>(p);
    (*body)();
    delete body;
    return nullptr;
  }
  std::vector<One> threads_;
};

// Sets the number of workers, and how many further slots there may be for fibers that wake up. The test's frame may have started the scheduler
// already, and a surplus slot goes only when its worker next checks. So this makes some fibers that sleep.
inline void run_on(uint32_t workers, uint32_t reserve = fiberthread::options.reserve) {
  fiberthread::options.workers = workers;
  fiberthread::options.reserve = reserve;
  if (!fiberthread::sched_start()) return;
  fiberthread::sched_set_concurrency(workers);
  for (int i = 0; i < 20; i++) {
    Threads t;
    t.fiber([] { fibers::nap(500); });
  }
}

// After run_on(1, 0). held() returns true if there has been only one slot, and one worker has had it, since the object was made. Then fibers
// have run in turn. If the kernel stops a worker, the worker may lose its slot, or sysmon may add another. Then fibers run at the same time.
class InTurn {
 public:
  bool held() const { return alone_ && fiberthread::slots_wanted() == 1 && fiberthread::statistics.handovers == handovers_; }

 private:
  bool alone_ = fiberthread::slots_wanted() == 1;
  uint64_t handovers_ = fiberthread::statistics.handovers;
};
