// SPDX-License-Identifier: MIT
// Cords: each sentence about them in fiberthread.h, for users in the cord, in other cords, in fibers and in kernel threads.
#include "fiberthread/cord.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/cords.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(cord, is_a_kernel_thread_with_a_name) {
  as_both([] {
    int mine = kernel_tid();
    Cord cord("the cord");
    cr_assert_eq(cord.error(), 0);
    cr_assert_str_eq(cord.name(), "the cord");
    cr_assert_null(fiberthread_cord_self());
    int tid = 0;
    for (int i = 0; i < 5; i++) {
      Fiber f = cord.spawn([&] {
        cr_assert_eq(fiberthread_cord_self(), cord.handle());
        cr_assert_eq(kernel_name(), "the cord");
        if (!tid) tid = kernel_tid();
        cr_assert_eq(kernel_tid(), tid);
        cr_assert_neq(kernel_tid(), mine);
      });
      cr_assert_eq(f.error(), 0);
      cr_assert_eq(f.join(), 0);
    }
    std::string task = "/proc/self/task/" + std::to_string(tid);
    cr_assert_eq(access(task.c_str(), F_OK), 0);
    cr_assert_eq(cord.join(), 0);
    for (int i = 0; access(task.c_str(), F_OK) == 0 && i < 10000; i++) usleep(1000);
    cr_assert_neq(access(task.c_str(), F_OK), 0);  // the kernel thread ends with the cord
    Cord bad("a name that is too long");
    cr_assert_eq(bad.error(), ERANGE);
  });
}

// At most one fiber of a cord runs at any time, and none is preempted. Each stays on the cord's kernel thread, whatever it waits for.
Test(cord, fibers_run_one_at_a_time_and_stay) {
  options.preempt_us = 200;
  options.workers = 4;
  as_both([] {
    Cord cord("one");
    int tid = 0, inside = 0;  // neither atomics nor locks protect these
    long sum = 0;
    std::mutex mutex;  // shared with fibers outside the cord
    std::atomic<bool> stop{false};
    Threads others;
    for (int i = 0; i < 2; i++)
      others.fiber([&] {
        while (!stop) {
          std::lock_guard l(mutex);
          give_way();
        }
      });
    std::vector<Fiber> fibers;
    for (int i = 0; i < 20; i++)
      fibers.push_back(cord.spawn([&, i] {
        for (int r = 0; r < 50; r++) {
          cr_assert_eq(inside++, 0);
          if (!tid) tid = kernel_tid();
          cr_assert_eq(kernel_tid(), tid);
          long before = sum;
          for (int k = 0; k < 2000; k++) asm volatile("");
          sum = before + 1;
          inside--;
          switch ((r + i) % 5) {
            case 0: give_way(); break;
            case 1: usleep(100); break;
            case 2: fiberthread_sleep(1000); break;
            case 3: {
              std::lock_guard l(mutex);
              give_way();
              break;
            }
            default: fiberthread_reschedule();
          }
        }
      }));
    join_all(fibers);
    stop = true;
    others.join();
    cr_assert_eq(sum, 1000);
  });
}

Test(cord, a_fiber_that_computes_is_not_interrupted) {
  options.preempt_us = 200;
  Cord cord("computes");
  bool computing = false;
  auto body = [&] {
    cr_assert_not(computing);
    computing = true;
    for (uint64_t end = now_ns() + 15 * kMs; now_ns() < end;) {
    }
    computing = false;
  };
  Fiber a = cord.spawn(body), b = cord.spawn(body);
  a.join();
  b.join();
}

Test(cord, ready_fibers_run_in_order) {
  chaos_seed = 0;  // chaos would change the order
  Cord cord("order");
  std::vector<int> order;
  std::vector<Fiber> fibers;
  Fiber maker = cord.spawn([&] {
    for (int i = 0; i < 10; i++)
      fibers.push_back(cord.spawn([&, i] {
        order.push_back(i);
        cr_assert_eq(Fiber::yield(), 0);
        order.push_back(i);
      }));
    while (order.size() < 10) fiberthread_reschedule();
    for (int i = 9; i >= 0; i--) cr_assert_eq(fibers[static_cast<size_t>(i)].wakeup(), 0);  // in the order of wake-ups
    cr_assert_eq(order.size(), 10u);                                                        // none runs yet
  });
  maker.join();
  join_all(fibers);
  for (int i = 0; i < 10; i++) cr_assert(order[static_cast<size_t>(i)] == i && order[static_cast<size_t>(10 + i)] == 9 - i);
}

