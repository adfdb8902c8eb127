// SPDX-License-Identifier: MIT
// pthread_create, _join, _detach, _exit, and what a thread knows of itself.
#include "shim/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "sched/arch/arch.h"
#include "sched/glibc/keys.h"
#include "sched/glibc/tcb.h"
#include "sched/life/join.h"
#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/memory/reaper.h"
#include "sched/scheduler.h"
#include "shim/blocking.h"
#include "shim/cancel.h"
#include "shim/dl.h"
#include "shim/export.h"
#include "shim/libgomp.h"
#include "shim/mutex.h"
#include "shim/real.h"
#include "shim/rings.h"
#include "shim/scheduling.h"
#include "shim/shared_use.h"
#include "shim/signal.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/unwinder.h"

extern "C" {
int __sigsetjmp(struct __jmp_buf_tag*, int) __attribute__((returns_twice));
// In sched/arch/<cpu>/posix/landing.S. Fills `buf` by __sigsetjmp. A jump to it ends in fiberthread_main_landed, with the stack pointer
// that the buffer of the jump has.
void fiberthread_landing(struct __jmp_buf_tag* buf) __attribute__((visibility("hidden")));
void fiberthread_landing_elsewhere(struct __jmp_buf_tag* buf) __attribute__((visibility("hidden")));
[[noreturn]] void fiberthread_main_landed() __attribute__((visibility("hidden"), used));
}

