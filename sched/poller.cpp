// SPDX-License-Identifier: MIT
#include "sched/poller.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <new>

#include "sched/chaos.h"
#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/observe/metrics.h"
#include "sched/own_descriptors.h"
#include "sched/spinlock.h"
#include "sched/syscall.h"
#include "sched/wait.h"
#include "sched/worker.h"

namespace fiberthread {

// One wait, of one fiber for any number of descriptors.
struct PollGroup {
  std::atomic<uint32_t> fired{0};
  std::atomic<bool> event{false};  // false: only closes have fired
};

namespace {

// What the poller knows of a number. Under the lock, which is held across epoll_ctl(). So `registered` and the life agree with epoll. Epoll
// may have a registration that is not noted here; register_for() handles its EEXIST.
struct alignas(64) Descriptor {
  SpinLock lock;
  uint8_t again = 0;              // events that each wait must register anew, because edges may be missing
  std::atomic<bool> odd{false};   // an event of this life was for more than data or room
  uint16_t registered = 0;        // what epoll reports; 0: not registered
  std::atomic<uint64_t> seen{0};  // life << 32 | events; changed under the lock
  std::atomic<PollItem*> first{nullptr};
  PollItem* last = nullptr;
  PollNotes notes;
};
static_assert(sizeof(Descriptor) == 64);
constexpr uint8_t kAll = 0xff;  // Descriptor::again

constexpr uint32_t kChunk = 1024, kChunks = 16384;
FIBERTHREAD_LARGE std::atomic<Descriptor*> table[kChunks];
std::atomic<uint32_t> chunks{0};  // there are no chunks from this index on

std::atomic<int> epoll_fd{-1}, wake_fd{-1};
SpinLock open_lock;
constexpr uint64_t kWakeCookie = ~uint64_t{0};

Descriptor* descriptor_of(int fd) {
  auto n = static_cast<uint32_t>(fd);
  if (n >= kChunk * kChunks) return nullptr;
  Descriptor* chunk = table[n / kChunk].load(std::memory_order_acquire);
  return chunk ? &chunk[n % kChunk] : nullptr;
}

Descriptor* find_or_make(int fd) {
  if (Descriptor* d = descriptor_of(fd)) return d;
  auto n = static_cast<uint32_t>(fd);
  if (n >= kChunk * kChunks) return nullptr;
  know_process();
  char* mem = map_memory(kChunk * sizeof(Descriptor), PROT_READ | PROT_WRITE);
  if (!mem) return nullptr;
  // Count the chunk first. Otherwise the child of a fork that comes between the two would not know of it.
  uint32_t known = chunks.load(std::memory_order_relaxed);
  while (known <= n / kChunk && !chunks.compare_exchange_weak(known, n / kChunk + 1, std::memory_order_acq_rel)) {
  }
  // A new mapping is zero, and so is a new Descriptor.
  Descriptor* none = nullptr;
  if (!table[n / kChunk].compare_exchange_strong(none, reinterpret_cast<Descriptor*>(mem), std::memory_order_acq_rel))
    unmap_memory(mem, kChunk * sizeof(Descriptor));
  return descriptor_of(fd);
}

uint64_t packed(PollSeen seen) { return uint64_t{seen.life} << 32 | seen.events; }
PollSeen unpacked(uint64_t seen) { return {static_cast<uint32_t>(seen >> 32), static_cast<uint32_t>(seen)}; }

std::atomic<bool> memory_shared{false};
std::atomic<uint32_t> registrations{0};  // counted while metrics are wanted

// ---- epoll ----

int open_epoll() {
  int fd = epoll_fd.load(std::memory_order_acquire);
  if (fd >= 0) return fd;
  SpinGuard guard(open_lock);
  if ((fd = epoll_fd.load(std::memory_order_relaxed)) >= 0) return fd;
  if (wake_fd.load(std::memory_order_relaxed) < 0) own_fd_take(raw_syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK), wake_fd);
  std::atomic<int> made{static_cast<int>(raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC))};
  epoll_event e{EPOLLIN | EPOLLET, {.u64 = kWakeCookie}};
  if (raw_syscall(SYS_epoll_ctl, made, EPOLL_CTL_ADD, wake_fd.load(std::memory_order_relaxed), arg(&e)) == 0) own_fd_take(made, epoll_fd);
  else if (made >= 0) raw_syscall(SYS_close, made);
  return epoll_fd.load(std::memory_order_relaxed);
}

