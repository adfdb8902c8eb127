// SPDX-License-Identifier: MIT
// The end of a fiber's bond to a kernel thread of its own: when it has given up a habit, when the call failed that the bond was made for, and
// when its NUMA policy is the process's again.
#include "tests/test.h"

#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "sched/syscall.h"
#include "sched/worker.h"

using namespace fiberthread;

namespace {

constexpr long kDefault = 0, kInterleave = 3;  // MPOL_…

bool is_bound() { return self()->run.bound.load() != nullptr; }

std::atomic<bool> stop;
void* keep_busy(void*) {
  while (!stop.load()) sched_yield();
  return nullptr;
}

constexpr long kNap[2] = {0, 1'000'000};  // a shorter one may be over before the kernel has put the thread to sleep

// Blocks in the kernel, while other fibers want to run, until the caller is bound for that.
void get_habit() {
  while (!is_bound()) {
    {
      Blocking blocking;
      raw_syscall(SYS_nanosleep, arg(kNap), 0);
    }
    sched_yield();  // it comes back with a slot to lose
  }
}

// Two threads take turns, `rounds` times each.
struct Turns {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  int turn = 0;

  void take(int mine) {
    pthread_mutex_lock(&mutex);
    while (turn != mine) pthread_cond_wait(&changed, &mutex);
    turn = !mine;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
  }
};

// Runs `first` and `second` on fibers beside so many that never wait that some are always in a queue. Four times as many slots as CPUs are the
// most that there may be.
void in_a_crowd(void* (*first)(void*), void* (*second)(void*)) {
  std::vector<pthread_t> busy(4 * cpu_count() + 2);
  pthread_t a, b;
  stop = false;
  for (pthread_t& t : busy) pthread_create(&t, nullptr, keep_busy, nullptr);
  pthread_create(&a, nullptr, first, nullptr);
  pthread_create(&b, nullptr, second, nullptr);
  pthread_join(a, nullptr);
  stop = true;
  pthread_join(b, nullptr);
  for (pthread_t t : busy) pthread_join(t, nullptr);
}

Turns turns;
int pair[2];
std::atomic<bool> over;
constexpr int kMany = 1'000'000;  // far more rounds than it takes: so many without an end are a failure

void* partner_of_turns(void*) {
  while (!over.load()) turns.take(1);
  return nullptr;
}

Test(bonds, habit_ends_when_the_fiber_only_parks) {
  in_a_crowd(
      [](void*) -> void* {
        for (int habits = 0; habits < 3; habits++) {
          get_habit();
          int i = 0;
          for (; i < kMany && is_bound(); i++) turns.take(0);
          cr_assert(i < kMany);
          for (i = 0; i < 100; i++) turns.take(0);  // on the pool's workers
        }
        over = true;
        turns.take(0);
        return nullptr;
      },
      partner_of_turns);
}

void* echo(void*) {
  char c;
  while (read(pair[1], &c, 1) == 1) cr_assert_eq(write(pair[1], &c, 1), 1);
  return nullptr;
}

Test(bonds, habit_ends_when_the_fiber_waits_for_descriptors) {
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  in_a_crowd(
      [](void*) -> void* {
        get_habit();
        int i = 0;
        for (char c = 'x'; i < kMany && is_bound(); i++) {
          cr_assert_eq(write(pair[0], &c, 1), 1);
          cr_assert_eq(read(pair[0], &c, 1), 1);
        }
        cr_assert(i < kMany);
        close(pair[0]);
        return nullptr;
      },
      echo);
  close(pair[1]);
}

Test(bonds, habit_lasts_while_the_fiber_sleeps_in_the_kernel_too) {
  over = false;
  turns.turn = 0;
  in_a_crowd(
      [](void*) -> void* {
        get_habit();
        for (int i = 0; i < 200; i++) {
          turns.take(0);
          turns.take(0);  // waits for the other thread
          raw_syscall(SYS_nanosleep, arg(kNap), 0);
          cr_assert(is_bound());
        }
        over = true;
        turns.take(0);
        return nullptr;
      },
      partner_of_turns);
}

void on_fiber(void* (*body)(void*)) {
  pthread_t t;
  cr_assert_eq(pthread_create(&t, nullptr, body, nullptr), 0);
  pthread_join(t, nullptr);
}

Test(bonds, a_call_that_fails_leaves_none) {
  on_fiber([](void*) -> void* {
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr), -1);
    cr_assert_not(is_bound());
    cr_assert_eq(filtered.load(), 0);
    cr_assert_eq(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, nullptr), -1);
    cr_assert_not(is_bound());
    cr_assert_eq(setns(-1, 0), -1);
    cr_assert_not(is_bound());
    if (prctl(PR_SET_TIMERSLACK, 60'000) != 0) return nullptr;  // an emulator may not know it
    cr_assert(is_bound());
    cr_assert_eq(setns(-1, 0), -1);  // there is an older reason
    cr_assert(is_bound());
    return nullptr;
  });
}

Test(bonds, a_fiber_bound_meanwhile_for_good_stays_bound) {
  on_fiber([](void*) -> void* {
    for (int i = 0; i < 100; i++) {
      std::atomic<bool> done{false};
      struct Both {
        FiberRecord* f;
        std::atomic<bool>* done;
      } both{nullptr, &done};
      pthread_t t, other;
      pthread_create(
          &t, nullptr,
          [](void* p) -> void* {
            auto* b = static_cast<Both*>(p);
            __atomic_store_n(&b->f, self(), __ATOMIC_RELEASE);
            while (!b->done->load()) setns(-1, 0);
            cr_assert(is_bound());
            setns(-1, 0);
            cr_assert(is_bound());
            return nullptr;
          },
          &both);
      pthread_create(
          &other, nullptr,
          [](void* p) -> void* {
            auto* b = static_cast<Both*>(p);
            FiberRecord* f;
            while (!(f = __atomic_load_n(&b->f, __ATOMIC_ACQUIRE))) sched_yield();
            cr_assert_eq(sched_bind(f), 0);
            cr_assert(f->run.bound.load() != nullptr);
            cr_assert(sched_own_tid(f) != 0);
            b->done->store(true);
            return nullptr;
          },
          &both);
      pthread_join(t, nullptr);
      pthread_join(other, nullptr);
    }
    return nullptr;
  });
}

void* is_bound_from_birth(void*) { return is_bound() ? self() : nullptr; }

Test(bonds, a_policy_that_is_undone_leaves_none) {
  on_fiber([](void*) -> void* {
    unsigned long first = 1;
    if (syscall(SYS_set_mempolicy, kInterleave, &first, 64L) != 0) return nullptr;  // the kernel knows no NUMA, or a filter refuses it
    cr_assert(is_bound());
    pthread_t t;
    void* bound;
    pthread_create(&t, nullptr, is_bound_from_birth, nullptr);
    pthread_join(t, &bound);
    cr_assert_not_null(bound);
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          cr_assert_eq(syscall(SYS_set_mempolicy, kDefault, nullptr, 0L), 0);
          return is_bound_from_birth(nullptr);
        },
        nullptr);
    pthread_join(t, &bound);
    cr_assert_null(bound);
    cr_assert(is_bound());
    cr_assert_eq(syscall(SYS_set_mempolicy, kDefault, nullptr, 0L), 0);
    cr_assert_not(is_bound());
    pthread_create(&t, nullptr, is_bound_from_birth, nullptr);
    pthread_join(t, &bound);
    cr_assert_null(bound);
    return nullptr;
  });
}

}  // namespace
