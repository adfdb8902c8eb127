// SPDX-License-Identifier: MIT
// JobQueue: what each sentence of job_queue.h says, from fibers and from kernel threads.
#include "fiberthread/job_queue.h"

#include "tests/test.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "fiberthread/fiberthread.h"
#include "fiberthread/semaphore.h"
#include "tests/jobs.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(job_queue, results_come_back) {
  JobQueue q;
  as_both([&] {
    Task tasks[100];
    for (uintptr_t i = 0; i < 100; i++) {
      tasks[i].set(twice, number(i));
      cr_assert_eq(q.run(tasks[i]), 0);
    }
    for (uintptr_t i = 0; i < 100; i++) {
      void* result;
      cr_assert_eq(q.wait(tasks[i], &result), 0);
      cr_assert(tasks[i].done());
      cr_assert_eq(result, number(2 * i));
      cr_assert_eq(tasks[i].result(), result);
      cr_assert_eq(q.wait(tasks[i]), 0);  // a second wait
      cr_assert(!q.withdraw(tasks[i]));
    }
    cr_assert_eq(q.run(tasks[0]), 0);  // the task is used again
    cr_assert_eq(q.wait(tasks[0]), 0);
  });
  Task never(twice, nullptr);
  cr_assert_eq(q.wait(never), EINVAL);
  cr_assert(!never.done());
  cr_assert(!q.withdraw(never));
}

Test(job_queue, tasks_that_wait_do_not_keep_others_from_running) {
  JobQueue q;
  Gate gate;
  std::vector<std::unique_ptr<Task>> waiting;
  for (int i = 0; i < 200; i++) {
    waiting.push_back(std::make_unique<Task>(Gate::pass, &gate));
    cr_assert_eq(q.run(*waiting.back()), 0);
  }
  Task last(twice, number(4));
  cr_assert_eq(q.run(last), 0);
  cr_assert_eq(q.wait(last), 0);  // though all tasks before it wait
  while (gate.inside < 200) give_way();
  cr_assert_eq(q.wait(*waiting[0], nullptr, 0), ETIMEDOUT);
  cr_assert_eq(q.wait(*waiting[0], nullptr, 2 * kMs), ETIMEDOUT);
  cr_assert_eq(q.run(*waiting[0]), EBUSY);
  cr_assert(!q.withdraw(*waiting[0]));
  gate.open.post();
  for (auto& t : waiting) cr_assert_eq(q.wait(*t), 0);
}

Test(job_queue, a_cancelled_waiter_gives_up_and_the_task_goes_on) {
  JobQueue q;
  Gate gate;
  Task task(Gate::pass, &gate);
  cr_assert_eq(q.run(task), 0);
  struct Both {
    JobQueue* q;
    Task* task;
  } both{&q, &task};
  fiberthread_t f;
  cr_assert_eq(fiberthread_spawn(
                   &f, nullptr,
                   [](void* p) -> void* {
                     auto* b = static_cast<Both*>(p);
                     return number(static_cast<uintptr_t>(b->q->wait(*b->task)));
                   },
                   &both),
               0);
  while (gate.inside == 0 || queued(&task) + 1 == 0) give_way();
  usleep(2000);
  cr_assert_eq(fiberthread_cancel(f), 0);
  void* result;
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, number(ECANCELED));
  gate.open.post();
  cr_assert_eq(q.wait(task, &result), 0);
  cr_assert_eq(result, &gate);
}

Test(job_queue, yield_is_for_jobs) {
  as_both([] { cr_assert_eq(JobQueue::yield(), EPERM); });
}

Test(job_queue, fibers_are_used_again) {
  JobQueue q;
  uint64_t before = fibers_spawned();
  for (int i = 0; i < 2000; i++) {
    Task task(twice, nullptr);
    q.run(task);
    q.wait(task);
  }
  cr_assert_leq(fibers_spawned() - before, 100);
}

Test(job_queue, keeps_no_more_fibers_than_asked_for) {
  JobQueue q(2);
  uint64_t before = live_fibers();
  Gate gate;
  Task tasks[50];
  for (auto& t : tasks) {
    t.set(Gate::pass, &gate);
    q.run(t);
  }
  while (gate.inside < 50) give_way();
  cr_assert_geq(live_fibers() - before, 50);
  gate.open.post();
  for (auto& t : tasks) q.wait(t);
  while (live_fibers() > before + 2) usleep(100);
}

