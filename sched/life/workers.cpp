// SPDX-License-Identifier: MIT
// The kernel threads of workers: how they are made, bound to one fiber, used again and ended.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include <new>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/life/join.h"
#include "sched/life/parts.h"
#include "sched/observe/flight.h"
#include "sched/observe/names.h"
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

std::atomic<Worker*> helper_list{nullptr};

constexpr size_t kWorkerStack = 64 * 1024;

void add_to(std::atomic<Worker*>& list, Worker* w) {
  Worker* head = list.load(std::memory_order_relaxed);
  do w->thread.all_next = head;
  while (!list.compare_exchange_weak(head, w, std::memory_order_release, std::memory_order_relaxed));
}

// Before it runs a fiber, because others add up its counts, and before its kernel thread exists, because sysmon's look for a deadlock knows
// the process's threads by this list.
void publish_worker(Worker* w) {
  if (w->thread.published) return;
  w->thread.published = true;
  add_to(worker_list, w);
}

int worker_main(void* p) {
  auto* w = static_cast<Worker*>(p);
  w->thread.tid = static_cast<int>(raw_syscall(SYS_gettid));
  stack_t ss = {};
  ss.ss_sp = w->thread.signal_stack;
  ss.ss_size = kSignalStack;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
  move_back(w);
  if (!w->bond.fiber) preempt_start_worker(w);  // on a bound worker, no other fiber waits for its own to give way
  worker_loop(w);
}

constexpr size_t kRecords = 64 * 1024;  // bytes of workers' records that are mapped at once

// Workers whose kernel threads have ended, or will in a moment: those that have their stacks still, the last one first, and the others.
SpinLock left_lock;
Worker* left_workers = nullptr;
Worker* bare_workers = nullptr;
// Number of the former, the lowest since free_left_stacks() last looked, and whether one was added since. It looks again at left_due.
uint32_t left_count = 0, left_least = 0;
bool left_news = false;
std::atomic<uint64_t> left_due{kNever};
constexpr uint32_t kKeptStacks = 4;
constexpr uint64_t kLeftLook = 500'000'000;  // ns
// The part of the last pages of records that no worker has had.
char *records = nullptr, *records_end = nullptr;

void add_left(Worker* w) {
  SpinGuard guard(left_lock);
  w->thread.left_next = left_workers;
  left_workers = w;
  left_count++;
  left_news = true;
  if (left_due.load(std::memory_order_relaxed) == kNever) left_due.store(now_ns() + kLeftLook, std::memory_order_relaxed);
}

// Takes out the first worker from `*from` on whose kernel thread has ended; null: none. Under left_lock.
Worker* take_left(Worker** from) {
  for (Worker** p = from; *p; p = &(*p)->thread.left_next) {
    Worker* w = *p;
    if (w->thread.kernel_tid.load(std::memory_order_acquire) != 0) continue;  // the kernel is not done with it yet
    *p = w->thread.left_next;
    if (--left_count < left_least) left_least = left_count;
    return w;
  }
  return nullptr;
}

// Returns a record that no worker has had; null without memory.
Worker* new_record() {
  char* more = nullptr;
  for (;;) {
    char* at = nullptr;
    {
      SpinGuard guard(left_lock);
      if (records == records_end && more) {
        records = more;
        records_end = records + kRecords / sizeof(Worker) * sizeof(Worker);
        more = nullptr;
      }
      if (records != records_end) {
        at = records;
        records += sizeof(Worker);
      }
    }
    if (at) {
      if (more) unmap_memory(more, kRecords);  // another thread was faster
      return new (at) Worker;
    }
    // Not under the lock, because the kernel may take long.
    more = map_memory(kRecords, PROT_READ | PROT_WRITE);
    if (!more) return nullptr;
  }
}

// Puts a worker without stacks into its list.
void add_bare(Worker* w) {
  SpinGuard guard(left_lock);
  w->thread.left_next = bare_workers;
  bare_workers = w;
}

enum class For { Fibers, Helper };

