// JobQueue: what each sentence of job_queue.h says, from fibers and from kernel threads.
#include "fiberthread/job_queue.h"

#include "tests/test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "fiberthread/fiber_futex.h"
#include "fiberthread/fiberthread.h"
#include "fiberthread/fiber.h"
#include "fiberthread/semaphore.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

void* twice(void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) * 2); }
void* number(uintptr_t n) { return reinterpret_cast<void*>(n); }

// Runs it as a fiber and as a kernel thread.
template <class F>
void as_both(F f) {
  Threads t;
  t.fiber(f);
  t.kernel(f);
}

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
      cr_assert_eq(q.wait(tasks[i]), 0);  // again
      cr_assert(!q.withdraw(tasks[i]));
    }
    cr_assert_eq(q.run(tasks[0]), 0);  // used again
    cr_assert_eq(q.wait(tasks[0]), 0);
  });
  Task never(twice, nullptr);
  cr_assert_eq(q.wait(never), EINVAL);
  cr_assert(!never.done());
  cr_assert(!q.withdraw(never));
}

// A job that waits until it is let go.
struct Gate {
  FiberFutex open;
  std::atomic<int> inside{0};
  static void* pass(void* p) {
    auto* g = static_cast<Gate*>(p);
    g->inside++;
    g->open.wait(1);
    return g;
  }
};

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
  cr_assert_eq(q.wait(last), 0);  // though all before it wait
  while (gate.inside < 200) yield();
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
  while (gate.inside == 0 || queued(&task) + 1 == 0) yield();
  usleep(2000);
  cr_assert_eq(fiberthread_cancel(f), 0);
  void* result;
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, number(ECANCELED));
  gate.open.post();
  cr_assert_eq(q.wait(task, &result), 0);
  cr_assert_eq(result, &gate);
}

// With one worker, and without chaos and preemption, the order is seen.
Test(job_queue, first_in_first_out_and_a_yield_goes_to_the_end) {
  chaos_seed = 0;
  options.preempt = false;
  run_on(1);
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
  while (gate.inside < 50) yield();
  cr_assert_geq(live_fibers() - before, 50);
  gate.open.post();
  for (auto& t : tasks) q.wait(t);
  while (live_fibers() > before + 2) usleep(100);
}

