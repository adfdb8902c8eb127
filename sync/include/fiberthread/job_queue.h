// SPDX-License-Identifier: MIT
// JobQueue: many small jobs on few fibers, with their results. Over it stand parallel_for and invoke, the two shapes that most parallel
// code has.
//
// Tasks wait in an unbounded queue, in the order in which they came. The queue has a ring of fibers, which it uses again and again. A task
// gets a fiber when it is first taken out. So a task that has not begun costs no stack, and a task that does not wait costs no switch. A
// task that yields goes back to the end of the queue with its fiber. A task may wait for anything, other tasks of its queue included. While
// there are tasks and no fiber to run them, the queue makes another fiber.
//
// Cost: run and wait of an empty task cost about as much as two locked sections and a wake-up. A Task is in its caller's memory, and a
// fiber of the ring has a stack like a thread. Fairness: first in, first out. But tasks that were preempted go on before others begin.
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

// A job: function(argument), and its result. Its owner keeps it until wait() or withdraw() has returned for it, and may then use it again.
// No member parks.
class Task {
 public:
  Task() = default;
  Task(void* (*function)(void*), void* argument) : function_(function), argument_(argument) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  // Sets the function and its argument. Not while the task is with a queue.
  void set(void* (*function)(void*), void* argument) {
    function_ = function;
    argument_ = argument;
  }
  // Returns whether the job is done. Acquire: the caller sees what the job did. Fibers, foreign threads and signal handlers.
  bool done() const { return (state_.load(std::memory_order_acquire) & 3) == kDone; }
  // Returns the result of the function. Only once the job is done.
  void* result() const { return result_; }

 private:
  friend class JobQueue;
  friend struct JobQueueInside;
  // kWaited is set on top of these while a thread waits for the end.
  enum : uint32_t { kIdle = 0, kQueued = 1, kRunning = 2, kDone = 3, kWaited = 4 };
  void* (*function_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* result_ = nullptr;
  Task* next_ = nullptr;
  Task* prev_ = nullptr;
  JobFiber* fiber_ = nullptr;  // the fiber that the task has begun on
  std::atomic<uint32_t> state_{kIdle};
};

// Fibers and foreign threads may call all members; signal handlers must not. Jobs must not throw, and must not end their thread.
class FIBERTHREAD_API JobQueue {
 public:
  // Makes a queue that keeps up to `fibers_kept` idle fibers for later. Never parks.
  explicit JobQueue(unsigned fibers_kept = 32);
  // Waits until all tasks of the queue are done and its fibers have ended. May park.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // Returns the queue of the process, which is never destroyed. Never parks.
  static JobQueue& common();

  // Puts a task at the end of the queue, and returns 0. EAGAIN: there is no memory for a fiber, and the task is not queued. EBUSY: the task
  // is with a queue already. Does not wait for the task.
  int run(Task& task);

  // Waits until the task is done, stores its result in `*result` and returns 0. The task may be destroyed then. ETIMEDOUT: it was not done
  // within `timeout_ns` nanoseconds. ECANCELED: the caller was cancelled; the task goes on, and the caller may wait again. EINVAL: the task
  // was not run. Several threads may wait. May park.
  int wait(Task& task, void** result = nullptr, uint64_t timeout_ns = UINT64_MAX);

  // Takes a task that has not begun out of the queue. Returns false if the task has begun or is done. Never parks.
  bool withdraw(Task& task);

  // Puts the task of the caller back to the end of its queue, waits for its turn and returns 0. EPERM: the caller runs no task. EAGAIN:
  // there is no memory for a fiber that could run other tasks. May park.
  static int yield();

  // Returns how many jobs can run at once, which is the number of workers. Never parks.
  static unsigned width();

  // Calls body(context, first, last) for parts [first, last) that make up [begin, end). Idle workers take part, and so does the caller.
  // Returns when all parts are done. Each part except the last has at least `grain` indices. 0 lets the library choose. Parts begin large
  // and become smaller (guided self-scheduling: Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987), so that all workers
  // end together. Calls may be nested. Cancellation does not end it. Without memory for more fibers, the caller does all of it. May park.
  void parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void* context, size_t first, size_t last), void* context);

  // Does the same with any function object: body(first, last), or body(index) for each index. May park.
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

  // Calls all functions, perhaps at once (fork and join). The first runs on the caller. Returns when all have returned. Calls may be
  // nested. The caller runs the functions that no other thread has begun by then, so recursion costs little more than calls. May park.
  template <class First, class... Others>
  void invoke(First&& first, Others&&... others) {
    Call all[] = {call_of(others)..., Call{}};
    call_all(call_of(first), all, sizeof...(others));
  }
  // Calls functions[i](arguments[i]) for each i below n, in the same way. May park.
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

// Does the same on the queue of the process. Fibers and foreign threads. May park.
template <class Body>
void parallel_for(size_t begin, size_t end, Body&& body, size_t grain = 0) {
  JobQueue::common().parallel_for(begin, end, std::forward<Body>(body), grain);
}
template <class... F>
void parallel_invoke(F&&... f) {
  JobQueue::common().invoke(std::forward<F>(f)...);
}

}  // namespace fiberthread
