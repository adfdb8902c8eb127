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

// Readable as long as it has fibers: whoever puts one into `ready` touches only the worker afterwards, and that is never freed.
struct CordRecord {
  Inbox ready;
  std::atomic<Worker*> worker{nullptr};
  // Set by the scheduler fiber around a callback: if that waits, nobody else runs here meanwhile.
  std::atomic<bool> alone{false};

  // The registry: all but the scheduler fiber. Under its lock nothing is called.
  static constexpr uint32_t kBuckets = 64;
  SpinLock lock;
  uint32_t fibers = 0;
  bool ended = false;
  FiberRecord* by_id[kBuckets] = {};  // linked by FiberRecord::run.list_next
};

// The calling fiber becomes the scheduler fiber of `c`, on a kernel thread of its own from the return on. 0, EAGAIN (no memory,
// no threads), or ENOTSUP (threads are NPTL's). Parks.
int cord_begin(CordRecord* c);
// By the scheduler fiber, which shall end if this is true: no other fiber is there, and no other will be. When the last one has ended
// it is unparked.
bool cord_end(CordRecord* c);
// A fiber that was prepared, and is not spawned yet, shall live in `c`; or the caller, which is there after its next yield(). False if
// it has a kernel thread of its own already, or the cord has ended.
bool cord_admit(CordRecord* c, FiberRecord* f);
// That of a fiber; null: none. Signal-safe.
CordRecord* cord_of(const FiberRecord* f);
// Is the caller in a callback of its cord's scheduler fiber? It must not give way then.
bool in_cord_callback();
// Calls visit(f) under the cord's lock for each of its fibers but the scheduler fiber, until it returns false.
void cord_each(CordRecord* c, bool (*visit)(FiberRecord*, void*), void* data);

// ---- for the scheduler ----
void cord_left(CordRecord* c, FiberRecord* f);  // it has ended, and is off its stack

}  // namespace fiberthread
