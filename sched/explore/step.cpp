// SPDX-License-Identifier: MIT
#include "sched/explore/step.h"

#include <errno.h>
#include <link.h>
#include <string.h>

#include "sched/arch/step.h"
#include "sched/embedder.h"
#include "sched/glibc/modules.h"
#include "sched/preempt.h"
#include "sched/syscall.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {

constexpr uint32_t kOwnStep = 20;  // what a step in the library counts
constexpr uint64_t kTrapBit = uint64_t{1} << (SIGTRAP - 1);

// One worker runs one fiber at a time, so there is one window.
struct Window {
  FiberRecord* fiber;  // null: it is closed
  uint32_t left;       // accesses until the stop, with the one that it comes before
  uint32_t most;       // steps in a row without an access
  uint32_t steps;      // since the last access
  bool skips;          // the next access does not count
} window;
uint32_t made = 0;        // steps
kernel_handler before;    // the program's action
bool taken = false;       // the action is ours
ExplorePoint stopped_at;  // for stopped(), with the size of what is read and written
uint8_t written = 0;
uintptr_t stopped_sp = 0;

struct Code {
  uintptr_t low = 0, high = 0;
  bool has(uintptr_t pc) const { return pc - low < high - low; }
} own, stubs;  // of libfiberthread.so and libfiberthread-explore.so

int look_at_object(dl_phdr_info* info, size_t, void*) {
  const char* slash = strrchr(info->dlpi_name, '/');
  bool is_own = object_contains(*info, reinterpret_cast<const void*>(&look_at_object));
  if (!is_own && strcmp(slash ? slash + 1 : info->dlpi_name, "libfiberthread-explore.so") != 0) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& ph = info->dlpi_phdr[i];
    if (ph.p_type != PT_LOAD || !(ph.p_flags & PF_X)) continue;
    uintptr_t low = info->dlpi_addr + ph.p_vaddr;
    (is_own ? own : stubs) = {low, low + ph.p_memsz};
  }
  return 0;
}

// Closes the window in the handler.
void close(ucontext_t* uc) {
  set_stepping(uc, false);
  if (Worker* w = this_worker(); w && w->run.kernel_mask & kTrapBit) {
    uint64_t mask;
    memcpy(&mask, &uc->uc_sigmask, sizeof mask);
    mask |= kTrapBit;
    memcpy(&uc->uc_sigmask, &mask, sizeof mask);
  }
  window.fiber = nullptr;
  if (taken) restore_kernel_handler(SIGTRAP, before);
  taken = false;
}

// Called by injection, on the fiber's stack, before the instruction where it is stopped.
void stopped() {
  int error = errno;
  uintptr_t sp = stopped_sp, pc = stopped_at.pc;  // other fibers are stopped before this one goes on
  bool switched = explored_stop(stopped_at, written);
  // As after a preemption: a thread that asked for this fiber's end meanwhile has sent no signal.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (embedder().end_requested_at(tls_current, pc)) embedder().end_now();
  if (switched && explored_window(true)) inject_stepping(sp);
  errno = error;
}

void on_trap(int, siginfo_t* info, void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  FiberRecord* me = tls_current;
  if (info->si_code != TRAP_TRACE) {
    // Not of a step. The program gets it, by its own action, when this returns.
    siginfo_t again = *info;
    close(uc);
    raw_syscall(SYS_rt_tgsigqueueinfo, raw_syscall(SYS_getpid), raw_syscall(SYS_gettid), SIGTRAP, arg(&again));
    return;
  }
  if (!me || me != window.fiber) {
    // The fiber has switched away in the window, or comes back from a handler on top of a window.
    close(uc);
    return;
  }
  made++;
  uintptr_t pc = interrupted_pc(uc);
  // The fiber comes back from this library after a few steps, or it waits or ends.
  window.steps += own.has(pc) ? kOwnStep : 1;
  if (stubs.has(pc) || window.steps > window.most) return close(uc);  // a point comes now, or this leads nowhere
  Access a = next_access(uc);
  if (a.kind == Access::Barred) return close(uc);
  if (a.kind == Access::None || tls_busy || !preempt_in_program(pc)) return;
  auto low = reinterpret_cast<uintptr_t>(me->memory.stack_low), high = reinterpret_cast<uintptr_t>(me->memory.stack_high);
  if (a.address - low < high - low) return;
  window.steps = 0;
  if (window.skips) {
    window.skips = false;
    return;
  }
  uint32_t n = a.kind == Access::ReadThenWrite ? 2 : 1;
  if (window.left > n) {
    window.left -= n;
    return;
  }
  bool between = window.left == 2;
  stopped_at = {"", a.address, pc, between};
  written = between ? a.size : 0;
  stopped_sp = interrupted_sp(uc);
  close(uc);
  inject_call(uc, stopped);
}

}  // namespace

void step_init() { dl_iterate_phdr(look_at_object, nullptr); }

void step_open(uint32_t n, uint32_t most, bool stopped) {
  FiberRecord* me = tls_current;
  uint64_t trap = kTrapBit;
  window = {me, n, most, 0, stopped};
  if (!taken) install_kernel_handler(SIGTRAP, on_trap, &before);
  taken = true;
  if (me->run.worker->run.kernel_mask & kTrapBit) raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&trap), 0, sizeof trap);
}

uint32_t steps_made() { return made; }

bool step_is_open() { return window.fiber != nullptr; }

void step_close() { window.fiber = nullptr; }

}  // namespace fiberthread