// The flight recorder's ring, a guard, the signal stack, a guard, the stack, the TCB. A helper has the last three.
bool map_stacks(Worker* w, For what) {
  bool helps = what == For::Helper;
  size_t guard = page_size(), ring = helps ? 0 : to_pages(flight_room()), before = helps ? 0 : ring + guard + kSignalStack;
  size_t size = before + guard + kWorkerStack + to_pages(tcb_reserve());
  char* mem = map_stack(size, ring ? 0 : guard);
  if (!mem) return false;
  if (ring) raw_syscall(SYS_mprotect, arg(mem + ring), static_cast<long>(guard), 0);
  if (before) raw_syscall(SYS_mprotect, arg(mem + before), static_cast<long>(guard), 0);
  char* top = mem + size;
  w->thread.mapping = mem;
  w->thread.mapping_size = size;
  w->thread.signal_stack = helps ? nullptr : mem + ring + guard;
  w->thread.stack = mem + before + guard;
  w->thread.stack_size = static_cast<size_t>(tcb_low(top) - w->thread.stack);
  w->flight.ring = ring ? reinterpret_cast<FlightRecord*>(mem) : nullptr;
  w->context.tp = tcb_make_worker(top, w->thread.stack, w->thread.stack + w->thread.stack_size, w);
  w->look.random = static_cast<uint32_t>(cycles());
  w->run.in_sched.store(1, std::memory_order_relaxed);
  return true;
}

// Gives the worker stacks. Returns null, and takes the worker back, if there is no memory.
Worker* with_stacks(Worker* w, For what = For::Fibers) {
  if (!w || map_stacks(w, what)) return w;
  add_bare(w);
  return nullptr;
}

// Returns a worker whose kernel thread has ended, to be used again; null: none. It stays in the list of all workers, if it was there.
Worker* reuse_worker() {
  Worker* w;
  bool bare = false;
  {
    SpinGuard guard(left_lock);
    w = take_left(&left_workers);
    bare = !w && (w = bare_workers);
    if (bare) bare_workers = w->thread.left_next;
  }
  if (w) w->reset();
  return bare ? with_stacks(w) : w;
}

Worker* make_worker() {
  Worker* w = reuse_worker();
  return w ? w : with_stacks(new_record());
}

void set_refused(bool refused) {
  if (workers_refused.load(std::memory_order_relaxed) != refused) workers_refused.store(refused, std::memory_order_relaxed);
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
  NameForClone name;
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

// Gives w the process's scheduling properties. A clone inherits those of its maker's kernel thread, but sysmon has those of the process.
void give_properties_of_process(Worker* w) {
  alignas(8) char attr[56];
  cpu_set_t cpus;
  int from = sysmon_tid();
  if (raw_syscall(SYS_sched_getattr, from, arg(attr), sizeof attr, 0) == 0) raw_syscall(SYS_sched_setattr, w->thread.tid, arg(attr), 0);
  long n = process_cpus(&cpus, sizeof cpus);
  if (n > 0) raw_syscall(SYS_sched_setaffinity, w->thread.tid, n, arg(&cpus));
}

// Returns true if a debugger traces the process. gdb gives up its command if a thread ends at the wrong moment. Without /proc: false.
bool is_traced() {
  char text[2048];
  long n = raw_syscall(SYS_pread64, sysmon_proc_status(), arg(text), sizeof text - 1, 0);
  text[n > 0 ? n : 0] = 0;
  const char* tracer = strstr(text, "TracerPid:\t");
  return tracer && tracer[sizeof "TracerPid:\t" - 1] != '0';
}

// Kernels before 5.18 do not tell whether a thread has used io_uring.
bool tells_of_rings() {
  static const bool tells = [] {
    utsname u;
    if (raw_syscall(SYS_uname, arg(&u)) != 0) return false;
    const char* p = u.release;
    int major = 0, minor = 0;
    for (; *p >= '0' && *p <= '9'; p++) major = major * 10 + *p - '0';
    if (*p == '.')
      for (p++; *p >= '0' && *p <= '9'; p++) minor = minor * 10 + *p - '0';
    return major > 5 || (major == 5 && minor >= 18);
  }();
  return tells;
}

}  // namespace