Test(cord, fibers_are_whole_threads) {
  Cord cord("whole");
  static thread_local int mine = 0;
  static std::atomic<int> destroyed{0};
  struct Local {
    bool used = false;
    ~Local() { destroyed++; }
  };
  std::vector<Fiber> fibers;
  for (int i = 1; i <= 8; i++)
    fibers.push_back(cord.spawn([i]() -> void* {
      static thread_local Local local;
      local.used = true;
      mine = i;
      errno = i;
      pthread_t self = pthread_self();
      usleep(500);
      cr_assert(mine == i && errno == i && pthread_equal(self, pthread_self()));
      if (i % 2) pthread_exit(number(100));
      return number(i % 2 ? 100 : 200);
    }));
  for (size_t i = 0; i < 8; i++) {
    void* result;
    cr_assert_eq(fibers[i].join(&result), 0);
    cr_assert_eq(result, number(i % 2 ? 200 : 100));
  }
  cr_assert_eq(destroyed, 8);
  Fiber cancelled = cord.spawn([] { pause(); });
  pthread_t t;
  cr_assert_eq(fiberthread_pthread(cancelled.handle(), &t), 0);
  pthread_cancel(t);
  void* result;
  cr_assert_eq(cancelled.join(&result), 0);
  cr_assert_eq(result, PTHREAD_CANCELED);
  // A thread that a fiber of the cord makes does not belong to the cord.
  Fiber maker = cord.spawn([] {
    std::atomic<bool> ran{false};
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void* p) -> void* {
          cr_assert_null(fiberthread_cord_self());
          *static_cast<std::atomic<bool>*>(p) = true;
          return nullptr;
        },
        &ran);
    pthread_join(thread, nullptr);
    cr_assert(ran);
  });
  maker.join();
}

Test(cord, waits_for_descriptors_park) {
  Cord cord("reads");
  int s[2];
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  std::vector<Fiber> fibers;
  constexpr int kRounds = 500;
  for (int side = 0; side < 2; side++)
    fibers.push_back(cord.spawn([&, side] {
      for (int i = 0; i < kRounds; i++) {
        char c = 'x';
        if (side == 0) cr_assert_eq(write(s[0], &c, 1), 1);
        cr_assert_eq(read(s[side], &c, 1), 1);  // a wait in the kernel would keep the other fiber from writing
        if (side == 1) cr_assert_eq(write(s[1], &c, 1), 1);
      }
    }));
  join_all(fibers);
  close(s[0]);
  close(s[1]);
}

Test(cord, registry) {
  Cord cord("registry"), other("other");
  std::atomic<bool> stop{false};
  std::vector<Fiber> fibers;
  for (int i = 0; i < 200; i++)
    fibers.push_back(cord.spawn([&] {
      while (!stop) usleep(1000);
    }));
  Fiber elsewhere = other.spawn([&] {
    while (!stop) usleep(1000);
  });
  as_both([&] {
    for (auto& f : fibers) {
      cr_assert(cord.find(f.id()) == f);
      cr_assert_not(other.find(f.id()));
    }
    cr_assert_not(cord.find(elsewhere.id()));
    cr_assert(other.find(elsewhere.id()) == elsewhere);
    cr_assert_not(cord.find(1));
    size_t n = 0;
    cord.each([&](FiberRef f) {
      cr_assert(cord.find(f.id()) == f);
      n++;
      return true;
    });
    cr_assert_eq(n, 200u);
    n = 0;
    cord.each([&](FiberRef) { return ++n < 5; });
    cr_assert_eq(n, 5u);
  });
  uint64_t id = fibers[0].id();
  stop = true;
  join_all(fibers);
  cr_assert_not(cord.find(id));
  cord.each([&](FiberRef) {
    cr_assert(false);
    return true;
  });
  elsewhere.join();
}

Test(cord, ends_when_its_last_fiber_has) {
  as_both([] {
    auto cord = std::make_unique<Cord>("ends");
    std::atomic<int> ended{0};
    std::atomic<bool> go{false}, end{false};
    Fiber f = cord->spawn([&] {
      while (!go) usleep(1000);
      // The cord is closed. But while one of its fibers lives, others may be made in it.
      Fiber g = cord->spawn([&] {
        while (!end) usleep(1000);
        ended++;
      });
      cr_assert_eq(g.error(), 0);
      g.detach();
      ended++;
    });
    f.detach();
    cr_assert_eq(cord->join(kMs), ETIMEDOUT);
    Fiber inside = cord->spawn([&] { cr_assert_eq(fiberthread_cord_join(fiberthread_cord_self(), 0), EDEADLK); });
    inside.join();
    go = true;
    cr_assert_eq(cord->join(kMs), ETIMEDOUT);
    end = true;
    cr_assert_eq(cord->join(), 0);
    cr_assert_eq(ended, 2);
    fiberthread_cord_t c;
    cr_assert_eq(fiberthread_cord_new(&c, "raw"), 0);
    fiberthread_cord_close(c);
    fiberthread_options_t o{};
    o.cord = c;
    fiberthread_t t;
    int e;
    while ((e = fiberthread_spawn(&t, &o, [](void* p) { return p; }, nullptr)) == 0) {
      fiberthread_join(t, nullptr);
      usleep(1000);
    }
    cr_assert_eq(e, EPIPE);
    o.cord = nullptr;
    cr_assert_eq(fiberthread_cord_join(c, FIBERTHREAD_FOREVER), 0);
  });
}

