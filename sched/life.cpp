// How things begin and end: the start of the scheduler, workers, fibers' birth, end and join, foreign threads, fork.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <initializer_list>
#include <new>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/chaos.h"
#include "sched/cord.h"
#include "sched/observe/dumper.h"
#include "sched/embedder.h"
#include "sched/glibc/go.h"
#include "sched/glibc/modules.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/self_check.h"
#include "sched/glibc/tcb.h"
#include "sched/memory/block.h"
#include "sched/poller.h"
#include "sched/preempt.h"
#include "sched/observe/probe.h"
#include "sched/observe/watch.h"
#include "sched/worker.h"

extern "C" void* __libc_stack_end;  // the loader's
extern "C" int __clone(int (*)(void*), void*, int, void*, ...) noexcept;  // libc's clone, by the name that is not taken over
// The sanitizers', in programs that have them. To AddressSanitizer, a recycled stack is as its last user left it.
extern "C" void __tsan_init() __attribute__((weak));
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t) __attribute__((weak));
extern "C" int __asan_option_detect_stack_use_after_return __attribute__((weak));
extern "C" void __lsan_register_root_region(const void*, size_t) __attribute__((weak));
extern "C" void __lsan_unregister_root_region(const void*, size_t) __attribute__((weak));

namespace fiberthread {

Statistics statistics;
Options options;
FiberRecord main_fiber_record;
FiberRecord* main_fiber = &main_fiber_record;
std::atomic<bool> workers_refused{false};
std::atomic<Worker*> worker_list{nullptr};

namespace {

enum class Phase : uint32_t { Off, Starting, On, Impossible };
std::atomic<Phase> phase{Phase::Off};
std::atomic<uint32_t> concurrency{0};
uint32_t cpus = 1;

constexpr size_t kWorkerStack = 64 * 1024;

// ---- workers ----

void publish_worker(Worker* w) {
  w->published = true;
  Worker* head = worker_list.load(std::memory_order_relaxed);
  do w->all_next = head;
  while (!worker_list.compare_exchange_weak(head, w, std::memory_order_release, std::memory_order_relaxed));
  statistics.workers.fetch_add(1, std::memory_order_relaxed);
}

int worker_main(void* p) {
  auto* w = static_cast<Worker*>(p);
  w->tid = static_cast<int>(raw_syscall(SYS_gettid));
  if (!w->published) publish_worker(w);  // before it runs anything: its counts are everybody's
  stack_t ss = {};
  ss.ss_sp = w->signal_stack;
  ss.ss_size = kSignalStack;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
  if (!w->bound) preempt_start_worker(w);  // nobody waits for its fiber to give way
  worker_loop(w);
}

// Those whose threads have ended, or will in a moment.
SpinLock left_lock;
Worker* left_workers = nullptr;

// One that has ended, to be used again: published for ever, with a stack and a TCB.
Worker* reuse_worker() {
  SpinGuard guard(left_lock);
  for (Worker** p = &left_workers; *p; p = &(*p)->left_next) {
    Worker* w = *p;
    if (w->kernel_tid.load(std::memory_order_acquire) != 0) continue;  // the kernel is not done with it yet
    *p = w->left_next;
    w->leaves.store(false, std::memory_order_relaxed);
    w->handed.store(nullptr, std::memory_order_relaxed);
    w->tainted = false;
    w->owes_its_end = false;
    w->bound = nullptr;
    w->cord = nullptr;
    w->slot = nullptr;
    w->searching = false;
    w->cpu_mark.store(0, std::memory_order_relaxed);
    return w;
  }
  return nullptr;
}

Worker* fresh_worker() {
  constexpr size_t kPage = 4096;
  size_t size = kPage + kSignalStack + kPage + kWorkerStack + ((tcb_reserve() + sizeof(Worker) + 2 * kPage) & ~(kPage - 1));
  char* mem = map_stack(size, kPage);
  if (!mem) return nullptr;
  raw_syscall(SYS_mprotect, arg(mem + kPage + kSignalStack), kPage, 0);
  char* top = mem + size - sizeof(Worker);
  top -= reinterpret_cast<uintptr_t>(top) % 64;
  auto* w = new (top) Worker;
  w->stack = mem + 2 * kPage + kSignalStack;
  w->stack_size = static_cast<size_t>(tcb_low(top) - w->stack);
  w->signal_stack = mem + kPage;
  w->context.tp = tcb_make_worker(top, w->stack, w->stack + w->stack_size, w);
  w->random = static_cast<uint32_t>(cycles());
  w->in_sched.store(1, std::memory_order_relaxed);
  return w;
}

Worker* make_worker() {
  Worker* w = reuse_worker();
  return w ? w : fresh_worker();
}

void dismiss(Worker* w) {
  w->leaves.exchange(true, std::memory_order_seq_cst);
  get_up(w);
}

// From a look at both clocks at the beginning of the start, which takes long enough to tell.
void measure_cycles(uint64_t from_cycles, uint64_t from_ns) {
  uint64_t c = cycles(), t = now_ns();
  cycles_per_us = t > from_ns ? (c - from_cycles) * 1000 / (t - from_ns) : 0;
  if (!cycles_per_us) cycles_per_us = 1;
}

// Bounds of the process's own stack, which grows as it is used.
void find_main_stack(FiberRecord* me) {
  if (me->stack_high) return;
  rlimit limit;
  constexpr size_t kMost = size_t{1} << 30;
  size_t size = raw_syscall(SYS_prlimit64, 0, RLIMIT_STACK, 0, arg(&limit)) == 0 && limit.rlim_cur < kMost ? limit.rlim_cur : kMost;
  me->stack_high = static_cast<char*>(__libc_stack_end);
  me->stack_low = me->stack_high - size;
}

// The kernel thread of a native fiber becomes a worker, and the fiber goes on as one of many. Busy, signals blocked.
bool become_worker(FiberRecord* me) {
  if (!tcb_adopt_main()) return false;
  Worker* w = make_worker();
  if (!w) return false;
  w->tid = static_cast<int>(raw_syscall(SYS_gettid));
  w->initial = true;
  raw_syscall(SYS_sigaltstack, 0, arg(&me->alternate));
  stack_t ss = {};
  ss.ss_sp = w->signal_stack;
  ss.ss_size = kSignalStack;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
  if (me == &main_fiber_record) find_main_stack(me);
  // Worker context begins in worker_loop when a fiber first leaves this kernel thread.
  make_context(w->context, w->stack + w->stack_size, w->context.tp, [](void* p) { worker_loop(static_cast<Worker*>(p)); }, w);
  w->kernel_mask = kIdleMask;
  account(w, nullptr);
  me->cpu.store(w->cpu_mark.load(std::memory_order_relaxed), std::memory_order_relaxed);  // so far its clock was the kernel's
  me->context.tp = thread_pointer();
  me->worker = w;
  me->kernel = false;
  me->state.store(State::Running, std::memory_order_release);
  w->running.store(me, std::memory_order_relaxed);
  if (!w->published) publish_worker(w);
  if (watched(kWatchTrace)) watch_begins(w);
  take_free_slot(w);
  w->in_sched.store(0, std::memory_order_release);
  preempt_start_worker(w);
  return true;
}

}  // namespace

std::atomic<uint32_t> helpers{0};

namespace {
// With all signals blocked but libc's two. Not by libc's call for it: this may run while a preempted fiber holds any of libc's locks.
int clone_thread(int (*main)(void*), Worker* w) {
  uint64_t old;
  sched_block_signals(&old);
  OwnCalls calls;
  int saved_errno = errno;
  // Exactly libc's flags: what sandboxes allow (Firefox, Chromium).
  int tid = __clone(main, w->stack + w->stack_size,
                  CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
                      CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID,
                  w, &w->kernel_tid, w->context.tp, &w->kernel_tid);
  errno = saved_errno;
  sched_restore_signals(old);
  return tid;
}

void (*helper_main)();
}  // namespace

int start_helper(void (*main)()) {
  Worker* here = this_worker();
  if (here && (here->tainted || here->cord)) return -1;
  Worker* w = fresh_worker();  // for its stack and TCB; not one that others know as a worker
  if (!w) return -1;
  helper_main = main;
  helpers.fetch_add(1, std::memory_order_relaxed);
  int tid = clone_thread(
      [](void*) {
        helper_main();
        return 0;
      },
      w);
  if (tid < 0) {
    helpers.fetch_sub(1, std::memory_order_relaxed);
    SpinGuard guard(left_lock);
    w->left_next = left_workers;
    left_workers = w;
  }
  return tid;
}

Worker* all_workers() { return worker_list.load(std::memory_order_acquire); }

Worker* start_worker(Slot* s, FiberRecord* bound) {
  // What clone() gives to the new thread must be the process's, not one thread's.
  Worker* here = this_worker();
  if (!bound && here && (here->tainted || here->cord)) return nullptr;
  Worker* w = make_worker();
  if (!w) return nullptr;
  if (bound) {
    w->bound = bound;
    w->tainted = true;
  } else {
    hold_slot(w, s);
    w->searching = true;
  }
  w->kernel_mask = kIdleMask;
  int tid = clone_thread(worker_main, w);
  if (workers_refused.load(std::memory_order_relaxed) != (tid < 0)) workers_refused.store(tid < 0, std::memory_order_relaxed);
  if (tid < 0) {
    SpinGuard guard(left_lock);
    w->left_next = left_workers;
    left_workers = w;
    return nullptr;
  }
  w->tid = tid;
  return w;
}

void leave_worker(Worker* w) {
  // Of the process's first thread, the kernel and others expect that it lasts.
  if (w->initial && !w->owes_its_end) __atomic_store_n(&w->idle, true, __ATOMIC_RELEASE);
  while (w->initial && !w->owes_its_end) futex_wait(&w->wake, w->wake.load(std::memory_order_relaxed));
  uint64_t all = ~kTrapSignal;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), 0, 8);
  preempt_end_worker(w);
  if (!w->initial) {
    SpinGuard guard(left_lock);
    w->left_next = left_workers;
    left_workers = w;
  }
  raw_syscall(SYS_exit, 0);
  __builtin_unreachable();
}

