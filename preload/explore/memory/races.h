// SPDX-License-Identifier: MIT
// What libfiberthread-explore-memory.so knows of an explored process: which fiber has accessed which memory, and what happens before what.
//
// Each 8 bytes of memory that a fiber accesses have a *cell* with the last accesses. Each fiber has a vector clock, and so has each object by
// which fibers are ordered. An access that conflicts with one in its cell is a race unless the clock of the fiber covers that one. The
// idea is FastTrack's (Flanagan, Freund, PLDI 2009). Where it is not known whether two accesses are ordered, they are taken to be.
//
// One fiber runs at a time, so there are no locks. A signal handler may come in between; then its accesses are not looked at.
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

// The calling fiber has done something that others may see by this object, or sees what others have done.
void order_release(uintptr_t object);
void order_acquire(uintptr_t object);
// An atomic operation with an order of memory, after its memory_access().
void order_atomic(uintptr_t address, int order, bool reads, bool writes);
void order_fence(int order);
// Read-write locks: readers are not ordered among each other.
void order_read_lock(uintptr_t lock);
void order_write_lock(uintptr_t lock);
void order_rw_unlock(uintptr_t lock);
// A signal was sent: all fibers may see what the sender has done.
void order_signal();
// Between the two calls the fiber waits for a condition, and its handlers and clean-up functions have the mutex. The calls nest; `before` is the
// result of the first.
uintptr_t order_wait_begin(uintptr_t mutex);
void order_wait_end(uintptr_t before);
// The caller has made the thread with this handle.
void order_created(uintptr_t handle);
// Returns what order_joined() needs, to be called before the thread may end.
void* order_join(uintptr_t handle);
void order_joined(void* joined);

void memory_yields();  // calls the next sched_yield()

// A module that has instrumented code has been loaded. `pc` is in it.
void module_instrumented(uintptr_t pc);
bool is_instrumented(uintptr_t pc);

}  // namespace fiberthread
