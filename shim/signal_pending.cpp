// SPDX-License-Identifier: MIT
// Signals that are pending, and which fiber they belong to.
#include <sys/mman.h>
#include <sys/resource.h>

#include "sched/memory/block.h"
#include "shim/signal_frame.h"

namespace fiberthread {
namespace signals {

PendingQueue process_queue;

namespace {

Pending* free_pending = nullptr;
std::atomic<uint64_t> pending_count{0};  // written under the lock

void put_pending(Pending* p) {  // under SignalsGuard
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
    *out = found->info;
    *p = found->next;
    put_pending(found);
    bool more = false;
    for (Pending* r = q.first; r; r = r->next) more |= r->info.si_signo == sig;
    if (!more) q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
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

uint64_t refused_by(FiberRecord* f) { return mask_of(f) & ~state_of(f).waited_for.load(std::memory_order_seq_cst); }

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
  bool for_process = to == SentTo::Process;
  SignalsGuard guard;
  while (f) {
    ThreadSignals& s = state_of(f);
    // Counted before `ended` is read. signal_thread_ends() does the two the other way round, so one of the two sees the other.
    s.arriving.fetch_add(1, std::memory_order_seq_cst);
    if (!s.ended.load(std::memory_order_seq_cst)) break;
    if (!for_process) return false;
    f = pick_target(nullptr, info.si_signo);
  }
  PendingQueue& q = f ? state_of(f).queue : process_queue;
  // Signals that came before it and that no thread took go to the same fiber. Otherwise they would come after it.
  if (f && for_process && process_queue.bits.load(std::memory_order_relaxed) & bit(info.si_signo)) move(process_queue, q, info.si_signo);
  // Signals sent to the thread and signals sent to the process are counted separately, as in the kernel.
  if (info.si_signo < SIGRTMIN && q.bits.load(std::memory_order_relaxed) & bit(info.si_signo))
    for (Pending* p = q.first; p; p = p->next)
      if (p->info.si_signo == info.si_signo && p->for_process == for_process) return false;
  Pending* p = new_pending();
  if (!p) return false;
  p->info = info;
  p->for_process = for_process;
  add(q, p);
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
        one->next = nullptr;
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

}  // namespace signals

using namespace signals;

void signal_thread_ends(FiberRecord* me) {
  forget_alternate();
  ThreadSignals& s = state_of(me);
  s.ended.exchange(true, std::memory_order_seq_cst);
  if (s.arriving.load(std::memory_order_seq_cst) == 0) return;  // the usual end makes no system call
  Pending *homeless = nullptr, **end = &homeless;
  {
    SignalsGuard guard;
    for (Pending* p = s.queue.first; p;) {
      Pending* next = p->next;
      if (p->for_process) {
        p->next = nullptr;
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