void dismiss(Worker* w) {
  w->thread.leaves.exchange(true, std::memory_order_seq_cst);
  get_up(w);
}

void part_from_worker(Worker* w) {
  bool leaves = w->thread.tainted || w->run.cord || w->bond.reasons.load(std::memory_order_relaxed) & kForCall;
  w->run.cord = nullptr;
  if (leaves) {
    dismiss(w);
  } else {  // it is like the others of the pool, and is the caller's own
    w->bond.reset();
    join_pool();
  }
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
  publish_worker(w);
  if (observed(kObserveTrace)) observe_begins(w);
  if (observed(kObserveNames)) name_begins(w);
  flight_start(w);
  flight_note(w, me, kFlightNothing);
  join_pool();
  take_free_slot(w);
  w->run.in_sched.store(0, std::memory_order_release);
  preempt_start_worker(w);
  return true;
}

// It has a stack and a TCB, and is not in the list of workers.
Worker* reserve_helper() { return with_stacks(new_record(), For::Helper); }

int start_helper(int (*main)(void*), Worker* reserved) {
  Worker* here = this_worker();
  if (here && (here->thread.tainted || here->run.cord)) return -1;
  sysmon_begin();
  Worker* w = reserved ? reserved : reserve_helper();
  if (!w) return -1;
  helpers.fetch_add(1, std::memory_order_relaxed);
  int tid = clone_thread(main, w);
  if (tid > 0) add_to(helper_list, w);
  if (tid < 0) {
    helpers.fetch_sub(1, std::memory_order_relaxed);
    if (!reserved) {
      unmap_memory(w->thread.mapping, w->thread.mapping_size);
      add_bare(w);
    }
  }
  return tid;
}

Worker* all_workers() { return worker_list.load(std::memory_order_acquire); }
Worker* all_helpers() { return helper_list.load(std::memory_order_acquire); }

Worker* start_worker(Slot* s, FiberRecord* bound, bool moves) {
  // The new thread inherits properties of this one by clone(). They must be the process's, and not those of one thread.
  Worker* here = this_worker();
  if (!bound && here && (here->thread.tainted || here->run.cord)) return nullptr;
  sysmon_begin();
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
  if (observed(kObserveNames)) name_begins(w);
  w->place.since = 0;
  flight_start(w);
  if (moves) will_move(w);
  publish_worker(w);
  int tid = clone_thread(worker_main, w);
  set_refused(tid < 0);
  if (tid < 0) {
    w->place.state.store(0, std::memory_order_relaxed);
    add_left(w);
    return nullptr;
  }
  if (!bound) join_pool();
  w->thread.tid = tid;
  move_elsewhere(w);
  return w;
}

void join_pool() { pool.fetch_add(1, std::memory_order_relaxed); }

bool leave_pool() {
  uint32_t n = pool.load(std::memory_order_relaxed);
  while (n > 1)
    if (pool.compare_exchange_weak(n, n - 1, std::memory_order_relaxed)) return true;
  return false;
}

uint64_t left_stacks_due() { return left_due.load(std::memory_order_relaxed); }

// Frees what no worker has wanted since the last look. So stacks for bound fibers that come and go are not mapped anew each time.
uint64_t free_left_stacks(uint64_t now) {
  if (uint64_t due = left_stacks_due(); now < due) return due;
  Worker *some = nullptr, *next;
  uint64_t due;
  {
    SpinGuard guard(left_lock);
    uint32_t n = left_least > kKeptStacks ? left_least - kKeptStacks : 0;
    Worker** from = &left_workers;
    for (uint32_t i = 0; i < kKeptStacks && *from; i++) from = &(*from)->thread.left_next;
    for (Worker* w; n && (w = take_left(from)); n--) {
      w->thread.left_next = some;
      some = w;
    }
    left_least = left_count;
    // Once more after the last news: sysmon's look for a deadlock may just have seen a kernel thread that was about to vanish.
    due = left_count > kKeptStacks || left_news ? now + kLeftLook : kNever;
    left_news = false;
    left_due.store(due, std::memory_order_relaxed);
  }
  for (Worker* w = some; w; w = next) {
    next = w->thread.left_next;
    w->flight.ring = nullptr;
    raw_syscall(SYS_munmap, arg(w->thread.mapping), static_cast<long>(w->thread.mapping_size));
    w->thread.mapping = w->thread.stack = w->thread.signal_stack = nullptr;
    w->context.tp = nullptr;
    add_bare(w);
  }
  return due;
}

