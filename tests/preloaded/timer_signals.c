// SPDX-License-Identifier: MIT
// What is pending of timers: one signal each, which counts what it stands for; to whom it goes; what timer_delete and
// timer_settime drop; timers in children.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * NS + t.tv_nsec;
}
static void rest(long long ns) {
  for (long long until = now() + ns, left; (left = until - now()) > 0;) nanosleep(&(struct timespec){left / NS, left % NS}, NULL);
}

static sigset_t one(int sig) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, sig);
  return s;
}
static void block(int how, int sig) {
  sigset_t s = one(sig);
  assert(pthread_sigmask(how, &s, NULL) == 0);
}
// Returns the signal, or 0 if it does not come within `ns`; -1: for ever.
static int take(int sig, siginfo_t* info, long long ns) {
  sigset_t s = one(sig);
  int r;
  do r = sigtimedwait(&s, info, ns < 0 ? NULL : &(struct timespec){ns / NS, ns % NS});
  while (r < 0 && errno == EINTR);
  assert(r > 0 || errno == EAGAIN);
  return r > 0 ? r : 0;
}

static timer_t make(int tid, int sig, int value) {  // tid 0: for the process
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = tid ? SIGEV_THREAD_ID : SIGEV_SIGNAL;
  e.sigev_signo = sig;
  e.sigev_value.sival_int = value;
  e._sigev_un._tid = tid;
  timer_t t;
  assert(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
  return t;
}
static void set(timer_t t, long long first, long long period) {
  struct itimerspec i = {{period / NS, period % NS}, {first / NS, first % NS}};
  assert(timer_settime(t, 0, &i, NULL) == 0);
}

static void all(int n, void* (*run)(void*)) {
  pthread_t t[16];
  for (long i = 0; i < n; i++) assert(pthread_create(&t[i], NULL, run, (void*)i) == 0);
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}

// Timers that are faster than their threads. No expiry is counted twice, and the calls agree about the number.
static void* keeps_up(void* p) {
  int sig = SIGRTMIN + (int)(long)p % 4;
  block(SIG_BLOCK, sig);
  timer_t t = make(gettid(), sig, (int)(long)p);
  enum { kPeriod = 20000 };
  long long start = now(), expiries = 0;
  set(t, kPeriod, kPeriod);
  for (int i = 0; i < 300; i++) {
    siginfo_t info;
    assert(take(sig, &info, -1) == sig && info.si_code == SI_TIMER && info.si_value.sival_int == (int)(long)p);
    assert(info.si_overrun >= 0 && timer_getoverrun(t) == info.si_overrun);
    assert(syscall(SYS_timer_getoverrun, (int)(long)t) == info.si_overrun);
    expiries += 1 + info.si_overrun;
  }
  assert(expiries >= 300 && expiries <= (now() - start) / kPeriod);
  assert(timer_delete(t) == 0);
  return p;
}

// A thread that sleeps finds one signal.
static void* finds_one(void* p) {
  int sig = p ? SIGRTMIN + (int)(long)p % 4 : SIGRTMIN + 7;
  block(SIG_BLOCK, sig);
  timer_t t = make(p ? gettid() : 0, sig, 7);
  set(t, 100000000, 100000000);
  rest(1050000000);
  long long begun = now();
  siginfo_t info;
  int n = 0, expiries = 0;
  for (; take(sig, &info, 0); n++) expiries += 1 + info.si_overrun;
  assert(n >= 1 && n <= 2 + (now() - begun) / 100000000 && expiries >= 10);  // the timer goes on meanwhile
  assert(timer_delete(t) == 0);
  return p;
}

static bool kernel_drops(void) {
  struct utsname u;
  int major = 0, minor = 0;
  uname(&u);
  sscanf(u.release, "%d.%d", &major, &minor);
  return major > 6 || (major == 6 && minor >= 13);
}

// What a timer has sent before it is set anew or deleted, and the thread has not taken, is dropped.
static void* drops(void* p) {
  int sig = SIGRTMIN + 5 + (int)(long)p % 2;  // every second thread has the same
  block(SIG_BLOCK, sig);
  for (int i = 0; i < 100; i++) {
    timer_t t = make(gettid(), sig, i);
    set(t, 20000, i % 2 ? 50000 : 0);
    rest(100000 + i * 1000);
    if (i % 3 == 0) {
      set(t, 0, 0);
      assert(!kernel_drops() || !take(sig, NULL, 0));
      assert(timer_getoverrun(t) == 0);
      set(t, 20000000, 0);
      siginfo_t info;
      do assert(take(sig, &info, -1) == sig);
      while (!kernel_drops() && info.si_value.sival_int != i);
      assert(info.si_value.sival_int == i);
      assert(!kernel_drops() || !take(sig, NULL, 0));
    }
    assert(timer_delete(t) == 0);
    siginfo_t info;
    if (kernel_drops()) assert(!take(sig, &info, 0));
    else
      while (take(sig, &info, 0)) {
      }
  }
  return p;
}
static void* drops_of_process(void* p) {
  int sig = SIGRTMIN + 7 + (int)(long)p;
  block(SIG_BLOCK, sig);
  for (int i = 0; i < 300; i++) {
    timer_t t = make(0, sig, i);
    set(t, 30000, 70000);
    siginfo_t info;
    for (int k = 0; k < i % 4; k++) {
      assert(take(sig, &info, -1) == sig);
      assert(!kernel_drops() || info.si_value.sival_int == i);
    }
    assert(timer_delete(t) == 0);
    if (!kernel_drops()) continue;
    assert(!take(sig, &info, 0));
  }
  return p;
}

// Threads that wait for the same signal get their own timers' only.
static void* gets_its_own(void* p) {
  block(SIG_BLOCK, SIGRTMIN + 8);
  timer_t t = make(gettid(), SIGRTMIN + 8, (int)(long)p);
  for (int i = 0; i < 200; i++) {
    set(t, 10000 + i * 100, 0);
    siginfo_t info;
    assert(take(SIGRTMIN + 8, &info, -1) == SIGRTMIN + 8);
    assert(info.si_value.sival_int == (int)(long)p);
  }
  assert(timer_delete(t) == 0);
  return p;
}

// More timers than a table of the library's has places.
enum { kMany = 1500 };
static void* has_many(void* p) {
  block(SIG_BLOCK, SIGRTMIN + 9);
  timer_t* t = calloc(kMany, sizeof *t);
  bool* seen = calloc(kMany, 1);
  int first = (int)(long)p * kMany;
  for (int i = 0; i < kMany; i++) t[i] = make(gettid(), SIGRTMIN + 9, first + i);
  for (int i = 0; i < kMany; i++) set(t[i], 1000000, 0);
  for (int i = 0; i < kMany; i++) {
    siginfo_t info;
    assert(take(SIGRTMIN + 9, &info, -1) && info.si_value.sival_int >= first && info.si_value.sival_int < first + kMany);
    assert(!seen[info.si_value.sival_int - first]);
    seen[info.si_value.sival_int - first] = true;
  }
  for (int i = 0; i < kMany; i++) assert(timer_delete(t[i]) == 0);
  free(t);
  free(seen);
  return p;
}

// Two timers have two signals, also if both are the same standard signal. A signal that is sent beside them is dropped.
static void* has_two(void* p) {
  block(SIG_BLOCK, SIGUSR1);
  block(SIG_BLOCK, SIGRTMIN + 10);
  timer_t a = make(gettid(), SIGUSR1, 1), b = make(gettid(), SIGUSR1, 2), last = make(gettid(), SIGRTMIN + 10, 3);
  set(a, 1, 0);
  set(b, 1, 0);
  set(last, 20000000, 0);
  assert(take(SIGRTMIN + 10, NULL, -1));  // the others have come before
  pthread_kill(pthread_self(), SIGUSR1);
  int values = 0, n = 0;
  for (siginfo_t info; take(SIGUSR1, &info, 0); n++) values += info.si_value.sival_int;
  assert(n == 2 && values == 3);
  timer_delete(a);
  timer_delete(b);
  timer_delete(last);
  return p;
}

// Main's timer, made before there are other threads, signals main, which computes, sleeps, or blocks the signal. Others have it unblocked.
static pthread_t main_thread;
static volatile int in_main, elsewhere;
static void on_main_timer(int sig) {
  if (pthread_equal(pthread_self(), main_thread)) in_main++;
  else elsewhere++;
}
static volatile bool stop;
static void* beside(void* p) {
  while (!stop) {
    for (volatile int i = 0; i < 20000; i++) {
    }
    if (p) rest(1000000);
  }
  return p;
}
static void of_main(void) {
  main_thread = pthread_self();
  signal(SIGRTMIN + 11, on_main_timer);
  timer_t t = make(gettid(), SIGRTMIN + 11, 0);
  pthread_t other[4];
  for (long i = 0; i < 4; i++) pthread_create(&other[i], NULL, beside, (void*)(i % 2));
  set(t, 2000000, 2000000);
  for (int phase = 0; phase < 4; phase++) {
    int before = in_main;
    while (in_main < before + 5) {
      if (phase == 1) rest(1000000);
      if (phase == 2) sched_yield();
      if (phase == 3) {
        block(SIG_BLOCK, SIGRTMIN + 11);
        int blocked = in_main;
        rest(3000000);
        assert(in_main == blocked);
        block(SIG_UNBLOCK, SIGRTMIN + 11);
      }
    }
  }
  block(SIG_BLOCK, SIGRTMIN + 11);
  for (int i = 0; i < 5; i++) assert(take(SIGRTMIN + 11, NULL, -1));
  stop = true;
  for (int i = 0; i < 4; i++) pthread_join(other[i], NULL);
  assert(timer_delete(t) == 0 && elsewhere == 0);
}

// A child of fork has none of its parent's timers. Its own get the same numbers.
static void takes_three(int value) {
  for (int i = 0; i < 3; i++) {
    siginfo_t info;
    assert(take(SIGRTMIN + 12, &info, -1) && info.si_value.sival_int == value);
  }
}
static void ends_with(pid_t child, int status) {
  int s;
  assert(waitpid(child, &s, 0) == child && WIFEXITED(s) && WEXITSTATUS(s) == status);
}
static void* forks_with_timer(void* p) {
  timer_t t = make(gettid(), SIGRTMIN + 12, 3);
  set(t, 1000000, 1000000);
  takes_three(3);
  pid_t child = fork();
  if (child == 0) {
    timer_t own = make(gettid(), SIGRTMIN + 12, 4);
    set(own, 1000000, 1000000);
    takes_three(4);
    _exit(timer_delete(own) == 0 ? 5 : 1);
  }
  ends_with(child, 5);
  takes_three(3);
  assert(timer_delete(t) == 0);
  return p;
}
static void in_children(void) {
  block(SIG_BLOCK, SIGRTMIN + 12);
  timer_t t = make(gettid(), SIGRTMIN + 12, 1);
  set(t, 1000000, 1000000);
  pid_t child = fork();
  if (child == 0) {
    timer_t own = make(gettid(), SIGRTMIN + 12, 2);
    set(own, 1000000, 1000000);
    takes_three(2);
    all(2, forks_with_timer);
    takes_three(2);
    _exit(timer_delete(own) == 0 ? 6 : 1);
  }
  ends_with(child, 6);
  takes_three(1);
  assert(timer_delete(t) == 0);
}

int main(void) {
  in_children();
  puts("children");
  of_main();
  puts("main's timer");
  for (int i = 7; i < 10; i++) block(SIG_BLOCK, SIGRTMIN + i);  // those that timers send to the process
  all(8, keeps_up);
  puts("overruns");
  all(4, finds_one);
  puts("one signal");
  all(8, drops);
  all(3, drops_of_process);
  puts("dropped");
  all(4, gets_its_own);
  puts("own");
  struct rlimit r;
  getrlimit(RLIMIT_SIGPENDING, &r);
  if (r.rlim_cur > 3 * kMany) all(2, has_many);
  puts("many");
  all(1, has_two);
  puts("two");
  return 0;
}
