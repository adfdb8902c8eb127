// SPDX-License-Identifier: MIT
// What orders the fibers of the explored process.
#pragma once
#include <cstdint>

namespace fiberthread {

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

}  // namespace fiberthread