namespace {
// A clone has what its maker's kernel thread has; sysmon has what the process had.
void give_properties_of_process(Worker* w) {
  alignas(8) char attr[56];
  cpu_set_t cpus;
  int from = sysmon_tid();
  if (raw_syscall(SYS_sched_getattr, from, arg(attr), sizeof attr, 0) == 0) raw_syscall(SYS_sched_setattr, w->tid, arg(attr), 0);
  long n = raw_syscall(SYS_sched_getaffinity, from, sizeof cpus, arg(&cpus));
  if (n > 0) raw_syscall(SYS_sched_setaffinity, w->tid, n, arg(&cpus));
}
}  // namespace

int sched_bind(FiberRecord* f) {
  FiberRecord* me = self();
  if (f->kernel) return 0;
  {
    Busy busy;
    Worker* w = nullptr;
    if (!f->bound.load(std::memory_order_acquire) && !(w = start_worker(nullptr, f))) return EAGAIN;
    // A new fiber is to have its maker's, another is so far as all are.
    if (w && !me->kernel && me->worker->tainted && f->state.load(std::memory_order_relaxed) != State::Created)
      give_properties_of_process(w);
    f->join_lock.lock();
    bool ended = f->done.load(std::memory_order_relaxed);
    Worker* own = nullptr;
    bool taken = !ended && w && f->bound.compare_exchange_strong(own, w, std::memory_order_acq_rel);
    // It had one before, or has got one by habit just now. Under the lock, so that its end sees it.
    if (!ended && !taken) f->bound.load(std::memory_order_relaxed)->tainted = true;
    if (w && !taken) dismiss(w);
    f->join_lock.unlock();
    if (ended) return ESRCH;
  }
  if (f == me) yield();  // there
  return 0;
}

