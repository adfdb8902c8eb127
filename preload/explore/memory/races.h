// SPDX-License-Identifier: MIT
// Accesses to memory of an explored process: which of them are points, and which are races.
//
// Each 8 bytes of memory that a fiber accesses have a *cell* with the last accesses. Each fiber has a vector clock, and so has each object by
// which fibers are ordered. An access that conflicts with one in its cell is a race unless the clock of the fiber covers that one. The
// idea is FastTrack's (Flanagan, Freund, PLDI 2009). Where it is not known whether two accesses are ordered, they are taken to be.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/explore/shared.h"

// Of libfiberthread.so, which may not be there.
extern "C" {
extern const uint32_t fiberthread_explore_memory __attribute__((weak));
bool fiberthread_explore_point(const char* name, uintptr_t object, uintptr_t pc, int how) __attribute__((weak));
bool fiberthread_explore_fiber(fiberthread::ExploredFiber* f) __attribute__((weak));
void fiberthread_explore_race(const fiberthread::Race* race) __attribute__((weak));
}

namespace fiberthread {

// False in all processes but the explored one, before its first thread, and unless memory is explored.
inline bool memory_explored() { return &fiberthread_explore_memory && fiberthread_explore_memory; }

constexpr uint8_t kRead = 0, kWrite = 1, kAtomic = 2, kFree = 4;  // bits

// The caller is about to access memory: comes to a point, looks for races, and notes the access.
void memory_access(uintptr_t address, size_t size, uint8_t kind, uintptr_t pc);
// The memory is given back. What is known of it is forgotten. `pc` 0: by code that is not instrumented, which has no races.
void memory_freed(uintptr_t address, size_t size, uintptr_t pc);
void memory_benign(uintptr_t address, size_t size);
// All accesses between a call with 1 and one with -1 are left out.
void memory_ignore(int more);

void memory_yields();  // calls the next sched_yield()

}  // namespace fiberthread
