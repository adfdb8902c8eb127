// SPDX-License-Identifier: MIT
// Code that the tests of sync share, beside fibers.h: queues, rounds, and memory whose use after the end is found.
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
  while (queued(address) != n) fiberthread::give_way();
}
inline void until_parked(fiberthread::FiberRecord* f) {
  while (f->run.state.load() != fiberthread::State::Parked) fiberthread::give_way();
}

// Makes its threads begin each round together. So a wake-up lost in one round is not covered up by those of later rounds.
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
        if (i % 256 == 0) fiberthread::give_way();
    }
  }

 private:
  unsigned n_;
  std::atomic<unsigned> round_{0}, arrived_{0};
};

// Memory for objects that must not be used after their end. AddressSanitizer reports such a use; without it, the memory has nonsense in it.
// Each piece is used again only after all others. Only one thread may use this.
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

// Returns a smaller number of rounds under FIBERTHREAD_CHAOS, where each round finds more and takes longer, and in an emulator, where it
// only takes longer.
inline int chaos_rounds(int n) {
#if defined(__x86_64__)
  return fiberthread::chaos_seed ? n / 12 + 1 : n;
#else
  return n / 12 + 1;
#endif
}

// Sets what FIBERTHREAD_WORKERS and FIBERTHREAD_CHAOS set. Must be called before the first thread is made.
inline void use_chaos(uint32_t workers, uint64_t seed) {
  fiberthread::options.workers = workers;
  fiberthread::options.preempt_us = 150;
  const char* n = getenv("SOAK_SEED");
  fiberthread::chaos_seed = seed + (n ? strtoull(n, nullptr, 10) : 0);
}

// Returns n of TEST_TIMES=n: the tests do n times as many rounds, for long runs with a sanitizer.
inline int times() {
  const char* n = getenv("TEST_TIMES");
  return n ? atoi(n) : 1;
}

// Prints a count for tests/address_soak, which adds up the counts of many runs.
inline void counted(long n, const char* what) {
  if (getenv("TEST_TIMES")) fprintf(stderr, "counted: %ld %s\n", n, what);
}

// Clears the cancellation of the calling fiber, which would otherwise stay cancelled, so that the test can go on.
inline void forget_cancel() { fiberthread::self()->run.interrupts.fetch_and(~uint32_t{fiberthread::kInterruptEnd}); }
