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
#include "sched/observe/observe.h"
#include "sched/memory/block.h"
#include "sched/poller.h"
#include "sched/worker.h"

// Functions of the sanitizers, in programs that have them. To AddressSanitizer, a recycled stack is as its last fiber left it.
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t) __attribute__((weak));
extern "C" int __asan_option_detect_stack_use_after_return __attribute__((weak));
extern "C" void __lsan_register_root_region(const void*, size_t) __attribute__((weak));
extern "C" void __lsan_unregister_root_region(const void*, size_t) __attribute__((weak));

namespace fiberthread {

namespace {

// Makes functions keep their variables on the stack. With newer compilers, AddressSanitizer keeps them elsewhere by default. There
// LeakSanitizer finds those of kernel threads only, and would report as a leak what a parked fiber holds by such a variable. So the default
// becomes that of older compilers.
void variables_on_stacks() {
  const char* asked = getenv("ASAN_OPTIONS");
  if (&__asan_option_detect_stack_use_after_return && !(asked && strstr(asked, "detect_stack_use_after_return=")))
    __asan_option_detect_stack_use_after_return = 0;
}

// Tells LeakSanitizer of a fiber's stack, as it knows those of kernel threads only. Under Busy, because a thread that ends waits for
// LeakSanitizer's lock in worker context.
void tell_leak_sanitizer(FiberRecord* f, void (*tell)(const void*, size_t)) {
  if (__builtin_expect(!tell, 1)) return;
  Busy busy;
  char* low = f->memory.stack_low;
  if (f->memory.user_stack) low = f->memory.guard_size ? f->memory.guard + f->memory.guard_size : f->memory.block;
  tell(low, static_cast<size_t>(f->memory.block + f->memory.block_size - low));
  if (f->memory.user_stack) tell(f->memory.stack_low, static_cast<size_t>(f->memory.stack_high - f->memory.stack_low));
}

void post_exit(Worker* w, FiberRecord* f) {
  Worker* own = f->run.bound.load(std::memory_order_relaxed);
  bool in_cord = own && own->run.cord && own->bond.fiber != f;
  if (__builtin_expect(in_cord, 0)) cord_left(own->run.cord, f);
  Ending ending = join_end(f);
  own = ending.bound;
  if (__builtin_expect(own && !in_cord, 0)) part_from_worker(own);
  chaos_delay();
  if (ending.joiner) {
    // Otherwise the joiner runs next here, and will see that f has ended.
    if (w->run.running.load(std::memory_order_relaxed) != ending.joiner) unpark(ending.joiner);
  } else if (ending.detached && f->memory.block) {
    block_put(f);
  }
}

void fiber_entry(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  arrive(f);
  reinterpret_cast<void (*)(FiberRecord*)>(f->identity.entry)(f);
}

}  // namespace

// Ends the calling fiber. Does not return, but the compiler must not know that: then the call at its end is a jump.
extern "C" void fiberthread_end() {
  tls_busy = 1;
  poll_let_go_all(tls_current);
  if (tls_current->memory.block) tell_leak_sanitizer(tls_current, __lsan_unregister_root_region);
  suspend(tls_current, post_exit, join_choose_next(tls_current));
}

void sched_prepare(FiberRecord* f, void (*entry)(FiberRecord*)) {
  // A request to cancel the block's last fiber came after that had ended, and before it was joined.
  if (__builtin_expect(f->run.interrupts.load(std::memory_order_relaxed) & kInterruptUnwind, 0)) tcb_forget_request(*f);
  f->reset(f->identity.id);
  f->identity.entry = reinterpret_cast<void*>(entry);
  tcb_begin(*f);
  tell_leak_sanitizer(f, __lsan_register_root_region);
  if (__asan_unpoison_memory_region) {
    __asan_unpoison_memory_region(f->memory.stack_low, static_cast<size_t>(f->memory.stack_high - f->memory.stack_low));
    variables_on_stacks();
  }
  char* high = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(f->memory.stack_high) & ~uintptr_t{15});
  make_context(f->context, high, f->context.tp, fiber_entry, f);
  f->run.state.store(State::Created, std::memory_order_relaxed);
}

void sched_discard(FiberRecord* f) {
  Busy busy;
  tell_leak_sanitizer(f, __lsan_unregister_root_region);
  Worker* own = f->run.bound.load(std::memory_order_relaxed);
  if (own && own->run.cord) cord_left(own->run.cord, f);
  else if (own) dismiss(own);
  f->run.bound.store(nullptr, std::memory_order_relaxed);
  block_put(f);
}

void sched_spawn(FiberRecord* f) {
  Busy busy;
  FiberRecord* me = self();
  if (me->run.kernel) statistics.spawned.fetch_add(1, std::memory_order_relaxed);
  else count(me->run.worker->counts.spawned);
  FIBERTHREAD_PROBE2("spawn", f, f->identity.start);
  if (observed(kObserveStats | kObserveTrace)) observe_spawned(f);
  f->run.state.store(State::Queued, std::memory_order_release);
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
