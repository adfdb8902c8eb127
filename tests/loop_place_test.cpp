// SPDX-License-Identifier: MIT
// Loops that wait and loops that compute, told apart by made-up registers.
// alone: sched
#include "sched/loop_place.h"

#include "tests/test.h"

using namespace fiberthread;

namespace {

constexpr uintptr_t kPc = 0x401000, kSp = 0x7ffe0000;
constexpr uint32_t kMany = 1000;  // ticks

struct Registers {
  uint64_t at[kLoopRegisters] = {};
};

struct Fiber {
  LoopPlace place;
  Registers r;
  uint64_t state = 88172645463325252;

  Fiber() {
    for (auto& x : r.at) x = random();
  }

  uint64_t random() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }

  uint32_t tick(uintptr_t pc = kPc, uintptr_t sp = kSp) {
    place.note(pc, sp, [&](unsigned i) { return r.at[i]; });
    return place.waits.load();
  }
};

// Returns at how many of the last kMany / 2 ticks f seemed to wait. `step` makes the registers of the next tick.
template <typename Step>
uint32_t waiting(Fiber& f, Step step) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < kMany; i++) {
    step(i);
    f.tick();
    n += i >= kMany / 2 && f.place.probably_waits();
  }
  return n;
}

}  // namespace

Test(loop_place, a_fiber_that_was_seen_to_wait) {
  Fiber f;
  f.place.note(kPc, kSp, [&](unsigned i) { return f.r.at[i]; });
  cr_assert(!f.place.probably_waits());
  f.place.waits_here();
  cr_assert(f.place.probably_waits());
  f.place.note(kPc + 4096, kSp, [&](unsigned i) { return f.r.at[i]; });  // it computes
  cr_assert(!f.place.probably_waits());
}

Test(loop_place, a_count_and_a_word_that_is_read) {
  Fiber f;
  uint32_t n = waiting(f, [&](uint32_t) {
    f.r.at[0] = f.random();
    f.r.at[5] = f.random();
  });
  cr_assert_eq(n, kMany / 2);
}

Test(loop_place, some_words_that_are_added_up) {
  Fiber f;
  uint32_t n = waiting(f, [&](uint32_t) {
    uint64_t i = f.random() % 4;
    f.r.at[0] = i;
    f.r.at[2] = 0x5000 + 64 * i;
    f.r.at[3] = i * 10;
    f.r.at[4] = f.random() % 2;
    f.r.at[5] = f.random();
  });
  cr_assert_eq(n, kMany / 2);
}

// Every third tick, it has done one of three jobs before. A job leaves its traces in the registers that the loop does not use.
Test(loop_place, jobs_in_between) {
  Fiber f;
  uint64_t traces[3][8];
  for (auto& job : traces)
    for (auto& x : job) x = f.random();
  uint32_t n = waiting(f, [&](uint32_t tick) {
    f.r.at[0] = f.random();
    if (tick % 3) return;
    uint64_t job = f.random() % 3;
    for (unsigned i = 0; i < 8; i++) f.r.at[i + 4] = traces[job][i];
  });
  cr_assert_eq(n, kMany / 2);
}

Test(loop_place, three_variables_are_a_computation) {
  Fiber f;
  uint32_t n = waiting(f, [&](uint32_t) {
    for (unsigned i = 0; i < 9; i += 3) f.r.at[i] = f.random();
  });
  cr_assert_eq(n, 0u);
}

Test(loop_place, another_place_is_another_loop) {
  Fiber f;
  while (f.tick() < 8) {
  }
  cr_assert_eq(f.tick(kPc + 63), 9u);
  cr_assert_eq(f.tick(kPc - 1), 8u);  // 64 bytes from the last
  cr_assert_eq(f.tick(kPc - 1), 9u);
  cr_assert_eq(f.tick(kPc - 1, kSp - 16), 8u);
}

// It is soon known to compute, however long it has waited.
Test(loop_place, from_waiting_to_computing) {
  Fiber f;
  for (uint32_t i = 0; i < kMany; i++) f.tick();
  for (int i = 0; i < 20; i++) {
    for (auto& x : f.r.at) x = f.random();
    f.tick();
  }
  cr_assert(!f.place.probably_waits());
}
