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

// A fiber of the ring. On its own stack; everything but `woken` under the queue's lock.
struct JobFiber {
  JobQueueInside* queue = nullptr;
  FiberRecord* fiber = self();
  std::atomic<uint32_t> woken{0};
  bool scout = true;         // it is the scout, and its own to look at then; one is made to be
  Task* task = nullptr;      // that it has begun
  JobFiber* next = nullptr;  // of the idle ones, or of those with a task, the latest first
  JobFiber** link = nullptr;
  unsigned fork = 0;  // of which process it is
};

// Who runs tasks. At most one fiber of the queue is the *scout*: it has been woken, or is being made, to look for a task. Whoever
// leaves tasks behind sees to it that there is one. So as long as tasks wait, a fiber that could begin one is running or in a queue
// of the scheduler, and it does not matter what the others wait for, and how. A scout does not begin a task while one that has
// begun is preempted: there is enough to do then, and a job that takes long would only share its time with others.
struct JobQueueInside {
  enum class Scout : uint8_t {
    None,
    BeingMade,  // there may be no memory for it
    Sent,
  };
  // What the caller owes the queue once it has released the lock: a fiber that it wakes, or makes, or nothing.
  class Errand {
   public:
    Errand() = default;
    static Errand wake(JobFiber* f) { return Errand(f); }
    static Errand make_scout() { return Errand(reinterpret_cast<JobFiber*>(kNew)); }
    bool is_nothing() const { return !fiber_; }
    bool is_to_make() const { return reinterpret_cast<uintptr_t>(fiber_) == kNew; }
    JobFiber* to_wake() const { return is_to_make() ? nullptr : fiber_; }

   private:
    static constexpr uintptr_t kNew = 8;  // one word, as this is on the way of every task
    explicit Errand(JobFiber* f) : fiber_(f) {}
    JobFiber* fiber_ = nullptr;
  };
  // What a fiber of the ring does next.
  enum class Step : uint8_t {
    LookAgain,  // after others have run
    BeginTask,
    Rest,
    End,
    Leave,  // at once: its task has forked, and this is the child
  };
  struct Turn {
    Step step;
    Errand errand{};
  };
  // How a scout treats fibers whose tasks were preempted.
  enum class Manner : uint8_t { LetThemGoOn, BeginAnother };

  // Before those of `sched`. Under it no more than some instructions; wakes and births come after it.
  SpinLock lock;
  Scout scout = Scout::None;
  bool closing = false;
  unsigned kept = 0;  // idle ones that stay, at most
  unsigned idle_count = 0;
  std::atomic<unsigned> fork{0};    // `forks` when it was last used: what is older is the parent's
  std::atomic<uint32_t> fibers{0};  // and one about to be made
  uint32_t looking = 0;             // of these, those that will look for a task again
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
