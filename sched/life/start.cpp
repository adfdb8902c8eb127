// SPDX-License-Identifier: MIT
// The start of the scheduler, or the reason why threads stay libc's.
#include <pthread.h>

#include <initializer_list>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/clock.h"
#include "sched/embedder.h"
#include "sched/explore/explore.h"
#include "sched/glibc/go.h"
#include "sched/glibc/modules.h"
#include "sched/glibc/self_check.h"
#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/life/parts.h"
#include "sched/observe/dumper.h"
#include "sched/observe/flight.h"
#include "sched/observe/metrics.h"
#include "sched/observe/names.h"
#include "sched/observe/observe.h"
#include "sched/observe/stall.h"
#include "sched/own_descriptors.h"
#include "sched/preempt.h"
#include "sched/memory/block.h"
#include "sched/memory/guard.h"
#include "sched/worker.h"

extern "C" void __tsan_init() __attribute__((weak));  // ThreadSanitizer's
// Of preload/explore/memory/, which answers in its place.
extern "C" void fiberthread_explore_answers() __attribute__((weak));

namespace fiberthread {

Options options;
FiberRecord main_fiber_record;
FiberRecord* main_fiber = &main_fiber_record;

namespace {

enum class Phase : uint32_t { Off, Starting, On, Impossible };
std::atomic<Phase> phase{Phase::Off};

std::atomic<uint32_t> concurrency{0};

uint32_t cpus = 1;

std::atomic<bool> asked{false};

// Computes cycles_per_us from both clocks now and at the beginning of the start. The start takes long enough for that.
void measure_cycles(uint64_t from_cycles, uint64_t from_ns) {
  uint64_t c = cycles(), t = now_ns();
  cycles_per_us = t > from_ns ? (c - from_cycles) * 1000 / (t - from_ns) : 0;
  if (!cycles_per_us) cycles_per_us = 1;
}

// Returns why this process cannot have fibers. Null: it may.
const char* refusal() {
  if (options.nptl) return options.nptl;
  if (__tsan_init && !fiberthread_explore_answers) return "ThreadSanitizer keeps threads' state where fibers cannot have their own";
  if (tcb_go_is_loaded()) return "Go's runtime makes system calls by itself";
  if (running_on_valgrind()) return "valgrind does not let a signal handler say where its thread goes on";
  if (has_shadow_stack()) return "they have shadow stacks, and a fiber could have none of its own";
  if (!may_switch()) return "a filter of system calls refuses arch_prctl(), which a switch is on this processor";
  if (options.refused) return options.refused;
  return options.fail_self_check ? "the self-check was told to fail" : nullptr;
}

}  // namespace

void sched_init() {
  main_fiber->run.kernel = true;
  main_fiber->identity.is_main = true;
  main_fiber->run.state.store(State::Running, std::memory_order_relaxed);
  main_fiber->memory.tcb = reinterpret_cast<void*>(pthread_self());  // main has libc's TCB
  main_fiber->identity.id = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  main_fiber->join.valid.store(true, std::memory_order_relaxed);
  tls_current = main_fiber;
}

uint32_t base_slots() {
  if (options.workers) return options.workers;
  uint32_t asked = concurrency.load(std::memory_order_relaxed);
  return asked ? asked : cpus;
}

bool slots_are_asked_for() { return options.workers || concurrency.load(std::memory_order_relaxed); }

void sched_set_concurrency(uint32_t n) {
  concurrency.store(n, std::memory_order_relaxed);
  if (!sched_started()) return;
  Busy busy;
  want_slots(base_slots());
  wake_for_queued();
}

bool sched_started() { return phase.load(std::memory_order_acquire) == Phase::On; }

bool sched_asked() { return asked.load(std::memory_order_relaxed); }

namespace {
void begin_sysmon_if_wanted() {
  if (sysmon_waits() && (explore_wants_sysmon() || metrics_wanted() || stalls_watched())) sysmon_begin();
}
}  // namespace

bool sched_start() {
  Phase p = phase.load(std::memory_order_acquire);
  if (p != Phase::On) asked.store(true, std::memory_order_relaxed);
  if (p == Phase::Impossible) return false;  // before self(), which may need memory
  FiberRecord* me = self();
  if (__builtin_expect(p == Phase::On && !(me->identity.is_main && me->run.kernel), 1)) return true;
  Busy busy;
  if (p == Phase::Off && phase.compare_exchange_strong(p, Phase::Starting, std::memory_order_acq_rel)) {
    OwnCalls calls;
    uint64_t from_cycles = cycles(), from_ns = now_ns(), old;
    sched_block_signals(&old);
    bool ok = false;
    barrier_init();
    const char* why = refusal();
    if (!why) {
      if (!exploring || !explore_unclaimed()) {  // else no clock is followed, and one worker runs
        clock_open();
        place_prepare();
      }
      bool late = sysmon_comes_late();
      if (!late) sysmon_prepare();
      ok = tcb_init(late ? nullptr : sysmon_main, &why);
    }
    if (ok) {
      measure_cycles(from_cycles, from_ns);
      if (sysmon_waits()) {
        sysmon_reserve();
        memory::guards_work();  // the process may be forked for each schedule, and each child would ask
      }
      flight_clocks();
      dumper_find();
      tcb_look_at_modules();
      stack_look_at_objects();
      preempt_init();
      if (exploring && !explore_claim_deferred()) explore_claim();
      if (sysmon_waits() && !exploring) sysmon_begin_late();  // another process was faster to claim
      if (exploring) options.workers = 1;
      cpus = exploring ? 1 : cpu_count();
      if (!want_slots(base_slots())) {
        ok = false;
        why = "there is no memory for the queues";
      }
    }
    if (ok) embedder().before_start();
    sched_restore_signals(old);
    if (!ok && options.verbose) {
      char line[160];
      size_t n = 0;
      for (const char* s : {"fiberthread: threads are NPTL's: ", why, "\n"})
        for (; *s && n < sizeof line; s++) line[n++] = *s;
      raw_syscall(SYS_write, 2, arg(line), static_cast<long>(n));
    }
    if (ok) {
      names_start();
      trace_start();
      metrics_start();
      if (!exploring || !explore_claim_deferred()) begin_sysmon_if_wanted();
    }
    phase.store(ok ? Phase::On : Phase::Impossible, std::memory_order_release);
    futex_wake(&phase, 1 << 30);
  }
  while (phase.load(std::memory_order_acquire) == Phase::Starting) futex_wait(&phase, static_cast<uint32_t>(Phase::Starting));
  if (!sched_started()) return false;
  if (me->identity.is_main && me->run.kernel) {
    uint64_t old;
    sched_block_signals(&old);
    me->run.sigmask = old;
    bool ok = become_worker(me);
    if (ok) sched_apply_mask();
    else sched_restore_signals(old);
    return ok;
  }
  return true;
}

bool sched_may_be_copied() {
  return sched_started() && sysmon_waits() && !metrics_wanted() && !stalls_watched() && !observed(kObserveTrace);
}

void sched_copied() {
  Busy busy;
  Worker* w = this_worker();
  own_fd_new_process();
  main_fiber->identity.id = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  w->thread.tid = static_cast<int>(main_fiber->identity.id);
  preempt_end_worker(w);
  preempt_start_worker(w);
  w->cpu.mark.store(0, std::memory_order_relaxed);
  account(w, nullptr);
  main_fiber->cpu.given.store(w->cpu.mark.load(std::memory_order_relaxed), std::memory_order_relaxed);
  explore_take_order();
}

void sched_claim() {
  if (!exploring || !explore_claim_deferred() || !sched_started()) return;
  explore_claim();
  if (!exploring && sysmon_waits()) sysmon_begin_late();
  begin_sysmon_if_wanted();
}

FIBERTHREAD_IN_FORK_CHILD(Start, start, [](FiberRecord*) {
  if (asked.load()) asked.store(false);
  if (Phase p = phase.load(); p != Phase::Impossible && p != Phase::Off) phase.store(Phase::Off);
})

FIBERTHREAD_IN_FORK_CHILD(Caller, caller, [](FiberRecord* me) {
  if (main_fiber != me && !main_fiber->memory.block) main_fiber->join.valid.store(false);
  main_fiber->identity.is_main = false;
  me->in_child();
  main_fiber = me;
})

}  // namespace fiberthread
