// SPDX-License-Identifier: MIT
// The two shapes that most parallel code has, over a JobQueue: parallel_for, and fork and join.
#include <new>

#include "fiberthread/fiberthread.h"
#include "shim/fibers/job_queue_inside.h"

namespace fiberthread {
namespace {

struct Loop {
  std::atomic<size_t> next;
  size_t end, grain, width;
  void (*body)(void*, size_t, size_t);
  void* context;

  void work() {
    constexpr size_t kShare = 4;  // each worker would get so many parts if all were as large as the next one
    for (size_t first = next.load(std::memory_order_relaxed);;) {
      size_t left, size;
      do {
        if (first >= end) return;
        left = end - first;
        size = left / (kShare * width);
        if (size < grain) size = grain;
        if (size > left) size = left;
        // Relaxed: publishing the task has published the loop's fields.
      } while (!next.compare_exchange_weak(first, first + size, std::memory_order_relaxed));
      body(context, first, first + size);
      first = next.load(std::memory_order_relaxed);
    }
  }
};

}  // namespace

void JobQueue::parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void*, size_t, size_t), void* context) {
  if (begin >= end) return;
  if (grain == 0) grain = 1;
  size_t helpers = (end - begin - 1) / grain, width = JobQueue::width();
  if (helpers > width - 1) helpers = width - 1;
  Loop loop{begin, end, grain, helpers + 1, body, context};
  auto* tasks = static_cast<Task*>(__builtin_alloca(helpers * sizeof(Task)));
  for (size_t i = 0; i < helpers; i++) {
    new (&tasks[i]) Task(
        [](void* p) -> void* {
          static_cast<Loop*>(p)->work();
          return nullptr;
        },
        &loop);
    if (run(tasks[i]) != 0) helpers = i;  // the loop goes on with the helpers that it has
  }
  loop.work();
  for (size_t i = helpers; i-- > 0;)
    if (!withdraw(tasks[i])) JobQueueInside::wait(tasks[i], nullptr, kNever, 0);
}

void JobQueue::call_all(const Call& mine, const Call* others, size_t n) {
  auto* tasks = static_cast<Task*>(__builtin_alloca(n * sizeof(Task)));
  auto call = [](void* p) -> void* {
    auto* c = static_cast<const Call*>(p);
    c->function(c->object);
    return nullptr;
  };
  for (size_t i = 0; i < n; i++) {
    new (&tasks[i]) Task(call, const_cast<Call*>(&others[i]));
    run(tasks[i]);  // the loop below calls a task that the queue does not take
  }
  mine.function(mine.object);
  for (size_t i = n; i-- > 0;) {
    bool here = withdraw(tasks[i]) || (tasks[i].state_.load(std::memory_order_relaxed) & 3) == Task::kIdle;
    if (here) others[i].function(others[i].object);
    else JobQueueInside::wait(tasks[i], nullptr, kNever, 0);
  }
}

void JobQueue::invoke_all(void (*const* functions)(void*), void* const* arguments, size_t n) {
  constexpr size_t kMost = 256;  // calls on the stack at once. Nothing promises that all functions run side by side.
  for (; n > kMost; n -= kMost, functions += kMost, arguments += kMost) invoke_all(functions, arguments, kMost);
  if (n == 0) return;
  auto* calls = static_cast<Call*>(__builtin_alloca(n * sizeof(Call)));
  for (size_t i = 0; i < n; i++) calls[i] = {functions[i], arguments[i]};
  call_all(calls[0], calls + 1, n - 1);
}

}  // namespace fiberthread

using namespace fiberthread;

extern "C" {

FIBERTHREAD_API void fiberthread_parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void*, size_t, size_t), void* context) {
  JobQueue::common().parallel_for(begin, end, grain, body, context);
}
FIBERTHREAD_API void fiberthread_parallel_invoke(void (*const* functions)(void*), void* const* arguments, size_t n) {
  JobQueue::common().invoke_all(functions, arguments, n);
}

}  // extern "C"
