// SPDX-License-Identifier: MIT
// parallel_for, and fork and join: what each sentence of job_queue.h says.
#include "fiberthread/job_queue.h"

#include "tests/test.h"

#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <vector>

#include "sched/worker.h"
#include "tests/jobs.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// Every index comes once, in parts of at least the grain size, and in as many parts as make sense.
Test(parallel, parallel_for_covers_the_range) {
  JobQueue q;
  as_both([&] {
    for (size_t n : {0, 1, 2, 7, 100, 10007})
      for (size_t grain : {0, 1, 3, 64, 20000}) {
        std::vector<std::atomic<int>> hits(n + 10);
        std::atomic<size_t> small{0};
        q.parallel_for(
            5, 5 + n,
            [&](size_t first, size_t last) {
              cr_assert_lt(first, last);
              if (last - first < grain && ++small) cr_assert_eq(last, 5 + n);
              for (size_t i = first; i < last; i++) hits[i]++;
            },
            grain);
        cr_assert_leq(small, 1);
        for (size_t i = 0; i < hits.size(); i++) cr_assert_eq(hits[i], i >= 5 && i < 5 + n);
      }
  });
  std::atomic<size_t> sum{0};
  parallel_for(0, 1000, [&](size_t i) { sum += i; });
  cr_assert_eq(sum, 499500);
}

Test(parallel, parallel_for_runs_on_several_workers) {
  options.workers = 4;
  std::atomic<int> inside{0};
  bool together = false;
  as_both([&] {
    JobQueue::common().parallel_for(
        0, 4,
        [&](size_t, size_t) {
          inside++;
          // Waits until all four are inside, which is only possible if four fibers run at once.
          for (int i = 0; inside < 4 && i < 10000; i++) usleep(100);
          if (inside >= 4) together = true;
        },
        1);
    inside = 0;
  });
  cr_assert(together);
}

long fib(int n) {
  if (n < 2) return n;
  long a, b;
  parallel_invoke([&] { a = fib(n - 1); }, [&] { b = fib(n - 2); });
  return a + b;
}

void nested(unsigned workers) {
  options.workers = workers;
  as_both([] { cr_assert_eq(fib(16), 987); });
  std::atomic<size_t> sum{0};
  as_both(
      [&] { parallel_for(0, 20, [&](size_t) { parallel_for(0, 20, [&](size_t) { parallel_for(0, 5, [&](size_t i) { sum += i; }); }); }); });
  cr_assert_eq(sum, 2 * 4000);
}
Test(parallel, nested_without_deadlock_on_1_worker, .timeout = 240) { nested(1); }
Test(parallel, nested_without_deadlock_on_2_workers, .timeout = 240) { nested(2); }
Test(parallel, nested_without_deadlock_on_16_workers, .timeout = 240) { nested(16); }

Test(parallel, invoke_calls_each_once) {
  int a = 0, b = 0, c = 0;
  JobQueue q;
  q.invoke([&] { a++; });
  q.invoke([&] { a++; }, [&] { b++; }, [&] { c++; });
  cr_assert(a == 2 && b == 1 && c == 1);
  std::atomic<int> counts[40] = {};
  void (*functions[40])(void*);
  void* arguments[40];
  for (int i = 0; i < 40; i++) {
    functions[i] = [](void* p) { (*static_cast<std::atomic<int>*>(p))++; };
    arguments[i] = &counts[i];
  }
  q.invoke_all(functions, arguments, 0);
  q.invoke_all(functions, arguments, 40);
  for (auto& n : counts) cr_assert_eq(n, 1);
}

}  // namespace