// ---- life ----

void sched_init() {
  main_fiber->kernel = true;
  main_fiber->is_main = true;
  main_fiber->state.store(State::Running, std::memory_order_relaxed);
  main_fiber->tcb = reinterpret_cast<void*>(pthread_self());  // libc's: so it has its TCB
  main_fiber->id = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  main_fiber->valid.store(true, std::memory_order_relaxed);
  tls_current = main_fiber;
}

uint32_t base_slots() {
  if (options.workers) return options.workers;
  uint32_t asked = concurrency.load(std::memory_order_relaxed);
  return asked ? asked : cpus;
}

void sched_set_concurrency(uint32_t n) {
  concurrency.store(n, std::memory_order_relaxed);
  if (!sched_started()) return;
  Busy busy;
  want_slots(base_slots());
  if (work_queued()) wake_if_needed();
}

uint64_t fibers_spawned() {
  uint64_t n = statistics.spawned.load(std::memory_order_relaxed);
  for (Worker* w = all_workers(); w; w = w->all_next) n += w->spawned.load(std::memory_order_relaxed);
  return n;
}

uint64_t fibers_recycled() {
  uint64_t made = statistics.fresh.load(std::memory_order_relaxed), spawned = fibers_spawned();
  return spawned > made ? spawned - made : 0;
}

