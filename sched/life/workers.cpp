// SPDX-License-Identifier: MIT
// Workers' kernel threads: made, bound to one fiber, used again, ended.
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
#include "sched/observe/watch.h"
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

constexpr size_t kWorkerStack = 64 * 1024;

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

// Bounds of the process's own stack, which grows as it is used.
void find_main_stack(FiberRecord* me) {
  if (me->stack_high) return;
  rlimit limit;
  constexpr size_t kMost = size_t{1} << 30;
  size_t size = raw_syscall(SYS_prlimit64, 0, RLIMIT_STACK, 0, arg(&limit)) == 0 && limit.rlim_cur < kMost ? limit.rlim_cur : kMost;
  me->stack_high = static_cast<char*>(__libc_stack_end);
  me->stack_low = me->stack_high - size;
}

// With all signals blocked but libc's two. Not by libc's call for it: this may run while a preempted fiber holds any of libc's locks.
int clone_thread(int (*main)(void*), Worker* w) {
  uint64_t old;
  sched_block_signals(&old);
  OwnCalls calls;
  int saved_errno = errno;
  // Exactly libc's flags: what sandboxes allow (Firefox, Chromium).
  int tid = __clone(main, w->stack + w->stack_size,
                    CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                        CLONE_CHILD_CLEARTID,
                    w, &w->kernel_tid, w->context.tp, &w->kernel_tid);
  errno = saved_errno;
  sched_restore_signals(old);
  return tid;
}

void (*helper_main)();

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

void dismiss(Worker* w) {
  w->leaves.exchange(true, std::memory_order_seq_cst);
  get_up(w);
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

FIBERTHREAD_IN_FORK_CHILD(Workers, [](FiberRecord*) {
  worker_list.store(nullptr);
  left_lock.reset();
  left_workers = nullptr;
  statistics.workers.store(0);
  workers_refused.store(false);
  helpers.store(0);
})

}  // namespace fiberthread