Test(job_queue, withdraws_what_has_not_begun) {
  run_on(1);
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
      Busy busy;  // nobody takes them away meanwhile on our only worker
      InTurn in_turn;
      cr_assert_eq(q.run(a) + q.run(b) + q.run(c), 0);
      if (!q.withdraw(b)) {
        cr_assert(!in_turn.held());  // on another one: the kernel had stopped ours
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

// Every index once, in parts of at least the grain, in as many parts as make sense.
Test(job_queue, parallel_for_covers_the_range) {
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

Test(job_queue, parallel_for_runs_on_several_workers) {
  options.workers = 4;
  std::atomic<int> inside{0};
  bool together = false;
  as_both([&] {
    JobQueue::common().parallel_for(
        0, 4,
        [&](size_t, size_t) {
          inside++;
          // Until all four are in, which only four fibers at once can be.
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
  as_both([&] {
    parallel_for(0, 20, [&](size_t) {
      parallel_for(0, 20, [&](size_t) { parallel_for(0, 5, [&](size_t i) { sum += i; }); });
    });
  });
  cr_assert_eq(sum, 2 * 4000);
}
Test(job_queue, nested_without_deadlock_on_1_worker, .timeout = 240) { nested(1); }
Test(job_queue, nested_without_deadlock_on_2_workers, .timeout = 240) { nested(2); }
Test(job_queue, nested_without_deadlock_on_16_workers, .timeout = 240) { nested(16); }

Test(job_queue, invoke_calls_each_once) {
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
    cr_assert_eq(result, &gate);  // and not what was refused
    cr_assert_eq(fiberthread_task_yield(), EPERM);
    std::atomic<size_t> sum{0};
    fiberthread_parallel_for(0, 100, 0, [](void* p, size_t first, size_t last) {
      for (; first < last; first++) *static_cast<std::atomic<size_t>*>(p) += first;
    }, &sum);
    void (*add[])(void*) = {[](void* p) { *static_cast<std::atomic<size_t>*>(p) += 1; }, [](void* p) { *static_cast<std::atomic<size_t>*>(p) += 2; }};
    void* arguments[] = {&sum, &sum};
    fiberthread_parallel_invoke(add, arguments, 2);
    cr_assert_eq(sum, 4953);
  });
}

#if defined(__x86_64__)
// Memory for a fiber comes and goes: what was taken is done, and nobody else has to come for that.
Test(job_queue, without_memory_no_task_is_forgotten, .timeout = 120) {
  constexpr int kThreads = 3, kRounds = 200;
  chaos_seed = 5;
  auto q = std::make_unique<JobQueue>(0);
  std::atomic<int> done{0}, taken{0}, refused{0};
  std::atomic<bool> over{false};
  std::vector<Fiber> hoard;
  Rounds rounds(kThreads + 1);
  Threads t;
  for (int i = 0; i < kThreads; i++)
    t.kernel([&] {
      (void)self();  // its record takes memory too
      rounds.meet();
      for (int r = 0; r < kRounds; r++) {
        rounds.meet();
        Task task([](void* p) -> void* { return (*static_cast<std::atomic<int>*>(p))++, nullptr; }, &done);
        int e = q->run(task);
        cr_assert(e == 0 || e == EAGAIN);
        e ? refused++ : taken++;
        if (e == 0) cr_assert_eq(q->wait(task), 0);
        rounds.meet();
      }
    });
  // By no worker: what a worker discards it keeps for itself at first, and the others would get none of it.
  t.kernel([&] {
    (void)self();
    rounds.meet();
    rlimit all{}, little{};
    getrlimit(RLIMIT_AS, &all);
    long pages = 0;
    FILE* f = fopen("/proc/self/statm", "r");
    cr_assert(fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    little = all;
    little.rlim_cur = static_cast<rlim_t>(pages) * 4096;
    hoard.reserve(100'000);
    setrlimit(RLIMIT_AS, &little);
    for (int r = 0; r < kRounds; r++) {
      while (hoard.size() < hoard.capacity()) {
        Fiber one = Fiber::create([] {});
        if (!one) break;
        hoard.push_back(std::move(one));
      }
      for (int n = r % 3; n && !hoard.empty(); n--) hoard.pop_back();
      rounds.meet();
      rounds.meet();
    }
    setrlimit(RLIMIT_AS, &all);
    over = true;
  });
  // Not in the join, which is libc's: that would keep the only worker there is, and there is no memory for another.
  while (!over) yield();
  t.join();
  q.reset();
  cr_assert_eq(done, taken);
  cr_assert(taken > 0 && refused > 0, "%d taken, %d refused", taken.load(), refused.load());
}

// Each mmap() of the kernel thread that has called enter() fails, after what another thread, in answer(), does first.
class NoMemory {
 public:
  bool enter() {  // false: the kernel cannot
    sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog program = {4, code};
    raw_syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener_ = static_cast<int>(raw_syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, arg(&program)));
    return listener_ >= 0;
  }
  template <class F>
  void answer(const std::atomic<bool>& over, F before) {
    for (pollfd p{listener_, POLLIN, 0}; !over;) {
      seccomp_notif asked{};
      if (raw_syscall(SYS_poll, arg(&p), 1, 20) != 1 || raw_syscall(SYS_ioctl, listener_, SECCOMP_IOCTL_NOTIF_RECV, arg(&asked)) != 0) continue;
      before();
      seccomp_notif_resp answer{asked.id, 0, -ENOMEM, 0};
      raw_syscall(SYS_ioctl, listener_, SECCOMP_IOCTL_NOTIF_SEND, arg(&answer));
    }
    raw_syscall(SYS_close, listener_);
  }

 private:
  int listener_ = -1;
};

// A task comes while another makes the first fiber, for which there turns out to be no memory. Either there is no other fiber, or there
// is one that has come to rest meanwhile.
void comes_while_the_first_is_made(bool one_rests) {
  cr_assert_eq(Fiber::spawn([] {}).join(), 0);
  static FiberRecord* resting = nullptr;
  static Gate gate;
  JobQueue q(1);
  Task before([](void* p) -> void* { return resting = self(), Gate::pass(p); }, &gate);
  Task makes(twice, number(1)), comes(twice, number(2)), never(twice, nullptr);
  NoMemory memory;
  std::atomic<int> entered{0};
  std::atomic<bool> makes_it{false}, let_come{false}, came{false}, over{false};
  if (one_rests) {
    cr_assert_eq(q.run(before), 0);
    while (gate.inside == 0) yield();
  }
  Threads t;
  t.kernel([&] {
    std::vector<Fiber> hoard;
    hoard.reserve(100'000);
    (void)self();
    int can = memory.enter() ? 1 : -1;
    entered = can;
    while (can == 1 && hoard.size() < hoard.capacity()) {
      Fiber one = Fiber::create([] {});
      if (!one) break;
      hoard.push_back(std::move(one));
    }
    makes_it = true;
    if (can == 1) cr_assert_eq(q.run(makes), one_rests ? 0 : EAGAIN);
    over = true;
  });
  t.kernel([&] {
    (void)self();
    while (!let_come && !over) yield();
    if (let_come) cr_assert_eq(q.run(comes), 0);
    came = true;
  });
  while (!entered) yield();
  memory.answer(over, [&] {
    if (!makes_it || let_come) return;
    if (one_rests) {
      cr_assert(q.withdraw(makes));
      gate.open.post();
      cr_assert_eq(q.wait(before), 0);
      while (resting->state.load() != State::Parked) yield();
    }
    let_come = true;
    while (q.wait(comes, nullptr, 0) == EINVAL) yield();
    cr_assert(!q.withdraw(never));  // who has queued it has left the lock
  });
  if (entered == 1) {
    cr_assert(let_come);
    while (!came) yield();
    void* result;
    cr_assert_eq(q.wait(comes, &result, 60'000 * kMs), 0);
    cr_assert_eq(result, number(4));
  }
  t.join();
  if (entered != 1) cr_skip_test("no seccomp with a listener");
}
Test(job_queue, what_comes_while_the_first_fiber_cannot_be_made_is_not_forgotten, .timeout = 120) { comes_while_the_first_is_made(false); }
Test(job_queue, nor_if_one_has_come_to_rest_meanwhile, .timeout = 120) { comes_while_the_first_is_made(true); }
#endif

// A task that was waited for may go: what its end still has to do wakes nobody who waits for another object there.
Test(job_queue, a_tasks_place_may_be_used_again) {
  alignas(8) static unsigned char memory[sizeof(Task)];
  static std::atomic<int> go;
  JobQueue q;
  int spurious = 0;
  for (size_t i = 0; i < 600; i++) {
    go = 0;
    auto* t = new (memory) Task(
        [](void*) -> void* {
          while (!go) yield();
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

// Tasks that wait for tasks that come after them, deeper than there are workers or kept fibers.
Test(job_queue, tasks_may_wait_for_later_tasks) {
  static JobQueue q(1);
  struct Link {
    Task task;
    Link* next = nullptr;
    static void* run(void* p) {
      auto* l = static_cast<Link*>(p);
      void* below = nullptr;
      int e = 0;
      while (l->next && (e = q.wait(l->next->task, &below)) == EINVAL) yield();  // it is not queued yet
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

// Each time with the stack pointer elsewhere, so that it is not taken for a spinner, for which there would be another slot.
[[gnu::noinline]] void computes_at(uintptr_t depth) {
  auto* room = static_cast<volatile char*>(__builtin_alloca(depth * 16 + 16));
  for (int i = 0; i < 1000; i++) room[0] = static_cast<char>(i);
}

// While a task that has begun is preempted, none is begun, to share the worker with it. A try counts if the first was preempted all the
// time that the test looked, and not for longer than a scout has patience.
Test(job_queue, what_is_preempted_goes_first, .timeout = 120) {
  options.preempt_us = 500;
  chaos_seed = 0;
  run_on(1);
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
      while (!first) yield();
      bool counts = true;
      for (int i = 0; i < 6; i++) {  // between which the scout looks
        counts &= first.load()->state == State::Queued && first.load()->preempted;
        yield();
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

Test(job_queue, a_task_may_spin_for_a_later_one) {
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

#if defined(__x86_64__)  // the emulator cannot fork with threads
Test(job_queue, a_child_of_fork_has_its_own) {
  JobQueue q;
  Gate gate;
  Task held(Gate::pass, &gate), in_child(twice, number(21));
  cr_assert_eq(q.run(held), 0);
  while (!gate.inside) yield();
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

// Everything at once, half of the users kernel threads: each task runs once, for each run.
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
      case 1: fiberthread::yield(); break;
      case 2: usleep(50); break;
      case 3: {
        Job inner{j->ran, j->q, j->how / 5};
        Task t([](void* a) -> void* {
          auto* i = static_cast<Job*>(a);
          if (i->how % 2) JobQueue::yield();
          (*i->ran)--;
          return nullptr;
        }, &inner);
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
            while ((e = q->wait(tasks[i], &result, random(2) ? random(100000) : UINT64_MAX)) == ETIMEDOUT) {}
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