// Counters of their own, since one for all would be fought over at each birth and each end.
namespace {
std::atomic<bool> all_have_barriers{false};

void barrier_init() {
  bool refused = raw_syscall(SYS_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0) != 0;
  no_membarrier.store(refused, std::memory_order_relaxed);
  all_have_barriers.store(refused, std::memory_order_relaxed);
}
}  // namespace

void barrier_everywhere() {
  if (all_have_barriers.load(std::memory_order_acquire) || raw_syscall(SYS_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0) == 0) return;
  // The program has a filter since. From now on all pay for their own; and what was stored by those who did not know it yet has come out
  // of their processors when some time has passed.
  no_membarrier.store(true, std::memory_order_seq_cst);
  constexpr timespec kWhile{0, 1'000'000};
  raw_syscall(SYS_nanosleep, arg(&kWhile), 0);
  all_have_barriers.store(true, std::memory_order_release);
}

namespace {
std::atomic<bool> main_ended{false}, last_ended{false};

// Release: who sees the end of a fiber sees that it was made, and what it made.
void count(std::atomic<uint64_t>& own) { own.store(own.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
}  // namespace

uint64_t live_fibers() {
  // Ends first: each of them was counted as made before, so what comes out is never less than there were in between.
  uint64_t ended = statistics.ended.load(std::memory_order_acquire);
  for (Worker* w = all_workers(); w; w = w->all_next) ended += w->ended.load(std::memory_order_acquire);
  return 1 + fibers_spawned() - ended;
}

bool sched_count_end() {
  Busy busy;
  FiberRecord* me = self();
  if (me->kernel) statistics.ended.fetch_add(1, std::memory_order_release);
  else count(me->worker->ended);
  // As long as main lives, nobody is the last. Whoever ends pays for no fence to know it: main's membarrier makes it see the flag,
  // or main the end that was counted.
  if (me->is_main) {
    main_ended.store(true, std::memory_order_seq_cst);
    barrier_everywhere();
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!main_ended.load(std::memory_order_relaxed)) return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // of two that end at once, one sees both
  return live_fibers() == 0 && !last_ended.exchange(true, std::memory_order_relaxed);
}

bool sched_started() { return phase.load(std::memory_order_acquire) == Phase::On; }

namespace {
std::atomic<bool> asked{false};
}
bool sched_asked() { return asked.load(std::memory_order_relaxed); }

bool sched_start() {
  Phase p = phase.load(std::memory_order_acquire);
  if (p != Phase::On) asked.store(true, std::memory_order_relaxed);
  if (p == Phase::Impossible) return false;  // before self(), which may need memory
  FiberRecord* me = self();
  if (__builtin_expect(p == Phase::On && !(me->is_main && me->kernel), 1)) return true;
  Busy busy;
  if (p == Phase::Off && phase.compare_exchange_strong(p, Phase::Starting, std::memory_order_acq_rel)) {
    OwnCalls calls;
    const char* why = nullptr;
    uint64_t from_cycles = cycles(), from_ns = now_ns(), old;
    sched_block_signals(&old);
    bool ok = false;
    // The kernel wants to know who uses the cheap form of membarrier (sysmon.cpp). Before the second thread exists, as
    // later it waits 16 ms for every CPU.
    barrier_init();
    if (options.force_nptl) why = "asked for by FIBERTHREAD_NPTL";
    else if (__tsan_init) why = "ThreadSanitizer keeps threads' state where fibers cannot have their own";
    else if (tcb_go_is_loaded()) why = "Go's runtime makes system calls by itself";
    else if (running_on_valgrind()) why = "valgrind does not let a signal handler say where its thread goes on";
    else if (has_shadow_stack()) why = "they have shadow stacks, and a fiber could have none of its own";
    else if (!may_switch()) why = "a filter of system calls refuses arch_prctl(), which a switch is on this processor";
    else if (options.refused) why = options.refused;
    else if (options.fail_self_check) why = "the self-check was told to fail";
    else {
      sysmon_prepare();
      ok = tcb_init(sysmon_main, &why);
    }
    if (ok) {
      measure_cycles(from_cycles, from_ns);
      dumper_find();
      tcb_look_at_modules();
      stack_look_at_objects();
      preempt_init();
      cpus = cpu_count();
      if (!want_slots(base_slots())) {
        ok = false;
        why = "there is no memory for the queues";
      }
    }
    sched_restore_signals(old);
    if (!ok && options.verbose) {
      char line[160];
      size_t n = 0;
      for (const char* s : {"fiberthread: threads are NPTL's: ", why, "\n"})
        for (; *s && n < sizeof line; s++) line[n++] = *s;
      raw_syscall(SYS_write, 2, arg(line), static_cast<long>(n));
    }
    if (ok) trace_start();
    phase.store(ok ? Phase::On : Phase::Impossible, std::memory_order_release);
    futex_wake(&phase, 1 << 30);
  }
  while (phase.load(std::memory_order_acquire) == Phase::Starting)
    futex_wait(&phase, static_cast<uint32_t>(Phase::Starting));
  if (!sched_started()) return false;
  if (me->is_main && me->kernel) {
    uint64_t old;
    sched_block_signals(&old);
    me->sigmask = old;
    bool ok = become_worker(me);
    if (ok) sched_apply_mask();
    else sched_restore_signals(old);
    return ok;
  }
  return true;
}

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
  f->join_lock.lock();
  f->state.store(State::Done, std::memory_order_release);
  f->done.store(1, std::memory_order_release);
  FIBERTHREAD_PROBE1("done", f);
  FiberRecord* joiner = f->joiner;
  bool detached = f->detached;
  if (detached) f->valid.store(false, std::memory_order_release);
  own = f->bound.load(std::memory_order_relaxed);  // another may just have bound it
  f->bound.store(nullptr, std::memory_order_relaxed);
  f->join_lock.unlock();
  if (__builtin_expect(own && !in_cord, 0)) {
    bool leaves = own->tainted || own->cord;
    own->cord = nullptr;
    if (leaves) dismiss(own);
    else own->bound = nullptr;  // by habit only: this very worker, which now is as any other
  }
  chaos_delay();
  if (joiner) {
    // Else it is what comes next here, and will see that f has ended.
    if (w->running.load(std::memory_order_relaxed) != joiner) unpark(joiner);
  } else if (detached && f->block) {
    block_put(f);
  }
}

// Who waits for the end of `me`, if it can be run next: that saves the way through worker context. It is woken before there is a reason
// for it, which is allowed, and post_exit() gives the reason before it runs. Should it have given up meanwhile, or run elsewhere, it is
// a wake-up for nothing.
FiberRecord* joiner_to_run(FiberRecord* me) {
  FiberRecord* joiner = __atomic_load_n(&me->joiner, __ATOMIC_ACQUIRE);
  if (!joiner || joiner->kernel || me->called_by.load(std::memory_order_relaxed) || chaos(2)) return nullptr;
  State parked = State::Parked;
  return joiner->state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel) ? joiner : nullptr;
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
  suspend(tls_current, post_exit, joiner_to_run(tls_current));
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

void wait_over_slow(FiberRecord* me) {
  if (in_wait(me)) return;
  if (tls_busy == 0) leave_busy_slow();
  else if (embedder().end_requested(me)) me->interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);  // when Busy ends
}

