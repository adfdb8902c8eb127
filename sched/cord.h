// Cords: kernel threads that run certain fibers and no others, one at a time and without preemption. A cord's fibers are bound to its
// worker (FiberRecord::bound), which holds no slot and takes them from a ready list of its own, in the order of their wake-ups.
// One of them, the scheduler fiber, is the one that the worker belongs to (Worker::bound), and ends last.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/queue.h"
#include "sched/spinlock.h"

namespace fiberthread {

// Readable as long as it has fibers: whoever puts one into `ready` touches only the worker afterwards, and that is never freed.
struct Cord {
  Inbox ready;
  std::atomic<Worker*> worker{nullptr};
  // Set by the scheduler fiber around a callback: if that waits, nobody else runs here meanwhile.
  std::atomic<bool> alone{false};
  std::atomic<uint32_t> fibers{0};  // besides the scheduler fiber

  // The registry. Its lock comes before all of those of queues.
  static constexpr uint32_t kBuckets = 64;
  SpinLock lock;
  FiberRecord* by_id[kBuckets] = {};  // linked by FiberRecord::cord_next
};

// The calling fiber becomes the scheduler fiber of `c`, on a kernel thread of its own from the return on. 0, or EAGAIN (no memory,
// no threads). Parks.
int cord_begin(Cord* c);
// Waits until all other fibers of the caller's cord have ended. From then on it is as any bound fiber, and has to end.
void cord_end();
// A fiber that was prepared, and is not spawned yet, shall live in `c`; or the caller, which is there after its next yield(). False if
// it has a kernel thread of its own already.
bool cord_admit(Cord* c, FiberRecord* f);
// That of a fiber; null: none. Signal-safe.
Cord* cord_of(const FiberRecord* f);
// Is the caller in a callback of its cord's scheduler fiber? It must not give way then.
bool in_cord_callback();
// Calls visit(f) under the cord's lock for each of its fibers but the scheduler fiber, until it returns false.
void cord_each(Cord* c, bool (*visit)(FiberRecord*, void*), void* data);

// ---- for the scheduler ----
void cord_left(Cord* c, FiberRecord* f);  // it has ended, and is off its stack

}  // namespace fiberthread
