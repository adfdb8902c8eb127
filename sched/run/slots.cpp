// SPDX-License-Identifier: MIT
// Slots: which there are, which are free, and the fibers that wait in them.
#include <sys/mman.h>

#include <new>

#include "sched/life/fork.h"
#include "sched/preempt.h"
#include "sched/memory/locked.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

Slot* slots[kMaxSlots];
std::atomic<uint32_t> slot_count{0};
GlobalQueue global_queue;

// Protects the free slots, the list of workers without a slot that sleep (idle.cpp), and which of these sleeps until the next timer.
SpinLock idle_lock;
Slot* free_slots = nullptr;
std::atomic<uint32_t> free_slot_count{0};
// Number of slots held or free, and number of slots wanted. The slots beyond are retired. A retired slot is empty, unless a thread that saw
// it in use a moment ago puts a fiber into its inbox. Thieves and balance_queues() find that fiber.
std::atomic<uint32_t> circulating{0}, wanted{0};

// The reserve: further slots, while fibers that run for long hold all of those. Without them, a fiber that is woken then waits for a tick. With
// them, another worker is woken for it, and the kernel lets that worker go before the others, as it does a thread of NPTL that was asleep. Hogs
// get no slot of the reserve, and a fiber that runs for long there gives way. Number of its slots held or free, wanted, and free. These change
// under the idle lock.
std::atomic<uint32_t> reserve_count{0}, reserve_wanted{0}, free_reserve_count{0};

namespace {

Slot* free_reserve = nullptr;

Slot* retired_slots = nullptr;

constexpr uint32_t kMostMoved = 32;  // fibers moved at once from a local queue that is too long

}  // namespace

// Returns a slot in use, chosen by any `number`; null if there is none.
Slot* slot_in_use(uint32_t number) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[(number + i) % n];
    if (!s->retired.load(std::memory_order_relaxed) && !is_reserve(s)) return s;
  }
  return nullptr;
}

namespace {
// Sequentially consistent for free slots: see go_idle().
void count(std::atomic<uint32_t>& n, int change) {
  n.store(n.load(std::memory_order_relaxed) + static_cast<uint32_t>(change), std::memory_order_seq_cst);
}

void put(Slot*& list, Slot* s) {
  s->free_next = list;
  list = s;
}

Slot* take(Slot*& list) {
  Slot* s = list;
  if (s) list = s->free_next;
  return s;
}

void set_reserve_wanted(uint32_t n) {
  reserve_wanted.store(n, std::memory_order_relaxed);
  if (n) observing.fetch_or(kObserveRuns, std::memory_order_relaxed);
  else observing.fetch_and(~uint32_t{kObserveRuns}, std::memory_order_relaxed);
}

// A slot that is neither held nor free from now on.
void retire(Slot* s) {
  count(is_reserve(s) ? reserve_count : circulating, -1);
  s->reserve.store(false, std::memory_order_relaxed);
  s->retired.store(true, std::memory_order_relaxed);
  put(retired_slots, s);
}

}  // namespace

void add_free_slot(Slot* s) {  // idle lock
  s->holder.store(nullptr, std::memory_order_relaxed);
  bool of_reserve = is_reserve(s);
  if (too_many_like(s)) return retire(s);
  put(of_reserve ? free_reserve : free_slots, s);
  count(of_reserve ? free_reserve_count : free_slot_count, 1);
}

Slot* pop_free_slot() {  // idle lock
  if (Slot* s = take(free_slots)) {
    count(free_slot_count, -1);
    return s;
  }
  Slot* s = take(free_reserve);
  if (s) count(free_reserve_count, -1);
  return s;
}

// If another slot is free by now, that one goes to the reserve in place of s.
bool leave_reserve_if_possible(Slot* s) {
  if (free_slot_count.load(std::memory_order_relaxed) == 0) return false;
  SpinGuard guard(idle_lock);
  Slot* other = is_reserve(s) ? take(free_slots) : nullptr;
  if (!other) return !is_reserve(s);
  s->reserve.store(false, std::memory_order_relaxed);
  other->reserve.store(true, std::memory_order_relaxed);
  add_free_slot(other);
  count(free_slot_count, -1);  // only now: a thread that looks without the lock finds a free slot all the time
  return true;
}

