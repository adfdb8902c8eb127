// SPDX-License-Identifier: MIT
// Stops a kernel thread at a chosen instruction of what it runs, so that others can do at each point what they may do there at the worst.
#pragma once
#if defined(__x86_64__)
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
  if ((fiberthread::tls_busy && !in_busy) || passed_by++ != stop_at) return;  // Busy: it has a lock, perhaps
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

// The trap flag. Below the stack pointer may be locals.
inline void begin() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
inline void end() {
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}

// On a kernel thread of `t`. True: it has stopped before its instruction `at`, not counting those that run under Busy, until the stage is
// kGoOn. False: it sleeps, or f has returned, before. `busy`: those count, too, and whoever looks must do without what may be locked then.
// f may end() and begin() the steps.
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
  while (stage == kBefore && !(tid && asleep(tid))) fiberthread::yield();
  int before = kBefore;
  stage.compare_exchange_strong(before, kReturned);  // too late to stop
  return before == kStopped;
}

}  // namespace steps
#endif