// Returns the events for which edges may be missing, because the file looks for its readiness only when it is asked. Such are sendto() on a
// datagram socket of the Unix domain, terminals and devices.
uint8_t asked_again(int fd) {
  int type = 0;
  uint32_t size = sizeof type;
  if (raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, arg(&type), arg(&size)) == 0)
    return type == SOCK_STREAM ? uint8_t{0} : uint8_t{EPOLLOUT};
  struct stat s;
  return raw_syscall(SYS_fstat, fd, arg(&s)) == 0 && S_ISFIFO(s.st_mode) ? 0 : kAll;
}

// Returns the events of epoll for those of poll().
uint32_t epoll_events(uint32_t events) {
  uint32_t w = 0;
  if (events & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP)) w |= EPOLLIN | EPOLLRDHUP;
  if (events & (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)) w |= EPOLLOUT;
  if (events & (EPOLLPRI | EPOLLRDBAND)) w |= EPOLLPRI;
  return w ? w : EPOLLRDHUP;  // errors and hang-ups only
}

// Under the lock.
void now_registered(Descriptor* d, uint32_t events) {
  if (metrics_wanted() && !d->registered != !events) registrations.fetch_add(events ? 1 : ~0u, std::memory_order_relaxed);
  d->registered = static_cast<uint16_t>(events);
}

// Makes epoll report `events` from now on, besides those that it has reported. Returns false if epoll refuses. Under the lock.
bool register_for(Descriptor* d, int fd, uint32_t events) {
  if (!(events & (~uint32_t{d->registered} | (d->again == kAll ? ~0u : d->again)))) return true;
  int ep = open_epoll();
  if (ep < 0) return false;
  if (!d->registered) d->again = asked_again(fd);
  if (d->again == kAll) {
    // Only the events of present waits. Epoll would report again and again what is ready all the time.
    for (PollItem* i = d->first.load(std::memory_order_relaxed); i; i = i->next)
      if (!i->ended) events |= epoll_events(i->events);
  } else {
    events |= d->registered;
  }
  // What each wait registers anew is reported once. Otherwise a program's own epoll, as a descriptor here, would wake us for all its
  // events.
  uint32_t how = d->again == kAll ? uint32_t{EPOLLONESHOT} : uint32_t{EPOLLET};
  epoll_event e{events | how, {.u64 = (d->seen.load(std::memory_order_relaxed) & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(fd)}};
  long op = d->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  long r = raw_syscall(SYS_epoll_ctl, ep, op, fd, arg(&e));
  // The number was closed without our knowledge, or is still registered.
  if (r == -ENOENT) r = raw_syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, arg(&e));
  else if (r == -EEXIST) r = raw_syscall(SYS_epoll_ctl, ep, EPOLL_CTL_MOD, fd, arg(&e));
  now_registered(d, r == 0 ? events : 0);
  return r == 0;
}

void deregister(Descriptor* d, int fd) {  // under the lock
  epoll_event e{};
  raw_syscall(SYS_epoll_ctl, epoll_fd.load(std::memory_order_relaxed), EPOLL_CTL_DEL, fd, arg(&e));
  now_registered(d, 0);
}

// ---- the waits of a descriptor, under its lock ----

void link(Descriptor* d, PollItem* i) {
  i->next = nullptr;
  i->prev = d->last;
  if (d->last) d->last->next = i;
  else d->first.store(i, std::memory_order_relaxed);
  d->last = i;
  i->linked = true;
}

void unlink(Descriptor* d, PollItem* i) {
  if (i->prev) i->prev->next = i->next;
  else d->first.store(i->next, std::memory_order_relaxed);
  if (i->next) i->next->prev = i->prev;
  else d->last = i->prev;
  i->linked = false;
}

enum class Why { Event, Closed };
void end_wait(Descriptor* d, PollItem* i, Why why) {
  if (i->stays && why == Why::Event) i->ended = true;
  else unlink(d, i);
  PollGroup* g = i->group;
  FiberRecord* f = i->fiber;
  if (why == Why::Event) g->event.store(true, std::memory_order_relaxed);
  g->fired.store(1, std::memory_order_release);
  unpark(f);  // the group may be gone
}

void end_all(Descriptor* d) {
  for (PollItem *i = d->first.load(std::memory_order_relaxed), *next; i; i = next) {
    next = i->next;
    if (!i->ended) end_wait(d, i, Why::Event);
  }
}