// A fiber may have left things with a kernel thread that it ran on, and on NPTL it would have kept that thread. If the thread ended now,
// the kernel would drop a signal that was sent to it, tell the children which it made that their parent has died (PR_SET_PDEATHSIG), let go
// of what it traces, and cancel its requests in rings of io_uring.
bool may_end(Worker* w) {
  // Perhaps no other thread could be made when one is needed.
  if (filtered.load(std::memory_order_relaxed) || workers_refused.load(std::memory_order_relaxed)) return false;
  if (is_traced()) return false;
  uint64_t pending = ~uint64_t{0};
  raw_syscall(SYS_rt_sigpending, arg(&pending), 8);
  if (pending & ~w->embedder.poked.load(std::memory_order_relaxed)) return false;
  // Asks about children and traced threads of this kernel thread alone, and takes nothing.
  if (raw_syscall(SYS_waitid, P_ALL, 0, 0, WEXITED | WNOHANG | WNOWAIT | __WALL | __WNOTHREAD, 0) != -ECHILD) return false;
  // A filter may kill a process for the next call.
  if (raw_syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) != 0) return false;
  // Enters the first ring that the thread has registered. A thread that has used no ring cannot have one, which is an invalid argument.
  constexpr long kRegistered = 1 << 4;
  long r = raw_syscall(SYS_io_uring_enter, 0, 0, 0, kRegistered, 0, 0);
  return r == -ENOSYS || r == -EPERM || (r == -EINVAL && tells_of_rings());
}

void leave_worker(Worker* w) {
  block_put_kept(w);
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
  if (!w->thread.initial) add_left(w);
  entry_fence();  // pairs with sysmon's membarrier: sysmon sees left_due, or we see that it sleeps
  sysmon_wake();
  raw_syscall(SYS_exit, 0);
  __builtin_unreachable();
}

int sched_bind(FiberRecord* f, Reasons why) {
  FiberRecord* me = self();
  if (f->run.kernel) return 0;
  enum { Bound, Ended, Again } result;
  do {
    Busy busy;
    Worker* w = nullptr;
    if (!f->run.bound.load(std::memory_order_acquire) && !(w = start_worker(nullptr, f))) return EAGAIN;
    // A new fiber inherits its maker's properties. A fiber that has run already has those of the process.
    if (w && !me->run.kernel && me->run.worker->thread.tainted && f->run.state.load(std::memory_order_relaxed) != State::Created)
      give_properties_of_process(w);
    result = join_locked(f, [&] {
      bool done = f->join.done.load(std::memory_order_relaxed);
      Worker* own = nullptr;
      if (!done && w && f->run.bound.compare_exchange_strong(own, w, std::memory_order_acq_rel)) {
        add_reason(w, why);
        return Bound;
      }
      // f had a worker of its own before, or has got one by habit just now.
      if (!done && (own = f->run.bound.load(std::memory_order_relaxed))) add_reason(own, why);
      if (w) dismiss(w);
      return done ? Ended : own ? Bound : Again;  // Again: its bond has ended since we looked
    });
  } while (result == Again);
  if (result == Ended) return ESRCH;
  if (f == me) give_way();  // moves it there
  return 0;
}

FIBERTHREAD_IN_FORK_CHILD(Workers, workers, [](FiberRecord*) {
  worker_list.store(nullptr);
  left_lock.reset();
  left_workers = bare_workers = nullptr;
  left_count = left_least = 0;
  left_news = false;
  left_due.store(kNever);
  workers_refused.store(false);
  pool.store(0);
  helpers.store(0);
  helper_list.store(nullptr);
})

}  // namespace fiberthread
