// SPDX-License-Identifier: MIT
// Forks while another thread is anywhere inside a call of the library. The child, which has no such thread, can make the same call.
#include "tests/test.h"
#if defined(__x86_64__)  // the emulator cannot fork with threads
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "fiberthread/fiberthread.h"
#include "fiberthread/job_queue.h"
#include "sched/glibc/cancellation.h"
#include "sched/glibc/layout.h"
#include "shim/blocking.h"
#include "tests/single_steps.h"

extern "C" const char __executable_start, etext;  // the linker's

namespace {

using namespace fiberthread;

constexpr int kRight = 7, kReturned = 8;
constexpr int kLimit = 10'000;  // ms, after which a process hangs

// Returns the status of a process, or 9 if the process hangs. Makes system calls only, because the thread that was stopped may have any
// lock.
int status_of(pid_t pid) {
  int status;
  for (int i = 0; i < kLimit * 5; i++) {
    if (raw_syscall(SYS_wait4, pid, arg(&status), WNOHANG, 0) == pid) return status;
    constexpr long kNap[2] = {0, 200'000};
    raw_syscall(SYS_nanosleep, arg(kNap), 0);
  }
  raw_syscall(SYS_kill, pid, SIGKILL);
  raw_syscall(SYS_wait4, pid, arg(&status), 0, 0);
  return status;
}

// ---- the thread that is stopped ----

std::atomic<bool> stopped, returned;
int stop_at, passed_by;

// Counts the library's own instructions under Busy, where the thread may have spin locks, and stops the thread at the chosen one until the
// process ends. fork() waits for libc's locks. So the thread is not stopped while it may have one of those.
void at_instruction(int, siginfo_t*, void* p) {
  auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(p)->uc_mcontext.gregs[REG_RIP]);
  if (pc - reinterpret_cast<uintptr_t>(&__executable_start) >= static_cast<size_t>(&etext - &__executable_start)) return;
  if (!tls_busy || glibc::layout.list_lock->load() != 0 || passed_by++ != stop_at) return;
  stopped = true;
  for (;;) raw_syscall(SYS_pause);
}

// Runs call() in a kernel thread up to instruction number `at` of the library, forks, and runs in_child() in the child. Returns kRight if
// that returned true, kReturned if there are not so many instructions, and otherwise the child's status.
int forked_at(int at, bool (*call)(), bool (*in_child)()) {
  struct sigaction action{};
  action.sa_sigaction = at_instruction;
  action.sa_flags = SA_SIGINFO;
  REAL(sigaction)(SIGTRAP, &action, nullptr);
  stopped = returned = false;
  stop_at = at;
  passed_by = 0;
  static bool (*stepped)();
  stepped = call;
  pthread_t t;
  REAL(pthread_create)
  (
      &t, nullptr,
      [](void* p) -> void* {
        (void)self();
        steps::begin();
        stepped();
        steps::end();
        returned = true;
        return p;
      },
      nullptr);
  while (!stopped && !returned) raw_syscall(SYS_sched_yield);
  if (returned) return kReturned;
  pid_t pid = fork();
  if (pid == 0) _exit(in_child() ? kRight : 1);
  int status = status_of(pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

// Does that for each of the first `most` instructions, each time in a process of its own, which calls before() first.
void fork_within(bool (*before)(), bool (*call)(), bool (*in_child)(), int most = 80) {
  for (int at = 0; at < most; at++) {
    pid_t pid = fork();
    if (pid == 0) {
      int r = before() ? forked_at(at, call, in_child) : 2;
      raw_syscall(SYS_exit_group, r);
    }
    int status = status_of(pid);
    // A thread that has begun to block all signals cannot be stopped any more, and the kernel ends the process.
    if (status == kReturned << 8 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP)) {
      cr_assert_gt(at, 0);
      return;
    }
    cr_assert_eq(status, kRight << 8, "forked before instruction %d: the status is %#x", at, status);
  }
}

// ---- what the threads call ----

bool nothing() { return true; }

void* returns_it(void* p) { return p; }

bool make_thread() {
  pthread_t t;
  void* r = nullptr;
  return pthread_create(&t, nullptr, returns_it, &stop_at) == 0 && pthread_join(t, &r) == 0 && r == &stop_at;
}

fiberthread_task_t task;

bool withdraw_none() { return fiberthread_task_withdraw(&task) == 0; }
bool run_task() {
  static fiberthread_task_t own;
  void* r = nullptr;
  return fiberthread_task_run(&own, returns_it, &own) == 0 && fiberthread_task_wait(&own, &r, UINT64_MAX) == 0 && r == &own;
}

bool change_defaults() {
  pthread_attr_t a;
  bool ok = make_thread() && pthread_attr_init(&a) == 0 && pthread_attr_setstacksize(&a, 300'000) == 0 &&
            pthread_setattr_default_np(&a) == 0;
  pthread_attr_destroy(&a);
  return ok;
}

// pthread_create() does not look at the default attributes here, so it takes memory first.
bool make_sized_thread() {
  pthread_attr_t a;
  pthread_t t;
  void* r = nullptr;
  bool ok = pthread_attr_init(&a) == 0 && pthread_attr_setstacksize(&a, 300'000) == 0 &&
            pthread_create(&t, &a, returns_it, &stop_at) == 0 && pthread_join(t, &r) == 0 && r == &stop_at;
  pthread_attr_destroy(&a);
  return ok;
}

LibcCancelCalls libcs_calls() {
  constexpr static timespec kSecond = {1, 0};
  return {REAL(pthread_setcancelstate), REAL(pthread_setcanceltype), [](const sigset_t* mask) { REAL(ppoll)(nullptr, 0, &kSecond, mask); },
          [](const sigset_t* mask) { REAL(pselect)(0, nullptr, nullptr, nullptr, &kSecond, mask); }};
}
bool look_up_calls() {
  libcs_calls();
  return make_thread();
}
// The first pthread_cancel() does this.
bool find_waits() {
  libc_find_wait(libcs_calls());
  return true;
}
bool cancel() {
  auto wait = [](void* p) -> void* {
    for (;;) pause();
    return p;
  };
  pthread_t t;
  void* r = nullptr;
  return pthread_create(&t, nullptr, wait, nullptr) == 0 && pthread_cancel(t) == 0 && pthread_join(t, &r) == 0 && r == PTHREAD_CANCELED;
}

fiberthread_cord_t cord;

bool make_cord() { return fiberthread_cord_new(&cord, "test") == 0; }
bool look_at_cord() {
  return fiberthread_cord_each(cord, [](fiberthread_t, void*) { return 1; }, nullptr) >= 0;
}

}  // namespace

Test(fork, at_the_first_use_of_the_queue_of_the_process, .timeout = 120) { fork_within(make_thread, withdraw_none, run_task); }

// In a child, the queue is still as its parent left it, and the first user sets it back.
Test(fork, at_the_first_use_of_an_inherited_queue, .timeout = 120) {
  cr_assert(run_task());
  fork_within(nothing, withdraw_none, run_task);
}

// Among other things, the thread copies the default attributes, which have changed.
Test(fork, where_a_thread_is_made, .timeout = 240) { fork_within(change_defaults, make_thread, make_thread); }

Test(fork, where_a_threads_memory_is_taken, .timeout = 240) { fork_within(make_sized_thread, make_sized_thread, make_sized_thread); }

// The first cancellation does this.
Test(fork, where_libcs_waits_are_looked_for, .timeout = 120) { fork_within(look_up_calls, find_waits, cancel); }

Test(fork, where_a_cords_fibers_are_listed, .timeout = 120) { fork_within(make_cord, look_at_cord, look_at_cord); }

Test(fork, counts_begin_anew, .timeout = 60) {
  Threads t;
  t.kernel([] {
    for (int i = 0; i < 10; i++) cr_assert(make_thread());
  });
  t.join();
  cr_assert(make_thread());
  pid_t pid = fork();
  if (pid == 0) {
    fiberthread_statistics_t s;
    fiberthread_get_statistics(&s);
    if (s.spawned || s.ended || s.recycled || s.workers) _exit(1);
    for (int i = 0; i < 3; i++)
      if (!make_thread()) _exit(2);
    fiberthread_get_statistics(&s);
    _exit(s.spawned == 3 && s.ended <= 3 && s.recycled <= 2 && s.workers > 0 ? kRight : 3);
  }
  int status = status_of(pid);
  cr_assert_eq(status, kRight << 8, "%#x", status);
}

// Threads of the parent have taken all turns at the disk.
Test(fork, the_disk_is_free, .timeout = 120) {
  constexpr int kTurns = 64;
  std::atomic<int> taken{0};
  std::atomic<bool> go{false};
  Threads t;
  for (int i = 0; i < kTurns; i++)
    t.fiber([&] {
      cr_assert(take_disk_turn());
      taken++;
      while (!go) fibers::nap(1000);
      leave_disk();
    });
  while (taken != kTurns) fibers::nap(100);
  pid_t pid = fork();
  if (pid == 0) {
    // On one worker, the second fiber runs first only if the other one had to wait, or was preempted.
    for (int round = 0; round < 10; round++) {
      std::atomic<bool> has_turn{false}, had_turn{false};
      {
        run_on(1, 0);
        Threads two;
        two.fiber([&] {
          take_disk_turn();
          has_turn = true;
          leave_disk();
        });
        two.fiber([&] { had_turn = has_turn.load(); });
      }
      if (had_turn) _exit(kRight);
    }
    _exit(1);
  }
  int status = status_of(pid);
  go = true;
  cr_assert_eq(status, kRight << 8, "%#x", status);
}
#endif