void hold_slot(Worker* w, Slot* s) {
  w->run.slot = s;
  s->holder.store(w, std::memory_order_release);
}

bool take_free_slot(Worker* w) {
  if (!any_free_slot()) return false;
  SpinGuard guard(idle_lock);
  Slot* s = pop_free_slot();
  if (!s) return false;
  hold_slot(w, s);
  return true;
}

// Moves the slot's fibers to the global queue. Called by the slot's holder, or under the idle lock if it has none.
void empty_slot(Slot* s) {
  if (FiberRecord* f = take_next(s)) global_queue.push(f);  // first, see unpark_in_order()
  while (FiberRecord* f = s->local.pop()) global_queue.push(f);
  while (FiberRecord* f = s->inbox.pop()) global_queue.push(f);
}

// Gives up the worker's slot, as there are more slots than wanted.
void give_up_slot(Worker* w) {
  Slot* s = w->run.slot;
  empty_slot(s);
  {
    SpinGuard guard(idle_lock);
    add_free_slot(s);
    w->run.slot = nullptr;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_for_queued();
}

uint32_t slots_wanted() { return wanted.load(std::memory_order_relaxed); }

namespace {
// Returns a slot that is neither held nor free, or null without memory. Idle lock.
Slot* get_retired() {
  if (Slot* s = take(retired_slots)) {
    s->retired.store(false, std::memory_order_relaxed);
    return s;
  }
  uint32_t made = slot_count.load(std::memory_order_relaxed);
  void* mem = made == kMaxSlots ? nullptr : slots[made];  // from before a fork
  if (!mem && made != kMaxSlots) mem = memory::map_unlocked(sizeof(Slot), PROT_READ | PROT_WRITE, MAP_NORESERVE);
  if (!mem) return nullptr;
  if (!slots[made]) {
    slots[made] = new (mem) Slot;
    slots[made]->index = made;
  }
  slot_count.store(made + 1, std::memory_order_release);
  return slots[made];
}
}  // namespace

bool reserve_is_wanted() { return reserve_wanted.load(std::memory_order_relaxed) != 0; }

void free_heavy_queue() {
  if (heavy_queue.empty()) return;
  while (FiberRecord* f = heavy_queue.pop()) global_queue.push(f);
  // A worker that fell asleep meanwhile may have seen them in neither.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_for_queued();
}

void want_reserve(uint32_t n) {
  if (n == reserve_wanted.load(std::memory_order_relaxed)) return;
  SpinGuard guard(idle_lock);
  set_reserve_wanted(n);
  while (free_reserve && too_many_like(free_reserve)) {
    retire(take(free_reserve));
    count(free_reserve_count, -1);
  }
  while (reserve_count.load(std::memory_order_relaxed) < n) {
    Slot* s = get_retired();
    if (!s) return set_reserve_wanted(reserve_count.load(std::memory_order_relaxed));
    s->reserve.store(true, std::memory_order_relaxed);
    count(reserve_count, 1);
    add_free_slot(s);
  }
}

bool want_slots(uint32_t n) {
  if (n > kMaxSlots) n = kMaxSlots;
  SpinGuard guard(idle_lock);
  wanted.store(n, std::memory_order_release);
  while (circulating.load(std::memory_order_relaxed) < n) {
    Slot* s = get_retired();
    if (!s) {
      wanted.store(circulating.load(std::memory_order_relaxed), std::memory_order_release);
      return false;
    }
    count(circulating, 1);
    add_free_slot(s);
  }
  return true;
}

bool has_reserve(const Worker* w) {
  Slot* s = __atomic_load_n(&w->run.slot, __ATOMIC_RELAXED);
  return s && is_reserve(s);
}

bool any_free_slot() {
  return free_slot_count.load(std::memory_order_relaxed) != 0 || free_reserve_count.load(std::memory_order_relaxed) != 0;
}

bool free_slot_for(Waiting waiting) {
  return waiting == Waiting::Others ? any_free_slot() : waiting == Waiting::Hogs && free_slot_count.load(std::memory_order_relaxed) != 0;
}

bool all_slots_free() {
  return free_reserve_count.load(std::memory_order_relaxed) == reserve_count.load(std::memory_order_relaxed) &&
         free_slot_count.load(std::memory_order_relaxed) == circulating.load(std::memory_order_relaxed);
}

Slot** all_slots(uint32_t* count) {
  *count = slot_count.load(std::memory_order_acquire);
  return slots;
}

Waiting who_waits() {
  if (!global_queue.empty()) return Waiting::Others;
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++)
    if (slot_has_work(slots[i])) return Waiting::Others;
  return hogs_wait() ? Waiting::Hogs : Waiting::Nobody;
}

