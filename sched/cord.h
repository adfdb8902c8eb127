// SPDX-License-Identifier: MIT
// Cords: kernel threads that run certain fibers and no others, one at a time and without preemption. A cord's fibers are bound to its
// worker (FiberRecord::run.bound), which holds no slot and takes them from a ready list of its own, in the order of their wake-ups.
// One of them, the scheduler fiber, is the one that the worker belongs to (Worker::bond.fiber), and ends last.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/queue.h"
#include "sched/spinlock.h"

namespace fiberthread {

// Must stay readable as long as the cord has fibers. A thread that puts a fiber into `ready` touches only the worker afterwards, which is
// never freed.
struct CordRecord {
  Inbox ready;
  std::atomic<Worker*> worker{nullptr};
  // Set by the scheduler fiber around a callback. If the callback waits, no other fiber runs here meanwhile.
  std::atomic<bool> alone{false};

  // The registry: all fibers except the scheduler fiber. Under its lock nothing is called but the visit() of cord_each().
  static constexpr uint32_t kBuckets = 64;
  SpinLock lock;
  uint32_t fibers = 0;
  bool ended = false;
  FiberRecord* by_id[kBuckets] = {};  // linked by FiberRecord::run.list_next
};

// Makes the calling fiber the scheduler fiber of `c`. On return it is on a kernel thread of its own. Returns 0, EAGAIN (no memory, no
// threads) or ENOTSUP (threads are NPTL's). Parks.
int cord_begin(CordRecord* c);
// Ends the cord if it has no other fiber. Returns true if it has ended: then no fiber will come any more, and the caller, which is the
// scheduler fiber, must end. Otherwise the last fiber to end unparks the caller.
bool cord_end(CordRecord* c);
// Binds f to the cord: a fiber that was prepared and is not spawned yet, or the caller, which is there after its next give_way(). Returns
// false if f has a kernel thread of its own already, or the cord has ended.
bool cord_admit(CordRecord* c, FiberRecord* f);
// Returns the cord of a fiber; null: none. Signal-safe.
CordRecord* cord_of(const FiberRecord* f);
// Returns true if the caller is in a callback of its cord's scheduler fiber. It must not give way then.
bool in_cord_callback();
// Calls visit(f) under the cord's lock for each of its fibers except the scheduler fiber, until visit() returns false.
void cord_each(CordRecord* c, bool (*visit)(FiberRecord*, void*), void* data);

// ---- for the scheduler ----
void cord_left(CordRecord* c, FiberRecord* f);  // removes f, which has ended and is off its stack, or will not be spawned

}  // namespace fiberthread
