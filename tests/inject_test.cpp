// SPDX-License-Identifier: MIT
// inject_call(), from the handler of a signal: an interrupted fiber makes a call, goes on as it was, and can be unwound meanwhile.
#include "sched/preempt.h"

#include "tests/test.h"

#include <csignal>
#include <cstdint>
#include <ctime>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include "sched/embedder.h"
#include "sched/fiber.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "tests/registers.h"

#if defined(__x86_64__)
extern "C" void fiberthread_trampoline() __attribute__((visibility("hidden")));
extern "C" const char fiberthread_trampoline_end[] __attribute__((visibility("hidden")));
#endif

namespace {

void with_signal_stack() {
  stack_t now;
  sigaltstack(nullptr, &now);  // a worker has a signal stack, but a thread of libc's has none
  if (!(now.ss_flags & SS_DISABLE)) return;
  static char alternate[256 * 1024];
  stack_t ss = {alternate, 0, sizeof alternate};
  sigaltstack(&ss, nullptr);
}

void (*to_inject)();
bool injected;
int calls;

// The library handles the pokes that this test has not sent.
void (*poked_right)(siginfo_t*, void*);
[[gnu::constructor]] void see_pokes() {
  fiberthread::Embedder table = fiberthread::embedder();
  poked_right = table.poked;
  table.poked = [](siginfo_t* info, void* uc) {
    if (!to_inject) poked_right(info, uc);
    else if (info->si_code == SI_TKILL) injected = fiberthread::inject_call(uc, to_inject);
  };
  fiberthread::sched_embed(table);
}

// The current kernel thread pokes itself. The signal comes at the end of the system call.
void poke(void (*fn)()) {
  to_inject = fn;
  injected = false;
  fiberthread::raw_syscall(SYS_tgkill, getpid(), fiberthread::raw_syscall(SYS_gettid), fiberthread::kPreemptSignal);
  to_inject = nullptr;
}

void* inject_returning(void*) {
  with_signal_stack();
  double x = 1.25;
  long long y = 77;
  poke([] { calls++; });
  cr_assert(injected);
  cr_assert_eq(calls, 1);
  cr_assert(x == 1.25 && y == 77);
  {
    fiberthread::Busy busy;
    poke([] { calls++; });
    cr_assert(!injected);
  }
  cr_assert_eq(calls, 1);
  return nullptr;
}

Test(inject, injected_call_returns_to_where_it_was) {
  pthread_t t;
  pthread_create(&t, nullptr, inject_returning, nullptr);
  pthread_join(t, nullptr);
  cr_assert_eq(calls, 1);
}

int cleaned;

void* inject_exiting(void*) {
  with_signal_stack();
  pthread_cleanup_push(+[](void*) { cleaned++; }, nullptr);
  void (*volatile may_throw)(void (*)()) = poke;  // the compiler must believe that the call may throw, or it makes no landing pad
  may_throw([] { pthread_exit(&cleaned); });
  pthread_cleanup_pop(0);
  return nullptr;
}

Test(inject, injected_call_may_exit_the_thread) {
  pthread_t t;
  void* result;
  pthread_create(&t, nullptr, inject_exiting, nullptr);
  pthread_join(t, &result);
  cr_assert_eq(result, static_cast<void*>(&cleaned));
  cr_assert_eq(cleaned, 1);
}

// ---- unwinding ----

struct Walk {
  bool found = false, registers = false;
};
Registers walk_in, walk_out;
int steps, bad_walks, walks;
bool called_right;

#if defined(__x86_64__)
bool has_registers(_Unwind_Context* c) {
  constexpr int kRbx = 3, kRbp = 6;  // DWARF's numbers
  bool right = _Unwind_GetGR(c, kRbx) == walk_in.gpr[3] && _Unwind_GetGR(c, kRbp) == walk_in.gpr[4];
  for (int i = 12; i <= 15; i++) right = right && _Unwind_GetGR(c, i) == walk_in.gpr[i - 1];
  return right;
}
#else
bool has_registers(_Unwind_Context* c) {
  bool right = true;
  for (int i = 1; i < 31; i++) right = right && _Unwind_GetGR(c, i) == walk_in.x[i];
  return right;
}
#endif

_Unwind_Reason_Code look(_Unwind_Context* c, void* data) {
  auto& w = *static_cast<Walk*>(data);
  int before;
  uintptr_t pc = _Unwind_GetIPInfo(c, &before);
  if (pc - reinterpret_cast<uintptr_t>(&preempt_stress) <
      reinterpret_cast<uintptr_t>(preempt_stress_end) - reinterpret_cast<uintptr_t>(&preempt_stress)) {
    w.found = before;  // true for an interrupted pc, false for a return address
    w.registers = has_registers(c);
  }
  return _URC_NO_REASON;
}

void walk(long where) {
  Walk w;
  _Unwind_Backtrace(look, &w);
  walks++;
  if ((w.found && w.registers) || where == -2) return;
  bad_walks++;
  fprintf(stderr, "trampoline + %#lx: found %d, registers %d\n", where, w.found, w.registers);
}

#if defined(__x86_64__)
// Checks what the ABI promises to every function.
void check_called_state() {
  uint64_t flags;
  asm volatile("pushfq; pop %0" : "=r"(flags));
  uint32_t environment[7];
  asm volatile("fnstenv %0; fldenv %0" : "=m"(environment));
  called_right = !(flags & 0x400) && (environment[2] & 0xffff) == 0xffff && (environment[0] & 0xffff) == walk_in.x87_control;
}

// One tick into the counting loop, injects a call and turns single-stepping on. Each step in the trampoline is checked.
void on_alarm(int, siginfo_t*, void* context) {
  auto& regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (fiberthread::inject_call(context, [] {
        check_called_state();
        walk(-1);
      })) {
    injected = true;
    regs[REG_EFL] |= 0x100;
  }
}

void on_step(int, siginfo_t*, void* context) {
  auto& regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  uintptr_t pc = regs[REG_RIP], low = reinterpret_cast<uintptr_t>(&fiberthread_trampoline);
  if (pc - low < reinterpret_cast<uintptr_t>(fiberthread_trampoline_end) - low) {
    steps++;
    walk(pc - low);
  } else if (pc - reinterpret_cast<uintptr_t>(&preempt_stress) <
             reinterpret_cast<uintptr_t>(preempt_stress_end) - reinterpret_cast<uintptr_t>(&preempt_stress)) {
    regs[REG_EFL] &= ~0x100;  // back in the loop
  }
}
#else
// Checks what the ABI promises to every function. With any other state of the vectors, the call would not even work.
void check_called_state() {
  uint64_t svcr = 0, control;
  if (best_level() >= kSme) asm volatile("mrs %0, s3_3_c4_c2_2" : "=r"(svcr));
  asm volatile("mrs %0, fpcr" : "=r"(control));
  called_right = svcr == 0 && control == walk_in.fpcr;
}

// One tick into the counting loop, injects a call.
void on_alarm(int, siginfo_t*, void* context) {
  if (fiberthread::inject_call(context, [] {
        check_called_state();
        walk(-1);
      }))
    injected = true;
}
#endif

void* walk_thread(void*) {
  with_signal_stack();
  Random random{12345};
  fill(walk_in, random, kFull);
#if defined(__x86_64__)
  walk_in.flags |= 0x400;  // counts down in string instructions
#endif
  walk(-2);  // binds the symbols that it uses
  walks = 0;
  injected = false;
  // The kernel's own handlers, on this kernel thread. The library would choose where handlers of sigaction() run.
#if defined(__x86_64__)
  fiberthread::install_kernel_handler(SIGTRAP, on_step);
#endif
  fiberthread::install_kernel_handler(SIGUSR1, on_alarm);
  for (int i = 0; i < 20 && !injected; i++) {
    // The kernel's own timer, on the CPU clock of this kernel thread.
    sigevent event = {};
    event.sigev_signo = SIGUSR1;
    event.sigev_notify = SIGEV_THREAD_ID;
    event._sigev_un._tid = fiberthread::raw_syscall(SYS_gettid);
    int timer;
    fiberthread::raw_syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, fiberthread::arg(&event), fiberthread::arg(&timer));
    itimerspec once = {{0, 0}, {0, 2'000'000}};
    fiberthread::raw_syscall(SYS_timer_settime, timer, 0, fiberthread::arg(&once), 0);
    preempt_stress(&walk_in, &walk_out, 60'000'000, best_level());
    fiberthread::raw_syscall(SYS_timer_delete, timer);
  }
  return nullptr;
}

#if defined(__x86_64__)
constexpr int kLeastSteps = 60;
#else
constexpr int kLeastSteps = 0;  // everything of the interrupted code is on the stack before anything else runs
#endif

Test(inject, unwinds_from_each_instruction_of_the_trampoline) {
  pthread_t t;
  pthread_create(&t, nullptr, walk_thread, nullptr);
  pthread_join(t, nullptr);
  cr_assert(injected);
  cr_assert(steps >= kLeastSteps, "%d steps", steps);
  cr_assert_eq(walks, steps + 1);
  cr_assert(called_right);
  cr_assert_eq(bad_walks, 0);
  cr_assert(!difference(walk_in, walk_out, best_level()), "%s", difference(walk_in, walk_out, best_level()));
}

}  // namespace