// Everything that only the kernel knows of a thread belongs to the cord.
Test(cord, has_one_affinity) {
  Cord cord("affinity");
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &all)) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  cord.spawn([&] {
        cr_assert_eq(pthread_setaffinity_np(pthread_self(), sizeof one, &one), 0);
        Fiber other = cord.spawn([&] {
          cpu_set_t mine;
          cr_assert_eq(pthread_getaffinity_np(pthread_self(), sizeof mine, &mine), 0);
          cr_assert(CPU_EQUAL(&mine, &one));
        });
        cr_assert_eq(other.error(), 0);
        cr_assert_eq(other.join(), 0);
        Fiber elsewhere = Fiber::spawn([&] { cr_assert_null(fiberthread_cord_self()); });
        cr_assert_eq(elsewhere.join(), 0);
      })
      .join();
  cr_assert_eq(cord.join(), 0);
}

Test(cord, options_that_exclude_each_other) {
  Cord cord("options");
  fiberthread_options_t o{};
  o.cord = cord.handle();
  o.bound = 1;
  fiberthread_t f;
  cr_assert_eq(fiberthread_spawn(&f, &o, [](void* p) { return p; }, nullptr), EINVAL);
  o.bound = 0;
  cr_assert_eq(fiberthread_new(&f, &o, [](void* p) { return p; }), 0);
  cr_assert_eq(fiberthread_discard(f), 0);
  cr_assert_eq(cord.join(), 0);
}

#if defined(__x86_64__)  // the emulator cannot fork with threads
Test(cord, fork_leaves_it_to_the_parent) {
  Cord cord("forks");
  Fiber f = cord.spawn([&] {
    pid_t pid = fork();
    if (pid == 0) {
      bool ok = fiberthread_cord_self() == nullptr;
      usleep(1000);
      Cord own("child's");
      std::atomic<int> ran{0};
      Fiber g = own.spawn([&] { ran++; });
      _exit(ok && g.join() == 0 && ran == 1 && own.join() == 0 ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
  });
  cr_assert_eq(f.join(), 0);
}
#endif

#if defined(__x86_64__)  // the emulator has no robust mutexes
// The kernel and other processes know the owner of a process-shared mutex by its kernel thread, and a cord's fibers share one.
Test(cord, shared_and_robust_mutexes_are_a_fibers_and_not_the_cords) {
  for (int type : {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_RECURSIVE})
    for (bool robust : {false, true})
      for (int protocol : {PTHREAD_PRIO_NONE, PTHREAD_PRIO_INHERIT}) {
        pthread_mutexattr_t a;
        pthread_mutexattr_init(&a);
        pthread_mutexattr_settype(&a, type);
        pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setprotocol(&a, protocol);
        if (robust) pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_t m;
        cr_assert_eq(pthread_mutex_init(&m, &a), 0);
        pthread_mutexattr_destroy(&a);
        Cord cord("shared");
        std::atomic<int> step{0};
        std::vector<Fiber> fibers;
        fibers.push_back(cord.spawn([&] {
          cr_assert_eq(pthread_mutex_lock(&m), 0);
          step = 1;
          while (step < 2) Fiber::sleep(kMs);
          cr_assert_eq(pthread_mutex_unlock(&m), 0);
          if (robust) cr_assert_eq(pthread_mutex_lock(&m), 0);  // the fiber ends while it holds the mutex
        }));
        fibers.push_back(cord.spawn([&] {
          while (step < 1) Fiber::sleep(kMs);
          cr_assert_eq(pthread_mutex_trylock(&m), EBUSY);
          if (type != PTHREAD_MUTEX_NORMAL || robust) cr_assert_eq(pthread_mutex_unlock(&m), EPERM);
          step = 2;
        }));
        join_all(fibers);
        fibers.push_back(Fiber::spawn([&] {  // the fiber gets a kernel thread of its own
          cr_assert_eq(pthread_mutex_lock(&m), robust ? EOWNERDEAD : 0);
          if (robust) pthread_mutex_consistent(&m);
          cr_assert_eq(pthread_mutex_unlock(&m), 0);
        }));
        join_all(fibers);
        cr_assert_eq(pthread_mutex_destroy(&m), 0);
        cr_assert_eq(cord.join(), 0);
      }
}
#endif

}  // namespace