Test(job_queue, withdraws_what_has_not_begun) {
  run_on(1, 0);
  Threads t;
  t.fiber([] {
    for (bool done = false; !done;) {
      JobQueue q;
      std::atomic<int> ran{0};
      auto count = [](void* p) -> void* {
        (*static_cast<std::atomic<int>*>(p))++;
        return nullptr;
      };
      Task a(count, &ran), b(count, &ran), c(count, &ran);
      Busy busy;  // our only worker cannot run them meanwhile
      InTurn in_turn;
      cr_assert_eq(q.run(a) + q.run(b) + q.run(c), 0);
      if (!q.withdraw(b)) {
        cr_assert(!in_turn.held());  // another worker has run it, because the kernel had stopped ours
        cr_assert_eq(q.wait(a) + q.wait(b) + q.wait(c), 0);
        continue;
      }
      cr_assert(!q.withdraw(b));
      cr_assert_eq(q.wait(b), EINVAL);
      cr_assert_eq(q.wait(a), 0);
      cr_assert_eq(q.wait(c), 0);
      cr_assert_eq(ran, 2);
      cr_assert_eq(q.run(b), 0);
      cr_assert_eq(q.wait(b), 0);
      cr_assert_eq(ran, 3);
      done = true;
    }
  });
}

Test(job_queue, destruction_waits_for_all) {
  std::atomic<int> ran{0};
  Task tasks[50];
  {
    JobQueue q;
    for (auto& t : tasks) {
      t.set(
          [](void* p) -> void* {
            usleep(1000);
            (*static_cast<std::atomic<int>*>(p))++;
            return nullptr;
          },
          &ran);
      q.run(t);
    }
  }
  cr_assert_eq(ran, 50);
  for (auto& t : tasks) cr_assert(t.done());
}

Test(job_queue, the_c_names) {
  as_both([] {
    fiberthread_task_t tasks[20] = {};
    cr_assert_eq(fiberthread_task_wait(&tasks[0], nullptr, 0), EINVAL);
    for (uintptr_t i = 0; i < 20; i++) cr_assert_eq(fiberthread_task_run(&tasks[i], twice, number(i)), 0);
    for (uintptr_t i = 0; i < 20; i++) {
      void* result;
      cr_assert_eq(fiberthread_task_wait(&tasks[i], &result, FIBERTHREAD_FOREVER), 0);
      cr_assert_eq(result, number(2 * i));
      cr_assert_eq(fiberthread_task_withdraw(&tasks[i]), 0);
    }
    Gate gate;
    cr_assert_eq(fiberthread_task_run(&tasks[0], Gate::pass, &gate), 0);
    cr_assert_eq(fiberthread_task_run(&tasks[0], twice, nullptr), EBUSY);
    cr_assert_eq(fiberthread_task_wait(&tasks[0], nullptr, kMs), ETIMEDOUT);
    gate.open.post();
    void* result;
    cr_assert_eq(fiberthread_task_wait(&tasks[0], &result, FIBERTHREAD_FOREVER), 0);
    cr_assert_eq(result, &gate);  // the refused calls have not changed it
    cr_assert_eq(fiberthread_task_yield(), EPERM);
    std::atomic<size_t> sum{0};
    fiberthread_parallel_for(
        0, 100, 0,
        [](void* p, size_t first, size_t last) {
          for (; first < last; first++) *static_cast<std::atomic<size_t>*>(p) += first;
        },
        &sum);
    void (*add[])(void*) = {[](void* p) { *static_cast<std::atomic<size_t>*>(p) += 1; },
                            [](void* p) { *static_cast<std::atomic<size_t>*>(p) += 2; }};
    void* arguments[] = {&sum, &sum};
    fiberthread_parallel_invoke(add, arguments, 2);
    cr_assert_eq(sum, 4953);
  });
}