// Moves a wait for `fd`, which is about to be closed, to a duplicate. Returns false if there can be none. Takes the lock of a number that no
// other thread knows yet, so the order of such locks is that of closing.
bool move_to_kept(Descriptor* d, PollItem* i, int fd) {
  int number = own_fd_keep(fd, i->fiber);
  Descriptor* to = number >= 0 ? find_or_make(number) : nullptr;
  bool moved = false;
  if (to) {
    SpinGuard guard(to->lock);
    // What is ready by now, epoll reports at once.
    if ((moved = register_for(to, number, epoll_events(i->events)))) {
      unlink(d, i);
      i->seen = unpacked(to->seen.load(std::memory_order_relaxed));
      i->kept.store(number, std::memory_order_relaxed);
      link(to, i);
    }
  }
  if (!moved && number >= 0) own_fd_let_go(number);
  return moved;
}

// Ends the waits for these events: those of all, or only the exclusive ones. Returns true if it has ended one.
enum class Whose { All, Exclusive };
bool happened(Descriptor* d, uint32_t events, Whose whose) {
  bool all = events & (EPOLLERR | EPOLLHUP), any = false;
  uint32_t taken = 0;
  for (PollItem *i = d->first.load(std::memory_order_relaxed), *next; i; i = next) {
    next = i->next;
    uint32_t hit = epoll_events(i->events) & events;
    if (i->ended || (!all && !hit)) continue;
    if (i->exclusive && !all && !(hit & EPOLLRDHUP) && !(hit & ~taken)) continue;
    if (!i->exclusive && whose == Whose::Exclusive) continue;
    if (i->exclusive) taken |= hit;
    end_wait(d, i, Why::Event);
    any = true;
  }
  return any;
}

// Registers a descriptor anew that epoll reports once, and that is silent now, if fibers still wait for other events. Those that wait for
// the same event get it by poll_pass().
void arm_again(Descriptor* d, int fd, uint32_t events) {
  if (d->again != kAll) return;
  for (PollItem* i = d->first.load(std::memory_order_relaxed); i; i = i->next)
    if (!i->ended && !(epoll_events(i->events) & events)) {
      register_for(d, fd, epoll_events(i->events));
      return;
    }
}

void count_event(Descriptor* d, uint32_t events) {
  if (events & ~uint32_t{EPOLLIN | EPOLLOUT}) d->odd.store(true, std::memory_order_relaxed);  // before it is counted
  uint64_t s = d->seen.load(std::memory_order_relaxed);
  d->seen.store((s & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(s + 1), std::memory_order_release);
}

}  // namespace

// ---- waiting ----

namespace {
// Called by the waiting fiber. A thread that closes the descriptor may move the item meanwhile.
void unlink_own(PollItem* i) {
  for (;;) {
    int number = i->number();
    Descriptor* d = descriptor_of(number);
    SpinGuard guard(d->lock);
    if (i->number() != number) continue;
    if (i->linked) unlink(d, i);
    return;
  }
}
}  // namespace

PollSeen poll_seen(int fd) {
  Descriptor* d = find_or_make(fd);
  return d ? unpacked(d->seen.load(std::memory_order_acquire)) : PollSeen{};
}

PollNotes* poll_notes(int fd) {
  Descriptor* d = find_or_make(fd);
  return d ? &d->notes : nullptr;
}

