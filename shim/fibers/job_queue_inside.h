// SPDX-License-Identifier: MIT
// What a JobQueue consists of: its tasks, and its ring of fibers.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"
#include "fiberthread/job_queue.h"

namespace fiberthread {

// A fiber of the ring. It lies on that fiber's own stack. All members except `woken` are under the queue's lock.
struct JobFiber {
  JobQueueInside* queue = nullptr;
  FiberRecord* fiber = self();
  std::atomic<uint32_t> woken{0};
  bool scout = true;         // it is the scout, as each fiber is at birth; while it is, only it reads this
  Task* task = nullptr;      // the task that it has begun
  JobFiber* next = nullptr;  // in the list of idle fibers, or of those with a task, the latest first
  JobFiber** link = nullptr;
  unsigned fork = 0;  // JobQueueInside::fork of the process that it belongs to
};

// What runs tasks. At most one fiber of the queue is the *scout*. It has been woken, or is being made, to look for a task. A thread that
// leaves tasks behind makes sure that there is a scout. So as long as tasks wait, a fiber that could begin one is running or in a queue of
// the scheduler. It does not matter what the other fibers wait for, and how. A scout does not begin a task while one that has begun is
// preempted. There is enough to do then, and a long task would only share its time with others.
struct JobQueueInside {
  enum class Scout : uint8_t {
    None,
    BeingMade,  // it may fail, for want of memory
    Sent,
  };
  // What the caller does for the queue once it has released the lock. It wakes a fiber, makes one, or does nothing.
  class Errand {
   public:
    Errand() = default;
    static Errand wake(JobFiber* f) { return Errand(f); }
    static Errand make_scout() { return Errand(reinterpret_cast<JobFiber*>(kNew)); }
    bool is_nothing() const { return !fiber_; }
    bool is_to_make() const { return reinterpret_cast<uintptr_t>(fiber_) == kNew; }
    JobFiber* to_wake() const { return is_to_make() ? nullptr : fiber_; }

   private:
    static constexpr uintptr_t kNew = 8;  // all is in one word, as every task comes this way
    explicit Errand(JobFiber* f) : fiber_(f) {}
    JobFiber* fiber_ = nullptr;
  };
  // What a fiber of the ring will do.
  enum class Step : uint8_t {
    LookAgain,  // after other fibers have run
    BeginTask,
    Rest,
    End,
    Leave,  // return at once: its task has forked, and this is the child
  };
  struct Turn {
    Step step;
    Errand errand{};
  };
  // How a scout treats fibers whose tasks were preempted.
  enum class Manner : uint8_t { LetThemGoOn, BeginAnother };

  constexpr explicit JobQueueInside(unsigned fibers_kept) : kept(fibers_kept) {}

  // Comes before the locks of `sched`. It is held for some instructions. Fibers are woken and made after its release.
  SpinLock lock;
  Scout scout = Scout::None;
  bool closing = false;
  unsigned kept;  // at most so many idle fibers stay
  unsigned idle_count = 0;
  std::atomic<unsigned> fork{0};    // `forks` when the queue was last used; if that is older, fibers and tasks are the parent's
  std::atomic<uint32_t> fibers{0};  // and one that is being made
  uint32_t looking = 0;             // those of `fibers` that will look for a task again
  Task* first = nullptr;
  Task* last = nullptr;
  JobFiber* idle = nullptr;
  JobFiber* busy = nullptr;
  FiberRecord* closer = nullptr;

  static JobQueueInside* of(JobQueue& q) { return reinterpret_cast<JobQueueInside*>(q.inside_); }
  void push(Task& t);
  void remove(Task& t);
  bool holds(const Task& t) const;
  Errand need_scout();
  int run_errand(Errand errand);
  bool preempted_ones() const;
  static void settle(Task& t, uint32_t to);
  static int run(JobQueue& queue, Task& t, void* (*function)(void*), void* argument);
  static int wait(Task& t, void** result, uint64_t timeout_ns, uint32_t interrupts);
  Turn take_turn(JobFiber& me, Manner manner);
  void run_fiber(JobFiber& me);
  void check_fork();
  static void* fiber_main(void* p);
};

}  // namespace fiberthread
