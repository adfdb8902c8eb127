// SPDX-License-Identifier: MIT
// Waits until a time of CLOCK_REALTIME while that clock is set. The clock is this program's own clock_gettime.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <initializer_list>

#include "sched/accounting.h"
#include "sched/clock.h"
#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {
std::atomic<long> offset{0};  // seconds
}

extern "C" int clock_gettime(clockid_t clock, timespec* t) noexcept {
  if (raw_syscall(SYS_clock_gettime, clock, arg(t)) != 0) return -1;
  if (clock == CLOCK_REALTIME) t->tv_sec += offset.load();
  return 0;
}

namespace {

timespec in_seconds(long s) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += s;
  return t;
}

std::atomic<int> ended{0};
sem_t never;
pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
pthread_t sleeper;

// Each thread waits in its own way until the time in `hour`. The test sets `hour` beforehand, since a thread may begin only after the clock
// was set.
constexpr int kWays = 6;
timespec hour;
void* wait_an_hour(void* p) {
  const timespec t = hour;
  switch (reinterpret_cast<long>(p)) {
    case 0: cr_assert(sem_timedwait(&never, &t) == -1 && errno == ETIMEDOUT); break;
    case 1: {
      pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
      pthread_cond_t c = PTHREAD_COND_INITIALIZER;
      pthread_mutex_lock(&m);
      int e;
      do e = pthread_cond_timedwait(&c, &m, &t);
      while (e == 0);
      cr_assert_eq(e, ETIMEDOUT);
      pthread_mutex_unlock(&m);
      break;
    }
    case 2: cr_assert_eq(pthread_mutex_timedlock(&held, &t), ETIMEDOUT); break;
    case 3: cr_assert_eq(pthread_rwlock_timedrdlock(&written, &t), ETIMEDOUT); break;
    case 4: cr_assert_eq(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, nullptr), 0); break;
    case 5: cr_assert_eq(pthread_timedjoin_np(sleeper, nullptr, &t), ETIMEDOUT); break;
  }
  timespec now = in_seconds(0);
  cr_assert(now.tv_sec >= t.tv_sec);
  ended++;
  return nullptr;
}

void set_clock(long by) {
  offset += by;
  end_waits_for_clock();  // does what the kernel's message about the clock causes
}

}  // namespace

Test(clock, waits_follow_it) {
  for (uint32_t workers : {1, 2}) {
    if (workers == 1) options.workers = 1;
    ended = 0;
    sem_init(&never, 0, 0);
    pthread_mutex_lock(&held);
    pthread_rwlock_wrlock(&written);
    pthread_create(&sleeper, nullptr, [](void*) -> void* { return sem_wait(&never), nullptr; }, nullptr);
    pthread_t t[kWays];
    hour = in_seconds(3600);
    for (long i = 0; i < kWays; i++) pthread_create(&t[i], nullptr, wait_an_hour, reinterpret_cast<void*>(i));
    usleep(20'000);
    set_clock(-7200);  // now it is three hours
    usleep(20'000);
    set_clock(2 * 3600);
    set_clock(3599 - 60);
    usleep(20'000);
    cr_assert_eq(ended.load(), 0);
    set_clock(70);
    for (auto& x : t) pthread_join(x, nullptr);
    cr_assert_eq(ended.load(), kWays);
    sem_post(&never);
    pthread_join(sleeper, nullptr);
    pthread_mutex_unlock(&held);
    pthread_rwlock_unlock(&written);
  }
}

#if defined(__x86_64__)  // the emulator has no filters
// If a filter refuses the timer that reports a set clock, sysmon looks at the clock by itself.
Test(clock, is_looked_at_without_a_timer) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_timerfd_settime, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    cr_skip_test("no filters here");
  ended = 0;
  sem_init(&never, 0, 0);
  pthread_t t[2];
  hour = in_seconds(3600);
  pthread_create(&t[0], nullptr, wait_an_hour, reinterpret_cast<void*>(0));
  pthread_create(&t[1], nullptr, wait_an_hour, reinterpret_cast<void*>(1));
  usleep(300'000);
  offset += 1800;
  usleep(300'000);
  cr_assert_eq(ended.load(), 0);
  offset += 1801;  // nothing reports this
  for (auto& x : t) pthread_join(x, nullptr);
  cr_assert_eq(ended.load(), 2);
}
#endif

// Setting the clock does not affect waits for a period of time.
Test(clock, other_waits_do_not_follow_it) {
  static std::atomic<bool> stop{false};
  static pthread_t t;
  pthread_create(
      &t, nullptr,
      [](void*) -> void* {
        while (!stop) {
          set_clock(100);
          usleep(500);
        }
        return nullptr;
      },
      nullptr);
  uint64_t before = now_ns();
  timespec past = in_seconds(-1), rest{0, 100'000'000};
  cr_assert(sem_timedwait(&never, &past) == -1);  // from now on this thread hears of a set clock
  cr_assert_eq(clock_nanosleep(CLOCK_REALTIME, 0, &rest, nullptr), 0);
  cr_assert_eq(usleep(50'001), 0);
  timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 1;
  cr_assert_eq(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr), 0);
  cr_assert(now_ns() - before >= 1'150'000'000);
  stop = true;
  pthread_join(t, nullptr);
}

// What was given to other fibers by the cycle counter may be more than the kernel's clock says. A thread sees its own clock go on all the same.
Test(clock, cpu_time_of_a_thread_always_grows) {
  auto looks = [](void*) -> void* {
    FiberRecord* me = self();
    uint64_t before = cpu_time_of(me);
    for (int i = 0; i < 100; i++) {
      {
        Busy busy;
        std::atomic<uint64_t>& mark = me->run.worker->cpu.mark;
        mark.store(mark.load() + 1'000'000);
      }
      uint64_t now = cpu_time_of(me);
      if (now <= before) return me;
      before = now;
    }
    return nullptr;
  };
  pthread_t t;
  void* stood_still;
  cr_assert_eq(pthread_create(&t, nullptr, looks, nullptr), 0);
  cr_assert_eq(pthread_join(t, &stood_still), 0);
  cr_assert_null(stood_still);
}
