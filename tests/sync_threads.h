// SPDX-License-Identifier: MIT
// For the tests of sync, beside fibers.h: queues, rounds, memory whose end matters.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <atomic>
#include <cstdint>
#include <new>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "sync/parking_lot.h"
#include "tests/fibers.h"

inline size_t queued(const void* address) {
  fiberthread::LockedQueue q(address);
  size_t n = 0;
  for (fiberthread::Waiter* w = q.first(); w; w = w->next) n++;
  return n;
}
inline void until_queued(const void* address, size_t n) {
  while (queued(address) != n) fiberthread::yield();
}
inline void until_parked(fiberthread::FiberRecord* f) {
  while (f->run.state.load() != fiberthread::State::Parked) fiberthread::yield();
}

// Makes its threads begin each round together: what is lost in one is not covered up by what comes later.
class Rounds {
 public:
  explicit Rounds(unsigned n) : n_(n) {}
  void meet() {
    unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    } else {
      for (unsigned i = 1; round_.load(std::memory_order_acquire) == round; i++)
        if (i % 256 == 0) fiberthread::yield();
    }
  }

 private:
  unsigned n_;
  std::atomic<unsigned> round_{0}, arrived_{0};
};

// Memory for objects whose end matters: after it, any touch is an error for AddressSanitizer, and else finds nonsense. Each piece comes
// back only after all others. By one thread.
template <class T, size_t n = 64>
class Pieces {
 public:
  Pieces() {
    for (size_t i = 0; i < n; i++) gone(at(i));
  }
  ~Pieces() { allow(memory_, sizeof memory_); }
  T* make() {
    T* place = at(next_++ % n);
    allow(place, sizeof(T));
    return new (place) T;
  }
  void destroy(T* t) {
    t->~T();
    gone(t);
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static void allow(void* p, size_t size) { __asan_unpoison_memory_region(p, size); }
  static void gone(T* t) { __asan_poison_memory_region(t, sizeof *t); }
#else
  static void allow(void*, size_t) {}
  static void gone(T* t) { memset(static_cast<void*>(t), 0x5a, sizeof *t); }
#endif
  T* at(size_t i) { return reinterpret_cast<T*>(memory_ + i * sizeof(T)); }
  alignas(T) alignas(8) unsigned char memory_[n * sizeof(T)];
  size_t next_ = 0;
};

struct Random {
  uint64_t state;
  uint32_t operator()(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33) % below;
  }
};

constexpr uint64_t kMs = 1'000'000;

// Under FIBERTHREAD_CHAOS each round counts for more, and lasts longer. In an emulator it only lasts longer.
inline int chaos_rounds(int n) {
#if defined(__x86_64__)
  return fiberthread::chaos_seed ? n / 12 + 1 : n;
#else
  return n / 12 + 1;
#endif
}

// As FIBERTHREAD_WORKERS and FIBERTHREAD_CHAOS do. Before the first thread.
inline void use_chaos(uint32_t workers, uint64_t seed) {
  fiberthread::options.workers = workers;
  fiberthread::options.preempt_us = 150;
  const char* n = getenv("SOAK_SEED");
  fiberthread::chaos_seed = seed + (n ? strtoull(n, nullptr, 10) : 0);
}

// TEST_TIMES=n: so many times as many rounds as usual, for long runs with a sanitizer.
inline int times() {
  const char* n = getenv("TEST_TIMES");
  return n ? atoi(n) : 1;
}

// For tests/address_soak, which adds up what many runs have done.
inline void counted(long n, const char* what) {
  if (getenv("TEST_TIMES")) fprintf(stderr, "counted: %ld %s\n", n, what);
}

// Whoever has been cancelled stays so; tests go on.
inline void forget_cancel() { fiberthread::self()->run.interrupts.fetch_and(~uint32_t{fiberthread::kInterruptEnd}); }