PollEnd poll_wait_any(PollItem* items, size_t n, uint64_t deadline, uint32_t interrupt_mask) {
  FiberRecord* me = self();
  Busy busy;
  if (me->run.kernel) return PollEnd::Refused;  // a handler has forked since the caller looked, and this is the child
  clear_pending_unpark(me);
  PollGroup group;
  PollEnd end = PollEnd::Ready;
  size_t tried = 0;
  bool go_on = true;
  for (; tried < n && go_on; tried++) {
    PollItem& i = items[tried];
    i.linked = i.ended = false;
    i.group = &group;
    i.fiber = me;
    if (i.fd < 0) continue;
    int number = i.number();
    Descriptor* d = find_or_make(number);
    if (!d) {
      end = PollEnd::Refused;
      break;
    }
    SpinGuard guard(d->lock);
    PollSeen now = unpacked(d->seen.load(std::memory_order_relaxed));
    if (now == i.seen && register_for(d, number, epoll_events(i.events))) {
      link(d, &i);
    } else {
      end = now.life != i.seen.life ? PollEnd::Closed : now.events != i.seen.events ? PollEnd::Ready : PollEnd::Refused;
      go_on = false;
    }
  }
  if (go_on && end != PollEnd::Refused) {
    chaos_delay();
    if (!poll_watched()) sysmon_wake();
    auto over = [&] { return group.fired.load(std::memory_order_acquire) != 0; };
    auto withdraw = [] { return true; };  // the items are unlinked below
    ParkReason reason{.what = "descriptor", .object = reinterpret_cast<void*>(static_cast<intptr_t>(n ? items[0].fd : -1)), .plain = true};
    switch (wait_until(me, group.fired, 0, over, withdraw, reason, deadline, interrupt_mask)) {
      case WaitEnd::Interrupted: end = PollEnd::Interrupted; break;
      case WaitEnd::TimedOut: end = PollEnd::TimedOut; break;
      default: break;  // WaitEnd::Ends does not come under Busy
    }
  }
  // A thread that has ended our only wait does not touch the item any more.
  if (n != 1 || !group.fired.load(std::memory_order_acquire)) {
    for (size_t k = 0; k < tried; k++)
      if (items[k].fd >= 0) unlink_own(&items[k]);
  }
  // An exclusive wait that was ended must take what there is, even if the deadline or an interrupt came at the same time.
  if (group.fired.load(std::memory_order_acquire)) return group.event.load(std::memory_order_relaxed) ? PollEnd::Ready : PollEnd::Closed;
  return end;
}

void poll_leave(PollItem& item) {
  Busy busy;
  unlink_own(&item);
}

void poll_let_go(int kept) {
  Busy busy;  // a handler that leaves by a jump, or forks, would leave the entry half ended
  poll_closing(kept);
  own_fd_let_go(kept);
  poll_closed(kept);
}

void poll_let_go_all(const FiberRecord* keeper) {
  for (int number = -1; (number = own_fd_next_kept(number + 1, keeper)) >= 0;) poll_let_go(number);
}

void poll_pass(int fd, uint32_t events) {
  Descriptor* d = descriptor_of(fd);
  if (!d || !d->first.load(std::memory_order_relaxed)) return;
  Busy busy;
  SpinGuard guard(d->lock);
  happened(d, epoll_events(events) & ~uint32_t{EPOLLRDHUP}, Whose::Exclusive);
}

void poll_nudge(int fd) {
  Descriptor* d = descriptor_of(fd);
  if (!d || !d->first.load(std::memory_order_relaxed) || another_process()) return;
  Busy busy;
  SpinGuard guard(d->lock);
  count_event(d, ~0u);
  end_all(d);
}

void poll_was_empty(int fd, PollSeen seen) {
  // Never 0, which means none, because a number does not have so many lives.
  if (Descriptor* d = descriptor_of(fd)) d->notes.empty.store(~packed(seen), std::memory_order_relaxed);
}

// Acquire: a thread that sees the count of an event also sees `odd` of that event. An event after that load is not counted in `seen`. Only
// for streams: for poll(), a packet socket looks elsewhere than for a read.
bool poll_is_empty(int fd, PollSeen seen) {
  Descriptor* d = descriptor_of(fd);
  return d && d->notes.empty.load(std::memory_order_relaxed) == ~packed(seen) && d->seen.load(std::memory_order_acquire) == packed(seen) &&
         !d->odd.load(std::memory_order_relaxed) && __atomic_load_n(&d->again, __ATOMIC_RELAXED) == 0;
}

// ---- the end of a number's life ----

void poll_closing(int fd) {
  Descriptor* d = descriptor_of(fd);
  if (!d) return;
  Busy busy;
  SpinGuard guard(d->lock);
  bool known = d->registered || d->first.load(std::memory_order_relaxed);
  if ((known || memory_shared.load(std::memory_order_relaxed)) && another_process()) return;
  d->odd.store(false, std::memory_order_relaxed);
  d->seen.store(((d->seen.load(std::memory_order_relaxed) >> 32) + 1) << 32, std::memory_order_release);
  d->notes.kind.store(0, std::memory_order_relaxed);
  d->notes.version.store(0, std::memory_order_relaxed);
  if (d->registered) deregister(d, fd);  // while other descriptors have the file too, it would stay registered
  while (PollItem* i = d->first.load(std::memory_order_relaxed)) {
    if (move_to_kept(d, i, fd)) continue;
    if (i->ended) unlink(d, i);
    else end_wait(d, i, Why::Closed);
  }
}

