// SPDX-License-Identifier: MIT
// JobQueue: many small jobs on few fibers, with their results; and the two shapes that most parallel code has, parallel_for and
// invoke, over it. For code that is to be cut into jobs.
//
// Tasks wait in an unbounded queue, in the order in which they came. The queue has a ring of fibers, which stay with it and are used
// again and again: one is assigned to a task when that is first taken out. So a task that has not begun costs no stack, and one that
// does not wait costs no switch. A task that yields goes back to the end of the queue with its fiber. A task may wait for whatever it
// likes, other tasks of its queue included: while there is work and no fiber to do it, there is another fiber.
//
// Cost: run and wait of an empty task about as much as two locked sections and a wake-up; memory: a Task is its caller's, a fiber of the
// ring has a stack as a thread has. Fairness: first in, first out; but those that were preempted go on before others begin.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "api.h"

namespace fiberthread {

struct JobFiber;
struct JobQueueInside;

// A job: function(argument), and its result. Its owner keeps it until wait() or withdraw() has returned for it, and may then use it
// again.
class Task {
 public:
  Task() = default;
  Task(void* (*function)(void*), void* argument) : function_(function), argument_(argument) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  // Not while it is with a queue.
  void set(void* (*function)(void*), void* argument) {
    function_ = function;
    argument_ = argument;
  }
  // Acquire: what the job did is seen. Any context.
  bool done() const { return (state_.load(std::memory_order_acquire) & 3) == kDone; }
  // Once done.
  void* result() const { return result_; }

 private:
  friend class JobQueue;
  friend struct JobQueueInside;
  // And kWaited: somebody waits for the end.
  enum : uint32_t { kIdle = 0, kQueued = 1, kRunning = 2, kDone = 3, kWaited = 4 };
  void* (*function_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* result_ = nullptr;
  Task* next_ = nullptr;
  Task* prev_ = nullptr;
  JobFiber* fiber_ = nullptr;  // that it has begun on
  std::atomic<uint32_t> state_{kIdle};
};

// All members may be called by fibers, bound ones too, and foreign threads; none by signal handlers. Jobs must not throw.
class FIBERTHREAD_API JobQueue {
 public:
  // Keeps up to `fibers_kept` fibers for later while they have nothing to do.
  explicit JobQueue(unsigned fibers_kept = 32);
  // Waits until all its tasks are done and its fibers have ended.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // The process's own, which is never destroyed.
  static JobQueue& common();

  // Puts a task at the end of the queue. Does not wait. 0; EAGAIN: there is no memory for a fiber, and it is not queued; EBUSY: it is with
  // a queue already.
  int run(Task& task);

  // Waits until the task is done; it may be destroyed then. 0, and its result; ETIMEDOUT after `timeout_ns`; ECANCELED, if the caller
  // was cancelled: the task goes on, and can be waited for again; EINVAL: it was never run. Several may wait.
  int wait(Task& task, void** result = nullptr, uint64_t timeout_ns = UINT64_MAX);

  // Takes a task that has not begun out of the queue. False: it has begun, or is done. Does not wait.
  bool withdraw(Task& task);

  // In a job: puts its task back to the end of its queue, and goes on when that is its turn. 0; EPERM: the caller is in no job; EAGAIN:
  // there is no memory for a fiber that could run others.
  static int yield();

  // How many jobs can run at once: as many as there are workers.
  static unsigned width();

  // Calls body(context, first, last) for parts [first, last) of [begin, end) that make up all of it, on as many workers as have
  // nothing else to do, the caller's among them; returns when all have returned. A part has at least `grain` members, but for the last, 0:
  // as many as is good. They begin large and become smaller (guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions
  // on Computers C-36, 1987), so that all end together. May be nested. Cancelling does not end it. Without memory for more fibers, the
  // caller does it alone.
  void parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void* context, size_t first, size_t last), void* context);

  // The same, with any function object: body(first, last), or body(index) for each.
  template <class Body>
  void parallel_for(size_t begin, size_t end, Body&& body, size_t grain = 0) {
    using B = std::remove_reference_t<Body>;
    parallel_for(
        begin, end, grain,
        [](void* p, size_t first, size_t last) {
          B& b = *static_cast<B*>(p);
          if constexpr (std::is_invocable_v<B&, size_t, size_t>) b(first, last);
          else
            for (size_t i = first; i < last; i++) b(i);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Fork and join: calls all, perhaps at once, the first on the caller itself; returns when all have returned. May be nested: those that
  // nobody else has begun by then are called here, so that recursion costs little more than calls.
  template <class First, class... Others>
  void invoke(First&& first, Others&&... others) {
    Call all[] = {call_of(others)..., Call{}};
    call_all(call_of(first), all, sizeof...(others));
  }
  // For as many as are known at run time only: functions[i](arguments[i]).
  void invoke_all(void (*const* functions)(void*), void* const* arguments, size_t n);

 private:
  friend struct JobQueueInside;
  struct Call {
    void (*function)(void*) = nullptr;
    void* object = nullptr;
  };
  template <class F>
  static Call call_of(F& f) {
    return {[](void* p) { (*static_cast<F*>(p))(); }, const_cast<void*>(static_cast<const void*>(&f))};
  }
  void call_all(const Call& mine, const Call* others, size_t n);

  alignas(64) unsigned char inside_[192];
};

// On the process's own queue.
template <class Body>
void parallel_for(size_t begin, size_t end, Body&& body, size_t grain = 0) {
  JobQueue::common().parallel_for(begin, end, std::forward<Body>(body), grain);
}
template <class... F>
void parallel_invoke(F&&... f) {
  JobQueue::common().invoke(std::forward<F>(f)...);
}

}  // namespace fiberthread