namespace fiberthread {
namespace {

// Ends the thread, except for leaving its stack.
void end_raw(FiberRecord* me) {
  leave_disk();
  robust_mutexes_owner_died(me);
  clear_named_word();
  signal_thread_ends(me);
  // If this is the only thread of a forked child, or a thread that is not ours, the kernel ends it.
  if (me->run.kernel) raw_syscall(SYS_exit, 0);
  tls_busy = 1;
  if (me->memory.block) tcb_end(*me);
}

// Runs the destructors, then counts the end.
void end_thread() {
  FiberRecord* me = self();
  // As in NPTL: main's thread_locals are destroyed at exit, and the destructors of a thread that has returned can be cancelled.
  if (me->memory.block) tcb_call_tls_destructors();
  tcb_run_key_destructors();
  cancel_begin_exit(me);
  if (sched_count_end()) exit(0);  // POSIX: the last thread ends the process
  end_raw(me);
}

void run(FiberRecord* f) {
  __pthread_unwind_buf_t target;  // libc's pthread_exit unwinds to here
  memset(&target, 0, sizeof target);
  *tcb_cleanup_jmp_buf(f->memory.tcb) = &target;
  tcb_first_steps();
  if (__sigsetjmp(reinterpret_cast<__jmp_buf_tag*>(&target), 0) == 0) {
    tls_busy = 0;
    if (f->run.interrupts.load(std::memory_order_relaxed) & kInterruptSafePoint) leave_busy_slow();
    void* result = f->identity.start(f->identity.arg);
    self()->identity.result = result;
  } else if (cancelled_by_libc(f)) {
    f->identity.result = PTHREAD_CANCELED;
  }
  end_thread();
}

constexpr size_t kMinStack = 16384;  // PTHREAD_STACK_MIN, which libc computes at run time where registers are large

// Attributes of a thread that is being made.
struct Wanted {
  size_t stack_size, guard_size;
  size_t guard_asked;  // whole pages; may be less than what it gets
  void* stack;
  bool detached;
  bool has_mask;
  uint64_t mask;
};

void read_attr(const pthread_attr_t* attr, Wanted& w) {
  int state = PTHREAD_CREATE_JOINABLE;
  pthread_attr_getdetachstate(attr, &state);
  w.detached = state == PTHREAD_CREATE_DETACHED;
  pthread_attr_getguardsize(attr, &w.guard_size);
  pthread_attr_getstack(attr, &w.stack, &w.stack_size);
  if (reinterpret_cast<uintptr_t>(w.stack) + w.stack_size == 0) {  // none was set
    w.stack = nullptr;
    pthread_attr_getstacksize(attr, &w.stack_size);
  }
  sigset_t mask;
  w.has_mask = pthread_attr_getsigmask_np(attr, &mask) == 0;
  if (w.has_mask) memcpy(&w.mask, &mask, sizeof w.mask);
}

// The defaults of pthread_attr_t. pthread_setattr_default_np changes them.
std::atomic<uint32_t> default_version{1};
SpinLock default_lock;
std::atomic<uint32_t> default_known{0};  // the version of default_wanted; 0 while that is written
Wanted default_wanted;

Wanted default_attr() {
  uint32_t version = default_version.load(std::memory_order_acquire);
  if (default_known.load(std::memory_order_acquire) == version) {
    Wanted known = default_wanted;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (default_known.load(std::memory_order_relaxed) == version) return known;
  }
  pthread_attr_t attr;
  Wanted w{};
  if (pthread_getattr_default_np(&attr) == 0) {
    read_attr(&attr, w);
    pthread_attr_destroy(&attr);
  } else {
    w.stack_size = 8 << 20;
    w.guard_size = page_size();
  }
  Busy busy;
  SpinGuard guard(default_lock);
  default_known.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  default_wanted = w;
  default_known.store(version, std::memory_order_release);
  return w;
}

bool libc_is_since_2_43() {
  static const bool is = dlvsym(RTLD_DEFAULT, "openat2", "GLIBC_2.43") != nullptr;  // openat2 came with it
  return is;
}

// Returns the result of a second join of the same thread. Since 2.43, libc treats it like the first one, as long as it has the thread's
// memory. Earlier releases return ESRCH.
int join_again(pthread_t t, void** result) {
  FiberRecord* f = libc_is_since_2_43() ? block_find(reinterpret_cast<void*>(t)) : nullptr;
  if (!f) return ESRCH;
  if (result) *result = f->identity.result;
  return 0;
}

// `f` is the thread, or null if it has been joined before.
int join(pthread_t t, FiberRecord* f, void** result, uint64_t deadline_ns) {
  if (!f) return join_again(t, result);
  test_cancel();
  FiberRecord* me = self();
  if (f == me && libc_is_since_2_43()) return EDEADLK;  // earlier releases look first whether it is detached
  if (int e = join_register(me, f)) return e;
  for (;;) {
    bool joined = join_wait(f, result, deadline_ns, kInterruptLeave | (cancel_enabled(me) ? uint32_t{kInterruptUnwind} : 0));
    wait_over(me);
    if (joined) {
      go_to_own_worker();  // if the ended thread has bound the caller, and the caller did not park since
      return 0;
    }
    if (cancel_pending(me)) cancel_self();
    if (passed(self(), deadline_ns)) return ETIMEDOUT;
    if (int e = join_register(me, f)) return e;
  }
}

// Returns true if this libc looks at the time of a join before all else, as it does from 2.41 on. Earlier releases look only if they have
// to wait. It is asked to join the caller until an invalid time. It refuses that in any case, but for different reasons. The caller is
// joinable to libc.
bool time_comes_first() {
  static std::atomic<int> answer{-1};
  int first = answer.load(std::memory_order_relaxed);
  if (first >= 0) return first;
  if (self()->run.kernel) return false;  // perhaps detached
  int state;
  REAL(pthread_setcancelstate)(PTHREAD_CANCEL_DISABLE, &state);
  timespec none = {0, -1};
  first = REAL(pthread_timedjoin_np)(pthread_self(), nullptr, &none) == EINVAL;
  REAL(pthread_setcancelstate)(state, nullptr);
  answer.store(first, std::memory_order_relaxed);
  return first;
}

bool started() { return sched_started(); }

// Makes the unwinding of main end in fiberthread_main_landed(). libc has put main's own unwind target at the end of the chain, and would
// end the kernel thread there. Everything of the target stays except the place to go on at. Called by main itself. Returns false if it
// cannot be done.
bool redirect_end_of_main() {
  static bool done;
  if (done) return true;
  auto* buf = static_cast<__pthread_unwind_buf_t*>(*tcb_cleanup_jmp_buf(main_fiber->memory.tcb));
  while (buf && buf->__pad[0]) buf = static_cast<__pthread_unwind_buf_t*>(buf->__pad[0]);
  sigjmp_buf here, there;
  memset(&here, 0, sizeof here);
  memset(&there, 0, sizeof there);
  fiberthread_landing(here);
  fiberthread_landing_elsewhere(there);
  int pc = -1;
  auto* a = reinterpret_cast<unsigned long*>(here);
  auto* b = reinterpret_cast<unsigned long*>(there);
  for (size_t i = 0; i < sizeof(__jmp_buf) / sizeof(long); i++)
    if (a[i] != b[i]) pc = pc == -1 ? static_cast<int>(i) : -2;
  if (!buf || pc < 0) return false;
  reinterpret_cast<unsigned long*>(buf)[pc] = a[pc];
  return done = true;
}

// Applies FIBERTHREAD_STACK_SIZE, to libc's threads as well.
void default_stack_size() {
  static std::atomic<bool> done{false};
  pthread_attr_t attr;
  if (!options.stack_size || done.exchange(true, std::memory_order_relaxed) || pthread_getattr_default_np(&attr) != 0) return;
  if (pthread_attr_setstacksize(&attr, options.stack_size) == 0 && REAL(pthread_setattr_default_np)(&attr) == 0)
    default_version.fetch_add(1, std::memory_order_acq_rel);
  pthread_attr_destroy(&attr);
}

FiberRecord* get_block(const Wanted& w) {
  auto get = [&] {
    Busy busy;
    return block_get(w.stack_size, w.guard_size, w.stack);
  };
  FiberRecord* f = get();
  if (__builtin_expect(f != nullptr, 1)) return f;
  // Threads may only have to run to their end, which gives their memory back. A caller that tries again and again would keep them from it.
  give_way();
  if ((f = get())) return f;
  return reaper_make_room() ? get() : nullptr;
}

void look_up() {
  signal_init();
  default_stack_size();
}

}  // namespace

// Starts the scheduler at the first thread. Returns false if threads are NPTL's.
bool thread_start_scheduler() {
  bool first = !sched_started();
  if (__builtin_expect(first, 0)) {
    look_up();
    block_before_start();
  }
  FiberRecord* me = tls_current;
  bool is_main = me && me->identity.is_main;
  if (__builtin_expect(is_main && me->run.kernel, 0)) {
    Busy busy;  // main stays on its kernel thread until it has taken over what is pending there
    if (!sched_start()) return false;
    signal_adopt_pending(me);
  } else if (!sched_start()) {
    return false;
  }
  if (__builtin_expect(first, 0)) {
    // This is done now, since libc may find by itself that main was cancelled.
    if (is_main && !me->memory.block) redirect_end_of_main();
    if (is_main) scheduling_look_up_rank(me);
    if (is_main) rings_scheduler_started();
    shared_scheduler_started();
    signal_scheduler_started();
    cancel_scheduler_started();
    libgomp_look();
  }
  return true;
}

// Does all of pthread_create except what makes the thread run. Returns 0 or an errno value.
int thread_make(const pthread_attr_t* attr, size_t stack_size, FiberRecord** made) {
  Wanted w;
  if (attr) read_attr(attr, w);
  else w = default_attr();
  if (__builtin_expect(stack_size != 0, 0) && !w.stack) w.stack_size = stack_size;
  if (w.stack) {
    if (w.stack_size < kMinStack || w.stack_size < tcb_least_stack()) return EINVAL;
    w.guard_size = w.guard_asked = 0;
  } else {
    // As in NPTL, the guard comes on top, and TCB and TLS are part of the stack.
    size_t asked = to_pages(w.guard_size), sum;
    w.stack_size &= ~(tcb_align() - 1);
    if (w.stack_size < kMinStack || w.stack_size < to_pages(tcb_least_stack()) || asked < w.guard_size) return EINVAL;
    w.guard_asked = asked;
    w.guard_size = guard_for(asked);
    if (__builtin_add_overflow(w.stack_size, w.guard_size, &sum)) return EINVAL;
  }
  FiberRecord* me = self();
  FiberRecord* f = get_block(w);
  if (!f) return EAGAIN;
  if constexpr (kGuardsGrow) f->memory.guard_asked = w.guard_asked < w.guard_size ? static_cast<uint32_t>(w.guard_asked) : 0;
  if (__builtin_expect(blocks_are_many(), 0)) reaper_start_if_needed();
  memcpy(f->identity.name, me->identity.name, sizeof f->identity.name);
  f->run.sigmask = w.has_mask ? w.mask : me->run.sigmask;
  sched_prepare(f, run);
  f->join.detached = w.detached;
  if (int e = scheduling_at_birth(f, me, attr)) {
    sched_discard(f);
    return e;
  }
  *made = f;
  return 0;
}

void thread_begin(FiberRecord* f) {
  f->join.valid.store(true, std::memory_order_release);
  signal_thread_begins(f);
}

FIBERTHREAD_IN_FORK_CHILD(Embedder, threads, [](FiberRecord*) {
  default_lock.reset();
  default_known.store(0);  // another thread may have been writing it
})

FiberRecord* fiber_of(pthread_t t) {
  if (reinterpret_cast<void*>(t) == main_fiber->memory.tcb) return main_fiber;
  FiberRecord* f = block_find(reinterpret_cast<void*>(t));
  return f && f->join.valid.load(std::memory_order_acquire) ? f : nullptr;
}

bool stale_handle(pthread_t t) { return block_find(reinterpret_cast<void*>(t)) != nullptr; }

void thread_exit(void* value) {
  FiberRecord* me = self();
  cancel_begin_exit(me);
  me->identity.result = value;
  if (me == main_fiber && !me->memory.block && !redirect_end_of_main()) {
    end_thread();
    sched_exit();
  }
  unwinder_load();
  REAL(pthread_exit)(value);
  __builtin_unreachable();
}

void thread_exit_raw() {
  end_raw(self());
  sched_exit();
}

}  // namespace fiberthread

