// SPDX-License-Identifier: MIT
// Forks while another thread is anywhere inside a call of the library. The child, which has no such thread, can make the same call.
#include "tests/test.h"
#if defined(__x86_64__)  // the emulator cannot fork with threads
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "fiberthread/fiberthread.h"
#include "fiberthread/job_queue.h"
#include "sched/glibc/layout.h"
#include "tests/single_steps.h"

extern "C" const char __executable_start, etext;  // the linker's

namespace {

using namespace fiberthread;

constexpr int kRight = 7, kReturned = 8;
constexpr int kLimit = 10'000;  // ms, after which a process hangs

// By system calls alone, because the thread that was stopped may have any lock. Returns the status, which is 9 for a process that hung.
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

// Counts the library's own instructions. A fork waits for libc's locks, so the thread goes on while it may have one. Once stopped, it stays
// there until the process ends.
void at_instruction(int, siginfo_t*, void* p) {
  auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(p)->uc_mcontext.gregs[REG_RIP]);
  if (pc - reinterpret_cast<uintptr_t>(&__executable_start) >= static_cast<size_t>(&etext - &__executable_start)) return;
  if (glibc::layout.list_lock->load() != 0 || passed_by++ != stop_at) return;
  stopped = true;
  for (;;) raw_syscall(SYS_pause);
}

// Runs call() in a kernel thread up to instruction number `at` of the library, forks, and runs in_child() in the child. Returns kRight if
// that returned true, kReturned if there are no so many instructions, and what the child's status was otherwise.
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

// Does so for every `step`th instruction, each time in a process of its own. before() runs in each first.
void fork_within(bool (*before)(), bool (*call)(), bool (*in_child)(), int step = 1) {
  for (int at = 0;; at += step) {
    pid_t pid = fork();
    if (pid == 0) {
      int r = before() ? forked_at(at, call, in_child) : 2;
      raw_syscall(SYS_exit_group, r);
    }
    int status = status_of(pid);
    // A thread that has begun to block all signals cannot be stopped any more, and the kernel ends the process.
    if (status == kReturned << 8 || status == SIGTRAP || status == (SIGTRAP | 0x80)) {
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

}  // namespace

Test(fork, at_the_first_use_of_the_queue_of_the_process, .timeout = 120) { fork_within(make_thread, withdraw_none, run_task); }

// The queue is not the process's own any more, so the first user sets it back.
Test(fork, at_the_first_use_of_an_inherited_queue, .timeout = 120) {
  cr_assert(run_task());
  fork_within(nothing, withdraw_none, run_task);
}
#endif