int sched_call(FiberRecord* f, uint32_t mask) {
  FiberRecord* me = self();
  CallWait wait{me};
  f->called_by.store(&wait, std::memory_order_relaxed);  // published with f
  me->queued++;
  me->calling = true;
  ParkReason reason{"call", f, f};
  if (f->kernel) {
    f->fresh.store(0, std::memory_order_release);
    futex_wake(&f->fresh, 1);
  } else if (me->kernel) {
    sched_spawn(f);
  } else {
    Busy busy;
    count(me->worker->spawned);
    FIBERTHREAD_PROBE2("spawn", f, f->start);
    if (watched(kWatchStats | kWatchTrace)) watch_spawned(f);
    f->state.store(State::Queued, std::memory_order_release);
    me->reason = reason;
    park_for(me, f);
  }
  bool interrupted = false;
  while (!interrupted && !wait.over.load(std::memory_order_acquire)) {
    if (me->interrupts.load(std::memory_order_relaxed) & mask) {
      CallWait* mine = &wait;
      interrupted = f->called_by.compare_exchange_strong(mine, nullptr, std::memory_order_acq_rel);
      mask = 0;  // if not, it is just being ended
    } else {
      park_if(&wait.over, 0, reason);
    }
  }
  me->calling = false;
  wait_over(me);
  return interrupted ? ECANCELED : 0;
}