using namespace fiberthread;

// For preload/explore/server.cpp. Starts the scheduler at the first thread, but for what each child does in fiberthread_explore_claim().
// Returns whether children may be made by fiberthread_explore_fork().
extern "C" [[gnu::visibility("default")]] bool fiberthread_explore_start() {
  explore_defer_claim();
  return thread_start_scheduler() && sched_may_be_copied();
}
extern "C" [[gnu::visibility("default")]] void fiberthread_explore_claim() { sched_claim(); }

extern "C" void fiberthread_main_landed() {
  if (cancelled_by_libc(main_fiber)) main_fiber->identity.result = PTHREAD_CANCELED;
  end_thread();
  sched_exit();
}

FIBERTHREAD_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*), void* arg) noexcept {
  if (!thread_start_scheduler()) return REAL(pthread_create)(thread, attr, start, arg);
  if (__builtin_expect(dl_is_opening(), 0)) libgomp_look();
  FiberRecord* f;
  if (int e = thread_make(attr, 0, &f)) return e;
  f->identity.start = start;
  f->identity.arg = arg;
  f->join.valid.store(true, std::memory_order_release);
  *thread = reinterpret_cast<pthread_t>(f->memory.tcb);
  signal_thread_begins(f);
  sched_spawn(f);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_join(pthread_t t, void** result) {
  if (!started()) return REAL(pthread_join)(t, result);
  FiberRecord* f = fiber_of(t);
  if (!f && !stale_handle(t)) return REAL(pthread_join)(t, result);
  return join(t, f, result, kNever);
}

FIBERTHREAD_EXPORT int pthread_tryjoin_np(pthread_t t, void** result) noexcept {
  if (!started()) return REAL(pthread_tryjoin_np)(t, result);
  FiberRecord* f = fiber_of(t);
  if (!f && !stale_handle(t)) return REAL(pthread_tryjoin_np)(t, result);
  if (!f) return ESRCH;
  if (!f->join.done.load(std::memory_order_acquire)) return EBUSY;  // also if it is the caller
  return join(t, f, result, kNever);
}

FIBERTHREAD_EXPORT int pthread_clockjoin_np(pthread_t t, void** result, clockid_t clock, const timespec* abstime) {
  if (!started()) return REAL(pthread_clockjoin_np)(t, result, clock, abstime);
  FiberRecord* f = fiber_of(t);
  if (!f && !stale_handle(t)) return REAL(pthread_clockjoin_np)(t, result, clock, abstime);
  if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return EINVAL;
  if (!abstime) return join(t, f, result, kNever);
  int e;
  if (!valid(*abstime) && f && time_comes_first()) return EINVAL;
  if (!valid(*abstime)) return (e = join(t, f, result, 0)) == ETIMEDOUT ? EINVAL : e;
  do e = join(t, f, result, deadline_from(clock, abstime));
  while (e == ETIMEDOUT && !reached(clock, abstime));  // the clock was set
  return e;
}

FIBERTHREAD_EXPORT int pthread_timedjoin_np(pthread_t t, void** result, const timespec* abstime) {
  if (!started() || (!fiber_of(t) && !stale_handle(t))) return REAL(pthread_timedjoin_np)(t, result, abstime);
  return pthread_clockjoin_np(t, result, CLOCK_REALTIME, abstime);
}

FIBERTHREAD_EXPORT int pthread_detach(pthread_t t) noexcept {
  if (!started() || (!fiber_of(t) && !stale_handle(t))) return REAL(pthread_detach)(t);
  FiberRecord* f = fiber_of(t);
  if (!f) return join_again(t, nullptr);
  switch (join_set_detached(f, true)) {
    case Detached::Gone:
    case Detached::Before: return EINVAL;
    case Detached::HasJoiner:  // as NPTL: a joiner waits for it, and so detaches it in effect
    case Detached::Now: return 0;
    case Detached::Ended:
      if (f->memory.block) {
        Busy busy;
        block_put(f);
      }
  }
  return 0;
}

FIBERTHREAD_EXPORT void pthread_exit(void* value) {
  if (tls_current) cancel_leave(tls_current, value);
  if (!started() || (self()->run.kernel && !self()->memory.block && self() != main_fiber)) {
    REAL(pthread_exit)(value);
    __builtin_unreachable();
  }
  thread_exit(value);
}

FIBERTHREAD_EXPORT int pthread_setattr_default_np(const pthread_attr_t* attr) noexcept {
  int e = REAL(pthread_setattr_default_np)(attr);
  default_version.fetch_add(1, std::memory_order_acq_rel);
  return e;
}

FIBERTHREAD_EXPORT int pthread_getattr_np(pthread_t t, pthread_attr_t* attr) noexcept {
  FiberRecord* f = fiber_of(t);
  // A thread may ask about itself until its very end, as sanitizers do when a detached thread ends.
  if (!f && tls_current && tls_current->memory.tcb == reinterpret_cast<void*>(t)) f = tls_current;
  if (!f && stale_handle(t)) return ESRCH;
  if (!f || !f->memory.block) {
    int e = REAL(pthread_getattr_np)(t, attr);
    if (e == 0 && f) scheduling_to_attr(f, attr);
    return e;
  }
  if (int e = pthread_attr_init(attr)) return e;
  scheduling_to_attr(f, attr);
  // As in NPTL, the guard is outside, and TCB and TLS are inside. So a collector that scans the stack sees them.
  char* high = f->memory.user_stack ? f->memory.stack_high : f->memory.block + f->memory.block_size;
  pthread_attr_setstack(attr, f->memory.stack_low, static_cast<size_t>(high - f->memory.stack_low));
  size_t guard = f->memory.guard_asked && f->memory.guard_size ? f->memory.guard_asked : f->memory.guard_size;
  pthread_attr_setguardsize(attr, f->memory.user_stack ? 0 : guard);
  pthread_attr_setdetachstate(attr, f->join.detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  int e = pthread_getaffinity_np(t, sizeof cpus, &cpus) == 0 ? pthread_attr_setaffinity_np(attr, sizeof cpus, &cpus) : 0;
  if (e) pthread_attr_destroy(attr);
  return e;
}

FIBERTHREAD_EXPORT int pthread_setname_np(pthread_t t, const char* name) noexcept {
  FiberRecord* f = fiber_of(t);
  if (!f && stale_handle(t)) return ESRCH;
  if (!f || !sched_started() || f->run.kernel) return REAL(pthread_setname_np)(t, name);
  if (strlen(name) >= sizeof f->identity.name) return ERANGE;
  if (f->join.done.load(std::memory_order_acquire)) return ENOENT;  // libc finds no such file then
  set_name(f, name);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_getname_np(pthread_t t, char* buf, size_t size) noexcept {
  FiberRecord* f = fiber_of(t);
  if (!f && stale_handle(t)) return ESRCH;
  if (!f || !sched_started() || f->run.kernel) return REAL(pthread_getname_np)(t, buf, size);
  if (size < sizeof f->identity.name) return ERANGE;
  if (f->join.done.load(std::memory_order_acquire)) return ENOENT;
  name_of(f, buf);
  return 0;
}
