// SPDX-License-Identifier: MIT
// The kernel threads of workers: how they are made, bound to one fiber, used again and ended.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <new>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/life/parts.h"
#include "sched/observe/observe.h"
#include "sched/preempt.h"
#include "sched/memory/block.h"
#include "sched/worker.h"

extern "C" void* __libc_stack_end;                                        // the loader's
extern "C" int __clone(int (*)(void*), void*, int, void*, ...) noexcept;  // libc's clone, by the name that is not taken over

namespace fiberthread {

std::atomic<bool> workers_refused{false};
std::atomic<Worker*> worker_list{nullptr};
std::atomic<uint32_t> helpers{0};

namespace {

// Number of workers in the pool (worker.h). Once a fiber has run, it is never 0. Relaxed: only the count itself matters.
std::atomic<uint32_t> pool{0};

constexpr size_t kWorkerStack = 64 * 1024;

void publish_worker(Worker* w) {
  w->thread.published = true;
  Worker* head = worker_list.load(std::memory_order_relaxed);
  do w->thread.all_next = head;
  while (!worker_list.compare_exchange_weak(head, w, std::memory_order_release, std::memory_order_relaxed));
  statistics.workers.fetch_add(1, std::memory_order_relaxed);
}

int worker_main(void* p) {
  auto* w = static_cast<Worker*>(p);
  w->thread.tid = static_cast<int>(raw_syscall(SYS_gettid));
  if (!w->thread.published) publish_worker(w);  // before it runs a fiber, because others add up its counts
  stack_t ss = {};
  ss.ss_sp = w->thread.signal_stack;
  ss.ss_size = kSignalStack;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
  if (!w->bond.fiber) preempt_start_worker(w);  // on a bound worker, no other fiber waits for its own to give way
  worker_loop(w);
}

// Workers whose kernel threads have ended, or will in a moment.
SpinLock left_lock;
Worker* left_workers = nullptr;

// Returns a worker whose kernel thread has ended, to be used again; null: none. It has a stack and a TCB, and stays in the list of all
// workers if it was published.
Worker* reuse_worker() {
  SpinGuard guard(left_lock);
  for (Worker** p = &left_workers; *p; p = &(*p)->thread.left_next) {
    Worker* w = *p;
    if (w->thread.kernel_tid.load(std::memory_order_acquire) != 0) continue;  // the kernel is not done with it yet
    *p = w->thread.left_next;
    w->reset();
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
  w->thread.stack = mem + 2 * kPage + kSignalStack;
  w->thread.stack_size = static_cast<size_t>(tcb_low(top) - w->thread.stack);
  w->thread.signal_stack = mem + kPage;
  w->context.tp = tcb_make_worker(top, w->thread.stack, w->thread.stack + w->thread.stack_size, w);
  w->look.random = static_cast<uint32_t>(cycles());
  w->run.in_sched.store(1, std::memory_order_relaxed);
  return w;
}

void set_refused(bool refused) {
  if (workers_refused.load(std::memory_order_relaxed) != refused) workers_refused.store(refused, std::memory_order_relaxed);
}

Worker* make_worker() {
  Worker* w = reuse_worker();
  return w ? w : fresh_worker();
}

// Bounds of the process's own stack, which grows as it is used.
void find_main_stack(FiberRecord* me) {
  if (me->memory.stack_high) return;
  rlimit limit;
  constexpr size_t kMost = size_t{1} << 30;
  size_t size = raw_syscall(SYS_prlimit64, 0, RLIMIT_STACK, 0, arg(&limit)) == 0 && limit.rlim_cur < kMost ? limit.rlim_cur : kMost;
  me->memory.stack_high = static_cast<char*>(__libc_stack_end);
  me->memory.stack_low = me->memory.stack_high - size;
}

// Starts a kernel thread with kIdleMask blocked. Returns its tid, or a negative value. Does not call pthread_create(), because this may run
// while a preempted fiber holds any of libc's locks.
int clone_thread(int (*main)(void*), Worker* w) {
  uint64_t old;
  sched_block_signals(&old);
  OwnCalls calls;
  int saved_errno = errno;
  // Exactly libc's flags, because sandboxes allow these (Firefox, Chromium).
  int tid = __clone(main, w->thread.stack + w->thread.stack_size,
                    CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                        CLONE_CHILD_CLEARTID,
                    w, &w->thread.kernel_tid, w->context.tp, &w->thread.kernel_tid);
  errno = saved_errno;
  sched_restore_signals(old);
  return tid;
}

void (*helper_main)();

// Gives w the process's scheduling properties. A clone inherits those of its maker's kernel thread, but sysmon has those of the process.
void give_properties_of_process(Worker* w) {
  alignas(8) char attr[56];
  cpu_set_t cpus;
  int from = sysmon_tid();
  if (raw_syscall(SYS_sched_getattr, from, arg(attr), sizeof attr, 0) == 0) raw_syscall(SYS_sched_setattr, w->thread.tid, arg(attr), 0);
  long n = raw_syscall(SYS_sched_getaffinity, from, sizeof cpus, arg(&cpus));
  if (n > 0) raw_syscall(SYS_sched_setaffinity, w->thread.tid, n, arg(&cpus));
}

}  // namespace

void dismiss(Worker* w) {
  w->thread.leaves.exchange(true, std::memory_order_seq_cst);
  get_up(w);
}

// See life/parts.h.
bool become_worker(FiberRecord* me) {
  if (!tcb_adopt_main()) return false;
  Worker* w = make_worker();
  if (!w) return false;
  w->thread.tid = static_cast<int>(raw_syscall(SYS_gettid));
  w->thread.initial = true;
  main_mask_of(w);
  raw_syscall(SYS_sigaltstack, 0, arg(&me->memory.alternate));
  stack_t ss = {};
  ss.ss_sp = w->thread.signal_stack;
  ss.ss_size = kSignalStack;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
  if (me == &main_fiber_record) find_main_stack(me);
  // Worker context begins in worker_loop when a fiber first leaves this kernel thread.
  make_context(w->context, w->thread.stack + w->thread.stack_size, w->context.tp, [](void* p) { worker_loop(static_cast<Worker*>(p)); }, w);
  w->run.kernel_mask = kIdleMask;
  account(w, nullptr);
  me->cpu.given.store(w->cpu.mark.load(std::memory_order_relaxed), std::memory_order_relaxed);  // until now the kernel kept its CPU time
  me->context.tp = thread_pointer();
  me->run.worker = w;
  me->run.kernel = false;
  me->run.state.store(State::Running, std::memory_order_release);
  w->run.running.store(me, std::memory_order_relaxed);
  if (!w->thread.published) publish_worker(w);
  if (observed(kObserveTrace)) observe_begins(w);
  join_pool();
  take_free_slot(w);
  w->run.in_sched.store(0, std::memory_order_release);
  preempt_start_worker(w);
  return true;
}

int start_helper(void (*main)()) {
  Worker* here = this_worker();
  if (here && (here->thread.tainted || here->run.cord)) return -1;
  Worker* w = fresh_worker();  // for its stack and TCB only, and so not one that is in the list of workers
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
    w->thread.left_next = left_workers;
    left_workers = w;
  }
  return tid;
}

Worker* all_workers() { return worker_list.load(std::memory_order_acquire); }

Worker* start_worker(Slot* s, FiberRecord* bound) {
  // The new thread inherits properties of this one by clone(). They must be the process's, and not those of one thread.
  Worker* here = this_worker();
  if (!bound && here && (here->thread.tainted || here->run.cord)) return nullptr;
  Worker* w = make_worker();
  if (!w) {
    set_refused(true);
    return nullptr;
  }
  if (bound) {
    w->bond.fiber = bound;
    w->thread.tainted = true;
  } else {
    hold_slot(w, s);
    w->look.searching = true;
  }
  w->run.kernel_mask = kIdleMask;
  int tid = clone_thread(worker_main, w);
  set_refused(tid < 0);
  if (tid < 0) {
    SpinGuard guard(left_lock);
    w->thread.left_next = left_workers;
    left_workers = w;
    return nullptr;
  }
  if (!bound) join_pool();
  w->thread.tid = tid;
  return w;
}

void join_pool() { pool.fetch_add(1, std::memory_order_relaxed); }

bool leave_pool() {
  uint32_t n = pool.load(std::memory_order_relaxed);
  while (n > 1)
    if (pool.compare_exchange_weak(n, n - 1, std::memory_order_relaxed)) return true;
  return false;
}

void leave_worker(Worker* w) {
  // The kernel and other processes expect the process's first thread to last, so it sleeps for good.
  if (w->thread.initial && !w->thread.owes_its_end) __atomic_store_n(&w->idle.listed, true, __ATOMIC_RELEASE);
  while (w->thread.initial && !w->thread.owes_its_end) {
    w->idle.wake.exchange(0, std::memory_order_seq_cst);
    sleep_mask(w);
    futex_wait(&w->idle.wake, 0);
    awake_mask(w);
  }
  apply_mask(w, ~uint64_t{0});
  preempt_end_worker(w);
  if (!w->thread.initial) {
    SpinGuard guard(left_lock);
    w->thread.left_next = left_workers;
    left_workers = w;
  }
  raw_syscall(SYS_exit, 0);
  __builtin_unreachable();
}

int sched_bind(FiberRecord* f) {
  FiberRecord* me = self();
  if (f->run.kernel) return 0;
  {
    Busy busy;
    Worker* w = nullptr;
    if (!f->run.bound.load(std::memory_order_acquire) && !(w = start_worker(nullptr, f))) return EAGAIN;
    // A new fiber inherits its maker's properties. A fiber that has run already has those of the process.
    if (w && !me->run.kernel && me->run.worker->thread.tainted && f->run.state.load(std::memory_order_relaxed) != State::Created)
      give_properties_of_process(w);
    f->join.lock.lock();
    bool ended = f->join.done.load(std::memory_order_relaxed);
    Worker* own = nullptr;
    bool taken = !ended && w && f->run.bound.compare_exchange_strong(own, w, std::memory_order_acq_rel);
    // f had a worker of its own before, or has got one by habit just now. Under the lock, so that its end sees the mark.
    if (!ended && !taken) f->run.bound.load(std::memory_order_relaxed)->thread.tainted = true;
    if (w && !taken) dismiss(w);
    f->join.lock.unlock();
    if (ended) return ESRCH;
  }
  if (f == me) yield();  // moves it there
  return 0;
}

FIBERTHREAD_IN_FORK_CHILD(Workers, [](FiberRecord*) {
  worker_list.store(nullptr);
  left_lock.reset();
  left_workers = nullptr;
  statistics.workers.store(0);
  workers_refused.store(false);
  pool.store(0);
  helpers.store(0);
})

}  // namespace fiberthread