void sched_exit() {
  fiberthread_end();
  __builtin_unreachable();
}

bool sched_join(FiberRecord* f, void** result, uint64_t deadline, uint32_t interrupt_mask) {
  FiberRecord* me = self();
  // The latch stays as it is: the caller is registered, and an interrupt may have come since it looked for one.
  while (!f->done.load(std::memory_order_acquire)) {
    bool in_time = park_if(&f->done, 0, {kJoin, f, f}, deadline);
    if (f->done.load(std::memory_order_acquire)) break;
    if (in_time && !(me->interrupts.load(std::memory_order_relaxed) & interrupt_mask)) {
      if (me->interrupts.load(std::memory_order_relaxed) & kInterruptSafePoint) leave_busy_slow();
      continue;
    }
    Busy busy;
    chaos_delay();
    SpinGuard guard(f->join_lock);
    if (f->done.load(std::memory_order_relaxed)) break;
    f->joiner = nullptr;
    if (watched(kWatchJoin)) debug_line("join", me, "waits no longer for the end of ", uint64_t{f->id});
    return false;
  }
  Busy busy;
  f->join_lock.wait_until_free();  // then the ending side is out of it
  // Soon: no code of the program runs there any more. The kernel's own wake-up is one for a shared futex.
  if (Worker* w = f->leaves_with)
    while (w->kernel_tid.load(std::memory_order_acquire) == f->leaves_tid)
      raw_syscall(SYS_futex, arg(&w->kernel_tid), 0 /* FUTEX_WAIT */, f->leaves_tid, 0);
  if (result) *result = f->result;
  f->valid.store(false, std::memory_order_release);
  if (f->block) block_put(f);
  return true;
}