// A task may be destroyed once it was waited for. What its end still has to do wakes no waiter of another object there.
Test(job_queue, a_tasks_address_may_be_reused) {
  alignas(8) static unsigned char memory[sizeof(Task)];
  static std::atomic<int> go;
  JobQueue q;
  int spurious = 0;
  for (size_t i = 0; i < 600; i++) {
    go = 0;
    auto* t = new (memory) Task(
        [](void*) -> void* {
          while (!go) give_way();
          return nullptr;
        },
        nullptr);
    cr_assert_eq(q.run(*t), 0);
    q.wait(*t, nullptr, 1000);  // leaves the bit behind
    go = 1;
    while (q.wait(*t, nullptr, 1) != 0) {
    }
    auto* s = new (memory + i * 8 % sizeof(Task)) Semaphore(0);
    spurious += s->acquire_for(20'000) == 0;
    s->~Semaphore();
  }
  cr_assert_eq(spurious, 0);
}

#if defined(__x86_64__)  // the emulator cannot fork with threads
Test(job_queue, a_child_of_fork_has_its_own) {
  JobQueue q;
  Gate gate;
  Task held(Gate::pass, &gate), in_child(twice, number(21));
  cr_assert_eq(q.run(held), 0);
  while (!gate.inside) give_way();
  pid_t pid = fork();
  if (pid == 0) {
    void* result = nullptr;
    bool ok = q.run(in_child) == 0 && q.wait(in_child, &result) == 0 && result == number(42);
    size_t sum = 0;
    std::mutex m;
    q.parallel_for(0, 100, [&](size_t i) {
      std::lock_guard l(m);
      sum += i;
    });
    _exit(ok && sum == 4950 ? 0 : 1);
  }
  int status;
  cr_assert_eq(waitpid(pid, &status, 0), pid);
  cr_assert_eq(status, 0);
  gate.open.post();
  cr_assert_eq(q.wait(held), 0);
}
#endif

// Everything at once. Half of the users are kernel threads. Each task runs once for each run().
void stress(unsigned workers) {
  options.workers = workers;
  constexpr int kUsers = 6, kRounds = 150;
  auto q = std::make_unique<JobQueue>(4);
  std::atomic<long> ran{0}, asked{0};
  struct Job {
    std::atomic<long>* ran;
    JobQueue* q;
    uint32_t how;
  };
  auto body = [](void* p) -> void* {
    auto* j = static_cast<Job*>(p);
    switch (j->how % 5) {
      case 0: JobQueue::yield(); break;
      case 1: fiberthread::give_way(); break;
      case 2: usleep(50); break;
      case 3: {
        Job inner{j->ran, j->q, j->how / 5};
        Task t(
            [](void* a) -> void* {
              auto* i = static_cast<Job*>(a);
              if (i->how % 2) JobQueue::yield();
              (*i->ran)--;
              return nullptr;
            },
            &inner);
        if (j->q->run(t) != 0) break;
        if (j->how / 7 % 2 && j->q->withdraw(t)) break;
        cr_assert_eq(j->q->wait(t), 0);
        (*j->ran)++;
        break;
      }
      default: break;
    }
    (*j->ran)++;
    return p;
  };
  {
    Threads t;
    for (int u = 0; u < kUsers; u++) {
      auto user = [&, u] {
        Random random{static_cast<uint64_t>(u)};
        for (int r = 0; r < kRounds; r++) {
          Job jobs[8];
          Task tasks[8];
          for (int i = 0; i < 8; i++) {
            jobs[i] = {&ran, q.get(), random(1000)};
            tasks[i].set(body, &jobs[i]);
            cr_assert_eq(q->run(tasks[i]), 0);
            asked++;
          }
          for (int i = 0; i < 8; i++) {
            if (random(8) == 0 && q->withdraw(tasks[i])) {
              asked--;
              continue;
            }
            void* result;
            int e;
            while ((e = q->wait(tasks[i], &result, random(2) ? random(100000) : UINT64_MAX)) == ETIMEDOUT) {
            }
            cr_assert_eq(e, 0);
            cr_assert_eq(result, &jobs[i]);
          }
        }
      };
      u % 2 ? t.kernel(user) : t.fiber(user);
    }
  }
  q.reset();
  cr_assert_eq(ran, asked);
}

void stress_with_and_without_chaos(unsigned workers) {
  for (uint64_t seed : {0, 7}) {
    chaos_seed = seed;
    stress(workers);
  }
}
Test(job_queue, stress_on_1_worker, .timeout = 240) { stress_with_and_without_chaos(1); }
Test(job_queue, stress_on_2_workers, .timeout = 240) { stress_with_and_without_chaos(2); }
Test(job_queue, stress_on_16_workers, .timeout = 240) { stress_with_and_without_chaos(16); }

}  // namespace
