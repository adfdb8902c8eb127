// SPDX-License-Identifier: MIT
// Stops a kernel thread at a chosen instruction of a call, so that the test can do there what another thread might do at the worst moment.
#pragma once
#if defined(__x86_64__)
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "tests/sync_threads.h"

namespace steps {

enum { kBefore, kStopped, kGoOn, kReturned };
inline std::atomic<int> stage{kBefore};
inline int stop_at, passed_by;
inline bool in_busy;

inline void at_instruction(int, siginfo_t*, void* p) {
  if ((fiberthread::tls_busy && !in_busy) || passed_by++ != stop_at) return;  // under Busy the thread may hold a lock
  static_cast<ucontext_t*>(p)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
  int before = kBefore;
  if (!stage.compare_exchange_strong(before, kStopped)) return;
  while (stage != kGoOn) fiberthread::cpu_relax();
}

inline bool asleep(int tid) {
  char path[64], text[256];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  FILE* f = fopen(path, "r");
  if (!f) return false;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = 0;
  const char* end = strrchr(text, ')');
  return end && end[2] == 'S';
}

// Set and clear the trap flag. They leave the 128 bytes below the stack pointer alone, where locals may be.
inline void begin() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
inline void end() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}

// Runs f on a kernel thread of `t`. Returns true when the thread has stopped before instruction number `at`, where it stays until the stage
// is kGoOn. Returns false if the thread sleeps, or f has returned, before that. Instructions under Busy count only with `busy`. Then the
// caller must not use anything that the stopped thread may have locked. f may call end() and begin() to leave out a part.
template <class F>
bool run(Threads& t, int at, F f, bool busy = false) {
  struct sigaction action{};
  action.sa_sigaction = at_instruction;
  action.sa_flags = SA_SIGINFO;
  REAL(sigaction)(SIGTRAP, &action, nullptr);
  stage = kBefore;
  stop_at = at;
  passed_by = 0;
  in_busy = busy;
  static std::atomic<int> tid;
  tid = 0;
  t.kernel([f] {
    (void)fiberthread::self();
    tid = static_cast<int>(fiberthread::raw_syscall(SYS_gettid));
    begin();
    f();
    end();
    stage = kReturned;
  });
  while (stage == kBefore && !(tid && asleep(tid))) fiberthread::give_way();
  int before = kBefore;
  stage.compare_exchange_strong(before, kReturned);  // too late to stop
  return before == kStopped;
}

// Called before the first thread is made. With one slot no wake-up makes a worker. libc blocks SIGTRAP while it makes one, and the kernel
// ends a process that comes to a step then.
inline void one_worker() { fiberthread::options.workers = 1; }
// A wake-up would make a worker for the reserve as well.
inline const bool no_reserve = [] {
  fiberthread::options.reserve = 0;
  return true;
}();

// How a handler leaves the call that it has interrupted.
enum class Leave { ByJump, ByEndOfThread };
inline Leave how;
inline jmp_buf leave_to;

inline void leave_at_instruction(int, siginfo_t*, void* p) {
  if (fiberthread::tls_busy || passed_by++ != stop_at) return;
  static_cast<ucontext_t*>(p)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
  if (how == Leave::ByJump) _longjmp(leave_to, 1);
  pthread_exit(nullptr);
}

// A frame with nothing to destroy. C++ cannot unwind any other frame at each instruction.
template <class F>
[[gnu::noinline]] void step_through(F& f) {
  begin();
  f();
  stop_at = -1;  // the stack cannot be unwound inside of end()
  end();
}

// Runs f on a kernel thread of `t`, and leaves it before instruction number `at`, as a signal handler of the program could. No such handler
// begins under Busy, so those instructions do not count. Returns true if f was left, and false if it returned before. The test calls
// one_worker() first.
template <class F>
bool leave(Threads& t, int at, F f, Leave by = Leave::ByJump) {
  struct sigaction action{};
  action.sa_sigaction = leave_at_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the mask is not restored
  REAL(sigaction)(SIGTRAP, &action, nullptr);
  how = by;
  stop_at = at;
  passed_by = 0;
  static std::atomic<int> left;
  left = -1;
  t.kernel([&] {
    (void)fiberthread::self();
    struct Tell {
      bool returned = false;
      ~Tell() { left = !returned; }
    } tell;
    if (_setjmp(leave_to) != 0) return;
    step_through(f);
    tell.returned = true;
  });
  while (left < 0) fiberthread::give_way();
  return left;
}

}  // namespace steps
#endif