// ---- ending waits ----

namespace {
// join_lock is held. True: unpark it, once that is released.
bool follow_end_reasons(FiberRecord* f) {
  bool set = f->end_reasons && !f->end_held;
  if (set) f->interrupts.fetch_or(kInterruptEnd, std::memory_order_seq_cst);
  else f->interrupts.fetch_and(~uint32_t{kInterruptEnd}, std::memory_order_relaxed);
  return set;
}
}  // namespace

void add_end_reason(FiberRecord* f) {
  Busy busy;
  {
    SpinGuard guard(f->join_lock);
    f->end_reasons++;
    if (!follow_end_reasons(f)) return;
  }
  chaos_delay();
  unpark(f);
}

bool end_waits_of(FiberRecord* f, bool (*lives)(FiberRecord*, const void*), const void* data) {
  Busy busy;
  {
    SpinGuard guard(f->join_lock);
    if (!lives(f, data)) return false;
    if (f->end_asked) return true;
    f->end_asked = true;
    f->end_reasons++;
    if (!follow_end_reasons(f)) return true;
  }
  chaos_delay();
  unpark(f);
  return true;
}

void drop_end_reason(FiberRecord* me) {
  Busy busy;
  SpinGuard guard(me->join_lock);
  me->end_reasons--;
  follow_end_reasons(me);
}

bool hold_end(FiberRecord* me, bool hold) {
  Busy busy;
  SpinGuard guard(me->join_lock);
  bool was = me->end_held;
  me->end_held = hold;
  follow_end_reasons(me);
  return was;
}

// ---- foreign threads ----

namespace {
FiberRecord* foreign_free = nullptr;
std::atomic<FiberRecord*> foreign_all{nullptr};  // the next one is its `entry`
SpinLock foreign_lock;

uint32_t foreign_serial = 0;

void forget_foreign(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  tls_busy = 1;
  embedder().thread_ends(f);
  if (f->called_by.load(std::memory_order_relaxed)) release_caller(f);
  tls_current = nullptr;
  // As in post_exit().
  f->join_lock.lock();
  f->done.store(1, std::memory_order_release);
  FiberRecord* joiner = f->joiner;
  bool detached = f->detached;
  if (detached) f->valid.store(false, std::memory_order_release);
  f->join_lock.unlock();
  if (joiner) unpark(joiner);
  if (!detached) return;
  embedder().thread_unjoined(f);
  kernel_record_put(f);
}
}  // namespace

void kernel_record_each(bool (*visit)(FiberRecord*, void*), void* data) {
  for (FiberRecord* f = foreign_all.load(std::memory_order_acquire); f; f = static_cast<FiberRecord*>(f->entry))
    if (f->valid.load(std::memory_order_acquire) && !visit(f, data)) return;
}

void kernel_record_put(FiberRecord* f) {
  f->valid.store(false, std::memory_order_release);
  SpinGuard guard(foreign_lock);
  f->queue_next = foreign_free;
  foreign_free = f;
}

extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);