void poll_memory_shared() { memory_shared.store(true, std::memory_order_relaxed); }

// A wait that began between poll_closing() and the call that closed the number may be for the old file or a new one. So these waits try
// again, and we take the number as not registered.
void poll_closed(int fd) {
  Descriptor* d = descriptor_of(fd);
  if (!d) return;
  Busy busy;
  SpinGuard guard(d->lock);
  if ((!d->registered && !d->first.load(std::memory_order_relaxed)) || another_process()) return;
  now_registered(d, 0);
  count_event(d, ~0u);
  end_all(d);
}

namespace {
template <class Call>
void each_known(unsigned first, unsigned last, Call call) {
  uint32_t end = chunks.load(std::memory_order_acquire) * kChunk;
  for (uint32_t n = first; n < end && n <= last;) {
    if (!table[n / kChunk].load(std::memory_order_acquire)) n = (n / kChunk + 1) * kChunk;
    else call(static_cast<int>(n++));
  }
}
}  // namespace

void poll_release_epolls() {
  each_known(0, ~0u, [](int fd) {
    Descriptor* d = descriptor_of(fd);
    auto unused = [&] {
      return __atomic_load_n(&d->registered, __ATOMIC_RELAXED) && __atomic_load_n(&d->again, __ATOMIC_RELAXED) == kAll &&
             !d->first.load(std::memory_order_relaxed);
    };
    if (!unused()) return;
    Busy busy;
    SpinGuard guard(d->lock);
    if (unused() && !another_process()) deregister(d, fd);
  });
}

bool poll_each_waited(bool (*visit)(int fd)) {
  bool go_on = true;
  each_known(0, ~0u, [&](int fd) {
    Descriptor* d = descriptor_of(fd);
    if (go_on && d && d->first.load(std::memory_order_relaxed)) go_on = visit(fd);
  });
  return go_on;
}

// Closing a range leaves out what the library keeps.
void poll_closing_range(unsigned first, unsigned last) {
  each_known(first, last, [](int fd) {
    if (!descriptor_of(fd)->first.load(std::memory_order_relaxed) || !is_own_fd(fd)) poll_closing(fd);
  });
}
void poll_closed_range(unsigned first, unsigned last) {
  each_known(first, last, [](int fd) {
    if (!descriptor_of(fd)->first.load(std::memory_order_relaxed) || !is_own_fd(fd)) poll_closed(fd);
  });
}

// ---- looking ----

uint32_t poll_descriptors() { return registrations.load(std::memory_order_relaxed); }
bool poll_active() { return epoll_fd.load(std::memory_order_relaxed) >= 0; }
int poll_descriptor() { return epoll_fd.load(std::memory_order_acquire); }

bool poll_dispatch(const PollEvents& events) {
  bool any = false;
  for (int k = 0, at = events.first; k < events.n; k++, at++) {
    const epoll_event& e = events.all[at < events.n ? at : at - events.n];
    if (e.data.u64 == kWakeCookie) {
      poll_wake_again();
      continue;
    }
    Descriptor* d = descriptor_of(static_cast<int>(e.data.u64));
    if (!d) continue;
    SpinGuard guard(d->lock);
    if (d->seen.load(std::memory_order_relaxed) >> 32 != e.data.u64 >> 32) continue;  // of an earlier life
    count_event(d, e.events);
    any |= happened(d, e.events, Whose::All);
    arm_again(d, static_cast<int>(e.data.u64), e.events);
  }
  return any;
}

void poll_wake() {
  uint64_t one = 1;
  raw_syscall(SYS_write, wake_fd.load(std::memory_order_relaxed), arg(&one), sizeof one);
}

FIBERTHREAD_IN_FORK_CHILD(Poller, poller, [](FiberRecord*) {
  own_fd_close(epoll_fd);
  own_fd_close(wake_fd);
  open_lock.reset();
  registrations.store(0);
  // The chunks are emptied but not unmapped: a handler that has forked may return into a call that has a pointer to notes.
  for (uint32_t n = chunks.load(); n--;)
    if (Descriptor* c = table[n].load()) raw_syscall(SYS_madvise, arg(c), kChunk * sizeof(Descriptor), 4 /* MADV_DONTNEED */);
})

}  // namespace fiberthread