bool work_neglected() {
  bool found = !global_queue.empty() || (hogs_wait() && free_slot_for(Waiting::Hogs));
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[i];
    FiberRecord* next = s->next.load(std::memory_order_relaxed);
    Worker* holder = s->holder.load(std::memory_order_acquire);
    uint32_t heartbeat = holder ? holder->run.heartbeat.load(std::memory_order_relaxed) : 0;
    bool stays = heartbeat == s->seen_heartbeat;
    found |= s->local.size() > kMostLeft || !s->inbox.empty() || (stays && (!s->local.empty() || (next && next == s->seen_next)));
    s->seen_next = next;
    s->seen_heartbeat = heartbeat;
  }
  return found;
}

bool work_queued() { return who_waits() != Waiting::Nobody; }

uint32_t queued_count() {
  uint32_t total = global_queue.size() + hogs.size() + heavy_queue.size();
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++)
    total += slots[i]->local.size() + !slots[i]->inbox.empty() + (slots[i]->next.load(std::memory_order_relaxed) != nullptr);
  return total;
}

void balance_queues() {
  uint32_t n = slot_count.load(std::memory_order_acquire), total = 0;
  // Without this, thieves alone would empty the inboxes of retired slots, and no worker steals while all slots are busy.
  for (uint32_t i = 0; i < n; i++)
    if (slots[i]->retired.load(std::memory_order_relaxed))
      while (FiberRecord* f = slots[i]->inbox.pop()) global_queue.push(f);
  if (wanted.load(std::memory_order_relaxed) < 2) return;  // nobody else could take them
  for (uint32_t i = 0; i < n; i++) total += slots[i]->local.size();
  uint32_t fair = total / (wanted.load(std::memory_order_relaxed) + 1) + 2;
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t moved = 0; moved < kMostMoved && slots[i]->local.size() > fair && !slots[i]->local.keeps_order(); moved++)
      if (FiberRecord* f = slots[i]->local.pop()) global_queue.push(f);
}

uint64_t next_timer() {
  uint64_t first = kNever;
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t t = slots[i]->timers.next();
    if (t < first) first = t;
  }
  return first;
}

void run_timers(uint64_t now) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) slots[i]->timers.run(now);
}

void empty_unheld_slots() {
  SpinGuard guard(idle_lock);
  for (Slot* s = free_slots; s; s = s->free_next) empty_slot(s);
  for (Slot* s = retired_slots; s; s = s->free_next) empty_slot(s);
  for (Slot* s = free_reserve; s; s = s->free_next) empty_slot(s);
}

FIBERTHREAD_IN_FORK_CHILD(Slots, slots, [](FiberRecord*) {
  idle_lock.reset();
  free_slots = nullptr;
  retired_slots = nullptr;
  free_slot_count.store(0);
  circulating.store(0);
  wanted.store(0);
  free_reserve = nullptr;
  reserve_count.store(0);
  set_reserve_wanted(0);
  free_reserve_count.store(0);
  uint32_t n = slot_count.load();
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[i];
    s->local.reset();
    s->inbox.reset();
    s->next.store(nullptr);
    s->timers.reset();
    s->holder.store(nullptr);
    s->retired.store(false);
    s->reserve.store(false);
  }
  slot_count.store(0);
  global_queue.reset();
})

}  // namespace fiberthread