FiberRecord* kernel_record_get() {
  FiberRecord* f;
  {
    SpinGuard guard(foreign_lock);
    f = foreign_free;
    if (f) foreign_free = f->queue_next;
  }
  if (!f) {
    constexpr size_t kSlab = 16;
    auto* slab = static_cast<FiberRecord*>(
        mmap(nullptr, sizeof(FiberRecord) * kSlab, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (slab == MAP_FAILED) {
      static const char kNoMemory[] = "fiberthread: no memory for a thread's record\n";
      raw_syscall(SYS_write, 2, arg(kNoMemory), sizeof kNoMemory - 1);
      _exit(127);
    }
    for (size_t i = 0; i < kSlab; i++) new (&slab[i]) FiberRecord;
    SpinGuard guard(foreign_lock);
    for (size_t i = 0; i < kSlab; i++) {
      slab[i].entry = foreign_all.load(std::memory_order_relaxed);
      foreign_all.store(&slab[i], std::memory_order_release);
    }
    for (size_t i = 1; i < kSlab; i++) {
      slab[i].queue_next = foreign_free;
      foreign_free = &slab[i];
    }
    f = slab;
  }
  f->kernel = true;
  f->id = 0;
  f->name[0] = f->name[1] = 0;
  f->start = nullptr;
  f->tcb = nullptr;
  f->detached = true;
  f->serial = __atomic_add_fetch(&foreign_serial, 1, __ATOMIC_RELAXED);
  f->done.store(0, std::memory_order_release);
  __atomic_store_n(&f->joiner, nullptr, __ATOMIC_RELEASE);
  f->pending_unpark.store(0, std::memory_order_relaxed);
  f->interrupts.store(0, std::memory_order_relaxed);
  f->queued = f->queued_below = 0;
  f->fresh.store(0, std::memory_order_relaxed);
  f->end_asked = f->end_held = false;
  f->end_reasons = 0;
  memset(f->room, 0, sizeof f->room);
  f->state.store(State::Running, std::memory_order_release);
  return f;
}

void kernel_record_enter(FiberRecord* f) {
  tls_busy = tls_busy + 1;
  f->tcb = reinterpret_cast<void*>(pthread_self());
  f->id = static_cast<uint32_t>(raw_syscall(SYS_gettid));
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&f->sigmask), 8);
  f->valid.store(true, std::memory_order_release);
  tls_current = f;
  embedder().thread_adopted(f);
  __cxa_thread_atexit_impl(forget_foreign, f, &main_fiber);  // any address in this library
  tls_busy = tls_busy - 1;
}

FiberRecord* adopt_kernel_thread() {
  tls_busy = tls_busy + 1;
  FiberRecord* f = kernel_record_get();
  kernel_record_enter(f);
  tls_busy = tls_busy - 1;
  return f;
}

// ---- fork ----

void sched_after_fork_child() {
  FiberRecord* me = tls_current;
  foreign_lock.reset();
  if (main_fiber != me && !main_fiber->block) main_fiber->valid.store(false);
  foreign_free = nullptr;  // may be half changed
  for (FiberRecord* f = foreign_all.load(); f; f = static_cast<FiberRecord*>(f->entry)) {
    if (f == me) continue;
    f->valid.store(false);
    f->fresh.store(0);
    f->join_lock.reset();
    f->queue_next = foreign_free;
    foreign_free = f;
  }
  slots_reset();
  for (Worker* w = all_workers(); w; w = w->all_next)
    // That of one whose scheduler has ended may be freed already.
    if (FiberRecord* f = w->bound; w->cord && f && f->state.load() != State::Done) w->cord->lock.reset();
  asked.store(false);
  worker_list.store(nullptr);
  left_lock.reset();
  left_workers = nullptr;
  statistics.workers.store(0);
  statistics.spawned.store(0);
  statistics.ended.store(0);
  statistics.handovers.store(0);
  statistics.peak.store(0);
  statistics.fresh.store(0);
  statistics.polls.store(0);
  trace_after_fork_child();
  main_ended.store(false);
  last_ended.store(false);
  workers_refused.store(false);
  sysmon_reset();
  poll_reset();
  tcb_reset_after_fork();
  if (phase.load() != Phase::Impossible) phase.store(Phase::Off);
  // The forking fiber is the new process's main, on the one kernel thread that there is.
  main_fiber->is_main = false;
  me->is_main = true;
  me->kernel = true;
  me->worker = nullptr;
  me->bound.store(nullptr);
  me->called_by.store(nullptr);  // its caller is the parent's
  me->calling = false;
  me->state.store(State::Running);
  me->pending_unpark.store(0);
  me->cpu_seen.store(0);
  me->join_lock.reset();
  me->joiner = nullptr;  // whoever waits for us does so in the parent
  main_fiber = me;
  helpers.store(0);
}

}  // namespace fiberthread
