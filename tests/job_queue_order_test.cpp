// SPDX-License-Identifier: MIT
// Which task of a JobQueue begins next, and that tasks may wait for each other.
#include "fiberthread/job_queue.h"

#include "tests/test.h"

#include <errno.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/jobs.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// With one worker, without chaos and without preemption, the order is certain.
Test(job_queue_order, first_in_first_out_and_a_yield_goes_to_the_end) {
  chaos_seed = 0;
  options.preempt = false;
  run_on(1, 0);
  static std::vector<int> order;
  struct Job {
    int n;
    static void* run(void* p) {
      int n = static_cast<Job*>(p)->n;
      void* stack = __builtin_frame_address(0);
      for (int round = 0; round < 3; round++) {
        order.push_back(10 * round + n);
        cr_assert_eq(JobQueue::yield(), 0);
        cr_assert_eq(__builtin_frame_address(0), stack);
      }
      return nullptr;
    }
  };
  Threads t;
  t.fiber([] {
    JobQueue q;
    Job jobs[] = {{0}, {1}, {2}, {3}};
    Task tasks[4];
    for (int i = 0; i < 4; i++) {
      tasks[i].set(Job::run, &jobs[i]);
      q.run(tasks[i]);
    }
    for (auto& task : tasks) q.wait(task);
  });
  t.join();
  std::vector<int> expected;
  for (int round = 0; round < 3; round++)
    for (int n = 0; n < 4; n++) expected.push_back(10 * round + n);
  cr_assert(order == expected);
}

// Tasks wait for tasks that come after them, deeper than there are workers or kept fibers.
Test(job_queue_order, tasks_may_wait_for_later_tasks) {
  static JobQueue q(1);
  struct Link {
    Task task;
    Link* next = nullptr;
    static void* run(void* p) {
      auto* l = static_cast<Link*>(p);
      void* below = nullptr;
      int e = 0;
      while (l->next && (e = q.wait(l->next->task, &below)) == EINVAL) give_way();  // the next task is not queued yet
      cr_assert_eq(e, 0);
      return number(reinterpret_cast<uintptr_t>(below) + 1);
    }
  };
  std::vector<Link> links(100);
  for (size_t i = 0; i < links.size(); i++) {
    links[i].task.set(Link::run, &links[i]);
    if (i + 1 < links.size()) links[i].next = &links[i + 1];
  }
  for (auto& l : links) cr_assert_eq(q.run(l.task), 0);
  void* result;
  cr_assert_eq(q.wait(links[0].task, &result), 0);
  cr_assert_eq(result, number(100));
}

// The stack pointer differs at each call. Otherwise the fiber would be taken for a spinner, and would get another slot.
[[gnu::noinline]] void computes_at(uintptr_t depth) {
  auto* room = static_cast<volatile char*>(__builtin_alloca(depth * 16 + 16));
  for (int i = 0; i < 1000; i++) room[0] = static_cast<char>(i);
}

// While a task that has begun is preempted, no other task begins that would share the worker with it. A try counts only if the first task
// was preempted all the time that the test looked, and not longer than a scout waits.
Test(job_queue_order, preempted_task_goes_first, .timeout = 120) {
  options.preempt_us = 500;
  chaos_seed = 0;
  run_on(1, 0);
  static std::atomic<FiberRecord*> first;
  static std::atomic<bool> enough, other_begun;
  int told = 0;
  Threads t;
  t.fiber([&] {
    for (uint64_t end = now_ns() + 60'000 * kMs; told < 3 && now_ns() < end;) {
      JobQueue q;
      first = nullptr;
      enough = other_begun = false;
      Task computes(
          [](void*) -> void* {
            first = self();
            for (uintptr_t depth = 1; !enough; depth++) computes_at(depth % 64);
            return other_begun ? &other_begun : nullptr;
          },
          nullptr);
      Task other(
          [](void*) -> void* {
            other_begun = true;
            return nullptr;
          },
          nullptr);
      uint64_t start = now_ns();
      InTurn in_turn;
      cr_assert_eq(q.run(computes), 0);
      cr_assert_eq(q.run(other), 0);
      while (!first) give_way();
      bool counts = true;
      for (int i = 0; i < 6; i++) {  // the scout looks in between
        counts &= first.load()->run.state == State::Queued && first.load()->turns.preempted;
        give_way();
      }
      enough = true;
      void* result;
      cr_assert_eq(q.wait(computes, &result), 0);
      counts &= now_ns() - start < 90 * kMs && in_turn.held();
      cr_assert_eq(q.wait(other), 0);
      if (!counts) continue;
      told++;
      cr_assert_null(result);
    }
  });
  t.join();
  if (!told) cr_skip_test("the machine is too slow");
}

Test(job_queue_order, a_task_may_spin_for_a_later_one) {
  options.workers = 1;
  static std::atomic<bool> later{false};
  Threads t;
  t.fiber([] {
    JobQueue q;
    Task first(
        [](void*) -> void* {
          while (!later.load(std::memory_order_relaxed)) cpu_relax();
          return nullptr;
        },
        nullptr);
    Task second(
        [](void*) -> void* {
          later = true;
          return nullptr;
        },
        nullptr);
    q.run(first);
    q.run(second);
    cr_assert_eq(q.wait(first), 0);
  });
}

}  // namespace
