// SPDX-License-Identifier: MIT
// FIBERTHREAD_CHAOS=seed, a test aid: delays at every scheduling point, and where more than one choice is right, a random one.
// It only makes likely what may happen anyway, so a program that fails under it shows a defect. The order of threads is not reproducible.
// The seed only varies the mixture.
#pragma once
#include <cstdint>

namespace fiberthread {

extern uint64_t chaos_seed;  // 0: off

bool chaos_roll(uint32_t one_in);
void chaos_wait();
uint32_t chaos_number();

// Returns true once in `one_in` times, at random.
inline bool chaos(uint32_t one_in) { return __builtin_expect(chaos_seed != 0, 0) && chaos_roll(one_in); }

// Now and then keeps the kernel thread here, in a window between two steps of a protocol. In any context, also under a SpinLock.
inline void chaos_delay() {
  if (__builtin_expect(chaos_seed != 0, 0)) chaos_wait();
}

}  // namespace fiberthread
