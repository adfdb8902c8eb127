// SPDX-License-Identifier: MIT
// A fiber's birth, and how it leaves its stack at the end.
#include <stdlib.h>
#include <string.h>

#include "sched/chaos.h"
#include "sched/cord.h"
#include "sched/glibc/tcb.h"
#include "sched/life/join.h"
#include "sched/life/parts.h"
#include "sched/observe/probe.h"
#include "sched/observe/watch.h"
#include "sched/memory/block.h"
#include "sched/worker.h"

// The sanitizers', in programs that have them. To AddressSanitizer, a recycled stack is as its last user left it.
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t) __attribute__((weak));
extern "C" int __asan_option_detect_stack_use_after_return __attribute__((weak));
extern "C" void __lsan_register_root_region(const void*, size_t) __attribute__((weak));
extern "C" void __lsan_unregister_root_region(const void*, size_t) __attribute__((weak));

namespace fiberthread {

namespace {

// Newer compilers let functions keep their variables elsewhere than on the stack. LeakSanitizer finds those of kernel threads only, and
// would call a leak what a fiber that waits holds by them. So the default is that of older compilers.
void variables_on_stacks() {
  const char* asked = getenv("ASAN_OPTIONS");
  if (&__asan_option_detect_stack_use_after_return && !(asked && strstr(asked, "detect_stack_use_after_return=")))
    __asan_option_detect_stack_use_after_return = 0;
}

// LeakSanitizer looks for pointers on the stacks of kernel threads; of fibers it has to be told. Busy: whoever ends waits for its lock in
// worker context.
void tell_leak_sanitizer(FiberRecord* f, void (*tell)(const void*, size_t)) {
  if (__builtin_expect(!tell, 1)) return;
  Busy busy;
  char* low = f->user_stack ? f->block + f->guard_size : f->stack_low;
  tell(low, static_cast<size_t>(f->block + f->block_size - low));
  if (f->user_stack) tell(f->stack_low, static_cast<size_t>(f->stack_high - f->stack_low));
}

void post_exit(Worker* w, FiberRecord* f) {
  Worker* own = f->bound.load(std::memory_order_relaxed);
  bool in_cord = own && own->cord && own->bound != f;
  if (__builtin_expect(in_cord, 0)) cord_left(own->cord, f);
  Ending ending = join_end(f);
  own = ending.bound;
  if (__builtin_expect(own && !in_cord, 0)) {
    bool leaves = own->tainted || own->cord;
    own->cord = nullptr;
    if (leaves) dismiss(own);
    else own->bound = nullptr;  // by habit only: this very worker, which now is as any other
  }
  chaos_delay();
  if (ending.joiner) {
    // Else it is what comes next here, and will see that f has ended.
    if (w->running.load(std::memory_order_relaxed) != ending.joiner) unpark(ending.joiner);
  } else if (ending.detached && f->block) {
    block_put(f);
  }
}

void fiber_entry(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  arrive(f);
  reinterpret_cast<void (*)(FiberRecord*)>(f->entry)(f);
}

}  // namespace

// Does not return, but must be seen to: then the call at its end is a jump.
extern "C" void fiberthread_end() {
  tls_busy = 1;
  if (tls_current->block) tell_leak_sanitizer(tls_current, __lsan_unregister_root_region);
  suspend(tls_current, post_exit, join_choose_next(tls_current));
}

void sched_prepare(FiberRecord* f, void (*entry)(FiberRecord*)) {
  f->entry = reinterpret_cast<void*>(entry);
  // Whoever holds an old handle looks at the serial last.
  f->serial = f->id;
  f->done.store(0, std::memory_order_release);
  __atomic_store_n(&f->joiner, nullptr, __ATOMIC_RELEASE);
  f->leaves_with = nullptr;
  f->pending_unpark.store(0, std::memory_order_relaxed);
  f->interrupts.store(0, std::memory_order_relaxed);
  f->preempted.store(0, std::memory_order_relaxed);
  f->in_libc = false;
  f->kernel = false;
  f->blocked = 0;
  f->clock_seen = 0;
  f->woke_at = 0;
  f->until_timed = f->went_on = 0;
  f->calling = false;
  f->fresh.store(0, std::memory_order_relaxed);
  f->end_asked = f->end_held = false;
  f->end_reasons = 0;
  f->cpu.store(0, std::memory_order_relaxed);
  f->cpu_seen.store(0, std::memory_order_relaxed);
  f->queued = f->queued_below = 0;
  tcb_begin(*f);
  tell_leak_sanitizer(f, __lsan_register_root_region);
  if (__asan_unpoison_memory_region) {
    __asan_unpoison_memory_region(f->stack_low, static_cast<size_t>(f->stack_high - f->stack_low));
    variables_on_stacks();
  }
  char* high = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(f->stack_high) & ~uintptr_t{15});
  make_context(f->context, high, f->context.tp, fiber_entry, f);
  f->state.store(State::Created, std::memory_order_relaxed);
}

void sched_discard(FiberRecord* f) {
  Busy busy;
  tell_leak_sanitizer(f, __lsan_unregister_root_region);
  Worker* own = f->bound.load(std::memory_order_relaxed);
  if (own && own->cord) cord_left(own->cord, f);
  else if (own) dismiss(own);
  f->bound.store(nullptr, std::memory_order_relaxed);
  block_put(f);
}

void sched_spawn(FiberRecord* f) {
  Busy busy;
  FiberRecord* me = self();
  if (me->kernel) statistics.spawned.fetch_add(1, std::memory_order_relaxed);
  else count(me->worker->spawned);
  FIBERTHREAD_PROBE2("spawn", f, f->start);
  if (watched(kWatchStats | kWatchTrace)) watch_spawned(f);
  f->state.store(State::Queued, std::memory_order_release);
  if (options.spawn == SpawnPolicy::RoundRobin) {
    enqueue_round_robin(f);
  } else {
    enqueue_woken(f);
  }
}

void sched_exit() {
  fiberthread_end();
  __builtin_unreachable();
}

}  // namespace fiberthread
