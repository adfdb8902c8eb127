// SPDX-License-Identifier: MIT
// Signals that are pending, and which fiber they belong to.
#include <limits.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "sched/memory/block.h"
#include "shim/posix_timer.h"
#include "shim/signal_frame.h"

namespace fiberthread {
namespace signals {

PendingQueue process_queue;

namespace {

Pending* free_pending = nullptr;
std::atomic<uint64_t> pending_count{0};  // written under the lock

void part_from_timer(Pending* p) {  // under SignalsGuard
  if (!p->timer || p->timer->pending != p) return;
  timer_go_on(*p->timer);
  p->timer->pending = nullptr;
}

void put_pending(Pending* p) {  // under SignalsGuard
  part_from_timer(p);
  p->next = free_pending;
  free_pending = p;
  pending_count.store(pending_count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

Pending* new_pending() {  // under SignalsGuard
  if (!free_pending) {
    constexpr size_t kSize = 64 * 1024;
    auto* p = reinterpret_cast<Pending*>(map_memory(kSize, PROT_READ | PROT_WRITE));
    if (!p) return nullptr;
    for (size_t i = 0; i < kSize / sizeof(Pending); i++) {
      p[i].next = free_pending;
      free_pending = &p[i];
    }
  }
  Pending* p = free_pending;
  free_pending = p->next;
  pending_count.store(pending_count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return p;
}

void add(PendingQueue& q, Pending* p) {  // under SignalsGuard
  p->next = nullptr;
  p->queue = &q;
  Pending** end = &q.first;
  while (*end) end = &(*end)->next;
  *end = p;
  q.bits.fetch_or(bit(p->info.si_signo), std::memory_order_seq_cst);
}

void move(PendingQueue& from, PendingQueue& to, int sig) {  // under SignalsGuard
  for (Pending** p = &from.first; *p;) {
    Pending* moved = *p;
    if (moved->info.si_signo != sig) {
      p = &moved->next;
      continue;
    }
    *p = moved->next;
    add(to, moved);
  }
  from.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
}

// Called after one of these signals has left the queue.
void forget_bit(PendingQueue& q, int sig) {  // under SignalsGuard
  for (Pending* p = q.first; p; p = p->next)
    if (p->info.si_signo == sig) return;
  q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
}

// Takes a signal that has left its queue for another. A signal that its timer sends meanwhile is another one.
void set_out(Pending* p) {  // under SignalsGuard
  p->next = nullptr;
  p->queue = nullptr;
  part_from_timer(p);
}

// Takes out the lowest signal of the queue that is in `wanted`, the first of its kind.
bool take(PendingQueue& q, uint64_t wanted, siginfo_t* out) {
  if (!(q.bits.load(std::memory_order_seq_cst) & wanted)) return false;
  SignalsGuard guard;
  wanted &= q.bits.load(std::memory_order_relaxed);
  wanted &= -wanted;
  for (Pending** p = &q.first; *p; p = &(*p)->next) {
    Pending* found = *p;
    int sig = found->info.si_signo;
    if (!(bit(sig) & wanted)) continue;
    part_from_timer(found);
    *out = found->info;
    *p = found->next;
    if (found->timer) found->timer->overrun.store(found->info.si_overrun, std::memory_order_relaxed);
    put_pending(found);
    forget_bit(q, sig);
    return true;
  }
  return false;
}

// Gives signals that no thread has any more to other threads, in order.
void give_all(Pending* p, TellBy by) {
  while (p) {
    Pending* next = p->next;
    give(pick_target(nullptr, p->info.si_signo), p->info, by);
    SignalsGuard guard;
    put_pending(p);
    p = next;
  }
}

bool alive(FiberRecord* f) {
  return f->join.valid.load(std::memory_order_acquire) && !f->join.done.load(std::memory_order_relaxed) && !state_of(f).ended;
}

}  // namespace

void add_overruns(siginfo_t& info, uint64_t more) {
  uint64_t all = static_cast<uint64_t>(info.si_overrun) + more;
  info.si_overrun = static_cast<int>(all < INT_MAX ? all : INT_MAX);  // as the kernel
}

uint64_t refused_by(FiberRecord* f) { return mask_of(f) & ~state_of(f).waited_for.load(std::memory_order_seq_cst); }

uint64_t refused_asleep(FiberRecord* f) {
  uint64_t mask = mask_of(f);
  return mask & ~kernel_calls_us(mask & state_of(f).waited_for.load(std::memory_order_seq_cst));
}

bool nothing_is_pending() { return pending_count.load(std::memory_order_seq_cst) == 0; }

void forget_pending() { pending_count.store(0); }

bool room_for_pending() {
  uint64_t limit[2];
  return raw_syscall(SYS_prlimit64, 0, RLIMIT_SIGPENDING, 0, arg(limit)) != 0 || pending_count.load(std::memory_order_relaxed) < limit[0];
}

bool take_any(FiberRecord* me, uint64_t wanted, siginfo_t* out) {
  return take(state_of(me).queue, wanted, out) || take(process_queue, wanted, out);
}

bool pending_for(FiberRecord* me, uint64_t wanted) {
  return (state_of(me).queue.bits.load(std::memory_order_seq_cst) | process_queue.bits.load(std::memory_order_seq_cst)) & wanted;
}

FiberRecord* pick_target(FiberRecord* me, int sig) {
  // As in the kernel, main comes first, even if it is in sigwait. Other fibers in sigwait may come after those that have not blocked the
  // signal.
  if (alive(main_fiber) && !(refused_by(main_fiber) & bit(sig))) return main_fiber;
  if (me && !me->run.kernel && !(mask_of(me) & bit(sig)) && alive(me)) return me;
  struct Search {
    uint64_t b;
    FiberRecord* found;
  } search{bit(sig), nullptr};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (!f->memory.tcb || !alive(f) || mask_of(f) & s->b) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

bool record(FiberRecord*& f, const siginfo_t& info, SentTo to) {
  SignalsGuard guard;
  return record_locked(f, info, to);
}

bool record_locked(FiberRecord*& f, const siginfo_t& info, SentTo to) {
  bool for_process = to == SentTo::Process;
  while (f) {
    ThreadSignals& s = state_of(f);
    // Counted before `ended` is read. signal_thread_ends() does the two the other way round, so one of the two sees the other.
    s.arriving.fetch_add(1, std::memory_order_seq_cst);
    if (!s.ended.load(std::memory_order_seq_cst)) break;
    if (!for_process) return false;
    f = pick_target(nullptr, info.si_signo);
  }
  PendingQueue& q = f ? state_of(f).queue : process_queue;
  // Signals that came before it and that no thread took go to the same fiber, which does not know of them. Otherwise they would come after it.
  bool moves = f && for_process && process_queue.bits.load(std::memory_order_relaxed) & bit(info.si_signo);
  if (moves) move(process_queue, q, info.si_signo);
  PosixTimer* timer = timer_of(info);
  if (timer && timer_signal_is_old(*timer)) return moves;
  if (timer && timer->pending) {
    add_overruns(timer->pending->info, static_cast<uint64_t>(info.si_overrun) + 1);
    timer_stop(*timer);
    return moves;
  }
  // Signals sent to the thread and signals sent to the process are counted separately, as in the kernel. Each timer has a signal of its own.
  if (!timer && info.si_signo < SIGRTMIN && q.bits.load(std::memory_order_relaxed) & bit(info.si_signo))
    for (Pending* p = q.first; p; p = p->next)
      if (p->info.si_signo == info.si_signo && p->for_process == for_process) return moves;
  Pending* p = new_pending();
  if (!p) return moves;
  p->info = info;
  p->for_process = for_process;
  p->timer = timer;
  if (timer) timer->pending = p;
  add(q, p);
  return true;
}

bool move_to_kernel(FiberRecord* f, uint64_t signals, int tid) {
  PendingQueue& q = state_of(f).queue;
  for (Pending** p = &q.first; *p;) {
    Pending* one = *p;
    int sig = one->info.si_signo;
    if (one->for_process || one->timer || !(signals & bit(sig))) {
      p = &one->next;
      continue;
    }
    if (!queue_to_kernel_thread(tid, one->info)) return false;
    *p = one->next;
    put_pending(one);
    forget_bit(q, sig);
  }
  return true;
}

bool all_to_kernel(FiberRecord* me, int tid) {
  uint64_t blocked = mask_of(me);
  if (!((state_of(me).queue.bits.load(std::memory_order_relaxed) | process_queue.bits.load(std::memory_order_relaxed)) & blocked))
    return false;
  SignalsGuard guard;
  PendingQueue* const queues[] = {&process_queue, &state_of(me).queue};
  for (PendingQueue* q : queues)
    for (Pending** p = &q->first; *p;) {
      Pending* one = *p;
      int sig = one->info.si_signo;
      if (!one->for_process || one->timer || !(blocked & bit(sig))) {
        p = &one->next;
        continue;
      }
      // The kernel lets only the process's first thread say that another process sent it.
      if (!keep_in_kernel_for_process(one->info)) raw_syscall(SYS_kill, process, sig);
      *p = one->next;
      put_pending(one);
      forget_bit(*q, sig);
    }
  move_to_kernel(me, blocked, tid);
  return true;
}

namespace {
void make_known(FiberRecord* to, int sig, TellBy by) {
  // Looked for again, since a fiber may have unblocked it meanwhile.
  if (!to) to = pick_target(nullptr, sig);
  if (!to) {
    wake_waiter(sig, by);
    return;
  }
  tell(to, sig, by);
  give_away(to, bit(sig), by);  // or blocked it
}
}  // namespace

void give(FiberRecord* to, const siginfo_t& info, TellBy by) {
  if (record(to, info, SentTo::Process)) make_known(to, info.si_signo, by);
}

void give_away(FiberRecord* f, uint64_t blocked, TellBy by) {
  PendingQueue& q = state_of(f).queue;
  blocked &= refused_by(f);
  uint64_t nobodys = process_queue.bits.load(std::memory_order_seq_cst) & blocked;
  if (__builtin_expect(!(q.bits.load(std::memory_order_seq_cst) & blocked) && !nobodys, 1)) return;
  Pending *given = nullptr, **end = &given;
  {
    SignalsGuard guard;
    uint64_t left = 0;
    for (Pending** p = &q.first; *p;) {
      Pending* one = *p;
      if (one->for_process && blocked & bit(one->info.si_signo)) {
        *p = one->next;
        set_out(one);
        *end = one;
        end = &one->next;
      } else {
        left |= bit(one->info.si_signo);
        p = &one->next;
      }
    }
    q.bits.store(left, std::memory_order_relaxed);
  }
  give_all(given, by);
  for (; nobodys; nobodys &= nobodys - 1) make_known(nullptr, __builtin_ctzll(nobodys) + 1, by);
}

void drop_pending(int sig) {
  static constexpr auto drop = [](PendingQueue& q, int sig) {
    if (!(q.bits.load(std::memory_order_seq_cst) & bit(sig))) return;
    Busy busy;
    SignalsGuard guard;
    for (Pending** p = &q.first; *p;) {
      Pending* one = *p;
      if (one->info.si_signo != sig) {
        p = &one->next;
        continue;
      }
      *p = one->next;
      put_pending(one);
    }
    q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
  };
  auto visit = [](FiberRecord* f, void* data) {
    drop(state_of(f).queue, *static_cast<int*>(data));
    return true;
  };
  drop(process_queue, sig);
  visit(main_fiber, &sig);
  block_each(visit, &sig);
  kernel_record_each(visit, &sig);
}

void drop_pending_of(PosixTimer& t, Drop which) {
  Busy busy;
  SignalsGuard guard;
  Pending* gone = t.pending;
  if (!gone || (which == Drop::IfOld && !timer_signal_is_old(t))) return;
  PendingQueue& q = *gone->queue;
  Pending** p = &q.first;
  while (*p != gone) p = &(*p)->next;
  *p = gone->next;
  put_pending(gone);
  forget_bit(q, gone->info.si_signo);
}

}  // namespace signals

using namespace signals;

void signal_thread_ends(FiberRecord* me) {
  forget_alternate();
  ThreadSignals& s = state_of(me);
  // A worker that looks for work still has the mask of the fiber that it ran last. After a join, it must not take a signal that no living thread
  // lets in. Main usually lets in all that the others do, and then there is nothing to close.
  uint64_t open = ~mask_of(me) & ~kNeverBlocked;
  if (!state_of(main_fiber).ended.load(std::memory_order_relaxed)) open &= mask_of(main_fiber);
  if (open && me != main_fiber) {
    {
      Busy busy;
      set_mask_of(me, ~kNeverBlocked);
      sched_apply_mask();
    }
    sched_await_blocked(open);
  }
  s.ended.exchange(true, std::memory_order_seq_cst);
  if (s.arriving.load(std::memory_order_seq_cst) == 0) return;  // the usual end makes no system call
  Pending *homeless = nullptr, **end = &homeless;
  {
    SignalsGuard guard;
    for (Pending* p = s.queue.first; p;) {
      Pending* next = p->next;
      if (p->for_process) {
        set_out(p);
        *end = p;
        end = &p->next;
      } else {
        put_pending(p);
      }
      p = next;
    }
    s.queue.first = nullptr;
    s.queue.bits.store(0, std::memory_order_relaxed);
  }
  give_all(homeless, TellBy::Caller);
}

}  // namespace fiberthread
