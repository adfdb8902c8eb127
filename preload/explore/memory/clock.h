// SPDX-License-Identifier: MIT
// Vector clocks (Fidge; Mattern), and the memory of everything that is noted here: the program's own allocator must not be used.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fiberthread {

// Returns zeroed memory, which is never given back, or null.
void* take(size_t n);

// One value for each thread. Those beyond `size` are 0.
struct Clock {
  uint32_t* at = nullptr;
  uint32_t size = 0;
};

inline uint32_t value(const Clock& c, uint32_t thread) { return thread < c.size ? c.at[thread] : 0; }
// Returns false if there is no memory.
bool grow(Clock& c, uint32_t size);
void join(Clock& to, const Clock& from);  // the later of both, for each thread
void clear(Clock& c);

// True once something could not be noted: no race is certain any more.
extern bool lost;

}  // namespace fiberthread
