// SPDX-License-Identifier: MIT
// poll, select, epoll_wait and their kin. All are one loop. It asks the kernel, which does not wait; it waits in the poller for all of the
// descriptors; and it asks again. So the answers are the kernel's, errors included.
//
// A program's own epoll descriptor is waited for like any other: it is readable when it has something to tell. If several fibers wait for
// the same one, an event ends one wait. A fiber that has found something lets the next one look.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>

#include <new>

#include "sched/poller.h"
#include "sched/syscall.h"
#include "sched/scheduler.h"
#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal.h"
#include "shim/time.h"
#include "shim/user_memory.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

// Fortified programs call these.
extern "C" int __poll_chk(struct pollfd* fds, nfds_t n, int ms, size_t size);
extern "C" int __ppoll_chk(struct pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* set, size_t size);

namespace fiberthread {
namespace {

// A filter may allow the program's call, but not the one that asks without waiting.
long unless_refused(long r) { return r == -ENOSYS || r == -EPERM ? kInKernel : r; }

// Returns the deadline. 0: no time at all. Timespecs are valid.
uint64_t after_ms(int ms) {
  if (ms <= 0) return ms < 0 ? kNever : 0;
  return deadline_in(static_cast<uint64_t>(ms) * 1'000'000);
}
uint64_t after(const timespec* t) {
  if (!t) return kNever;
  return t->tv_sec || t->tv_nsec ? deadline_in(*t) : 0;
}
// Returns for the kernel what is left until the deadline. Null for kNever.
timespec* left_until(uint64_t deadline, timespec& t) {
  if (deadline == kNever) return nullptr;
  t = deadline ? time_until(deadline) : timespec{};
  return &t;
}
int left_ms(uint64_t deadline) {
  timespec t;
  if (!left_until(deadline, t)) return -1;
  return t.tv_sec > 2'000'000 ? 2'000'000'000 : static_cast<int>(t.tv_sec * 1000 + (t.tv_nsec + 999'999) / 1'000'000);
}

// Room for the items of poll_wait_any(). A few are on the stack, which may be small.
class Items {
 public:
  // Returns false without memory.
  bool reserve(size_t n) {
    if (n <= kFew) return true;
    size_t size = n * sizeof(PollItem);
    char* mem = map_memory(size, PROT_READ | PROT_WRITE);
    if (!mem) return false;
    items_ = reinterpret_cast<PollItem*>(mem);
    size_ = size;
    return true;
  }
  ~Items() {
    for (PollItem& i : *this)
      if (i.number() != i.fd) poll_let_go(i.number());
    if (size_) unmap_memory(items_, size_);
  }
  PollItem& add(int fd, uint32_t events) {
    PollItem& i = *new (&items_[n_++]) PollItem;
    i.fd = fd;
    i.events = events;
    i.exclusive = false;
    return i;
  }
  PollItem* begin() const { return items_; }
  PollItem* end() const { return items_ + n_; }
  size_t size() const { return n_; }

 private:
  static constexpr size_t kFew = 16;
  alignas(PollItem) char few_[kFew * sizeof(PollItem)];
  PollItem* items_ = reinterpret_cast<PollItem*>(few_);
  size_t n_ = 0, size_ = 0;
};

bool is_gone(const PollItem& i) { return i.fd >= 0 && poll_seen(i.number()).life != i.seen.life; }

// Returns true if a number was closed, or given to another file, before we waited for it. We return what the kernel says of closed numbers.
bool gone(const Items& items) {
  for (const PollItem& i : items)
    if (is_gone(i)) return true;
  return false;
}

// Returns true if a number was closed while we waited. As in the kernel, the wait then goes on for the file, and the next look is at what
// has the number by then.
bool any_kept(const Items& items) {
  for (const PollItem& i : items)
    if (i.number() != i.fd) return true;
  return false;
}

// Returns true if a read has just found the one descriptor empty, as in many servers that then wait for the next request. The kernel need
// not be asked then.
bool known_empty(const Items& items) {
  if (items.size() != 1) return false;
  const PollItem& i = *items.begin();
  return i.fd >= 0 && i.events && !(i.events & ~uint32_t{POLLIN | POLLRDNORM}) && poll_is_empty(i.number(), i.seen);
}

// Waits under Busy. `ask` returns what the system call returns; 0 means not yet. `closed` gives the result when a descriptor is gone. Sets
// `parked` if the fiber has waited.
template <class Ask, class Closed>
long ask_and_wait(FiberRecord* me, Items& items, uint64_t deadline, bool& parked, Ask ask, Closed closed) {
  for (;;) {
    for (PollItem& i : items)
      if (i.fd >= 0) i.seen = poll_seen(i.number());
    long r = known_empty(items) ? 0 : ask();
    PollEnd end = PollEnd::Ready;
    if (r == 0) {
      end = poll_wait_any(items.begin(), items.size(), deadline, kInterruptSafePoint | wait_interrupts(me));
      OwnWait::parked();
      parked = true;
    }
    if (end == PollEnd::Refused) return kInKernel;
    if (end == PollEnd::Closed || (r == 0 && end == PollEnd::Ready && gone(items))) return closed(items);
    long over = end == PollEnd::TimedOut ? 0 : -EINTR;
    if (end == PollEnd::Interrupted && !cancel_pending(me) && !signal_is_pending(me)) {
      if (end_pending(me)) over = -ECANCELED;
      else if (!signal_is_to_be_shown(me)) end = PollEnd::Ready;
    }
    // What came at the same time goes before the end of the wait.
    if (r == 0 && end != PollEnd::Ready) {
      r = ask();
      if (r == 0) return over;
    }
    if (r == 0) continue;
    for (PollItem& i : items)
      if (i.exclusive) poll_pass(i.number(), i.events);
    return r;
  }
}

// Waits with the mask, if there is one. A cancellation point.
template <class Ask, class Closed>
long wait_parked(Items& items, uint64_t deadline, const uint64_t* mask, Ask ask, Closed closed) {
  test_cancel();
  FiberRecord* me = self();
  for (;;) {
    HandlersBefore handlers;
    bool parked = false;
    long r;
    if (mask) {
      uint64_t old = signal_begin_mask(me, *mask, MaskedWait::Parks);
      r = ask_and_wait(me, items, deadline, parked, ask, closed);
      signal_end_mask(me, old, r == -EINTR);
    } else {
      Busy busy;
      r = ask_and_wait(me, items, deadline, parked, ask, closed);
    }
    count_events(r - parked);  // a park is counted as a switch
    if (r != -EINTR) return r;
    test_cancel();
    if (!handlers.none_since()) return r;
    if (signal_show_pending()) return kInKernel;
  }
}

// Serves a call that does not wait and has found nothing. A pending signal that the mask lets in ends it all the same. (epoll_pwait
// differs.)
long let_in(const uint64_t* mask) {
  if (!mask) return 0;
  FiberRecord* me = self();
  uint64_t old = signal_begin_mask(me, *mask, MaskedWait::Parks);
  return signal_end_mask(me, old, signal_is_pending(me)) ? -EINTR : 0;
}

// What serves a call. Bound fibers wait in the kernel.
enum class ServedBy { Parking, Kernel, Libc };
ServedBy served_by() {
  signal_show_pending();
  if (may_park() || give_up_habit()) return ServedBy::Parking;
  return signal_mask_is_ours() ? ServedBy::Kernel : ServedBy::Libc;
}
// Copies the mask, if there is one.
ServedBy served_by(const sigset_t* set, uint64_t& mask) {
  if (set) memcpy(&mask, set, sizeof mask);
  return served_by();
}

// ---- poll ----

// Waits for the `n` descriptors at `fds`, which the kernel has not seen yet.
long poll_parked(pollfd* fds, nfds_t n, uint64_t deadline, const uint64_t* mask) {
  auto ask = [&]() -> long {
    return unless_refused(at_once([&] {
      timespec none{};
      return raw_syscall(SYS_ppoll, arg(fds), static_cast<long>(n), arg(&none), 0, 8);
    }));
  };
  Items items;
  if (deadline == 0 || n > 1024) {  // more than there may be descriptors: the kernel says so
    test_cancel();
    long r = ask();
    count_events(r);
    if (r != 0) return r;
    if (deadline == 0) return let_in(mask);
  }
  if (!items.reserve(n)) return kInKernel;
  for (nfds_t done = 0; done < n;) {
    pollfd some[16];
    nfds_t k = n - done < 16 ? n - done : 16;
    if (fiberthread_user_copy(some, fds + done, k * sizeof *some) != 0) return -EFAULT;
    for (nfds_t i = 0; i < k; i++) items.add(some[i].fd, static_cast<uint16_t>(some[i].events));
    done += k;
  }
  auto closed = [&](Items& all) -> long {
    long r = ask();
    if (r < 0) return r;
    for (nfds_t i = 0; i < n; i++) {
      if (!is_gone(all.begin()[i])) continue;
      if (!fds[i].revents) r++;
      fds[i].revents = POLLNVAL;
    }
    return r;
  };
  return wait_parked(items, deadline, mask, ask, closed);
}

// ---- select ----

constexpr int kMostBits = FD_SETSIZE;
struct Sets {
  unsigned long words[3][kMostBits / (8 * sizeof(long))];
};

long select_parked(int n, fd_set* const user[3], uint64_t deadline, const uint64_t* mask) {
  constexpr int kBits = 8 * sizeof(long);
  size_t size = static_cast<size_t>((n + kBits - 1) / kBits) * sizeof(long);
  Sets wanted, found;
  for (int k = 0; k < 3; k++)
    if (user[k] && fiberthread_user_copy(wanted.words[k], user[k], size) != 0) return -EFAULT;
  auto ask = [&]() -> long {
    auto set = [&](int k) { return user[k] ? arg(found.words[k]) : 0; };
    return unless_refused(at_once([&] {
      timespec none{};
      for (int k = 0; k < 3; k++)
        if (user[k]) memcpy(found.words[k], wanted.words[k], size);
      return raw_syscall(SYS_pselect6, n, set(0), set(1), set(2), arg(&none), 0);
    }));
  };
  Items items;
  // In the midst of a call, a number that is closed is ready for all that was asked of it. (Before 5.17, the kernel passes over it.)
  auto ask_again = [&]() -> long {
    long r = ask();
    if (r != -EBADF || !any_kept(items)) return r;
    Sets closed{};
    for (const PollItem& i : items) {
      if (raw_syscall(SYS_fcntl, i.fd, F_GETFD) >= 0) continue;
      unsigned long bit = 1ul << i.fd % kBits;
      for (int k = 0; k < 3; k++) {
        if (!user[k]) continue;
        closed.words[k][i.fd / kBits] |= wanted.words[k][i.fd / kBits] & bit;
        wanted.words[k][i.fd / kBits] &= ~bit;
      }
    }
    if ((r = ask()) < 0) return r;
    for (int k = 0; k < 3; k++)
      for (size_t w = 0; user[k] && w < size / sizeof(long); w++) {
        found.words[k][w] |= closed.words[k][w];
        r += __builtin_popcountl(closed.words[k][w]);
      }
    return r;
  };
  auto bits = [&](int fd) {
    uint32_t events = 0;
    for (int k = 0; k < 3; k++)
      if (user[k] && wanted.words[k][fd / kBits] >> fd % kBits & 1) events |= k == 0 ? POLLIN : k == 1 ? POLLOUT : POLLPRI;
    return events;
  };
  long r;
  if (deadline == 0) {
    test_cancel();
    r = ask();
    count_events(r);
    if (r == 0) r = let_in(mask);
  } else {
    size_t count = 0;
    for (int fd = 0; fd < n; fd++) count += bits(fd) != 0;
    if (!items.reserve(count)) return kInKernel;
    for (int fd = 0; fd < n; fd++)
      if (uint32_t events = bits(fd)) items.add(fd, events);
    r = wait_parked(items, deadline, mask, ask_again, [](Items&) -> long { return -EBADF; });
  }
  if (r < 0) return r;
  for (int k = 0; k < 3; k++)
    if (user[k] && fiberthread_user_copy(user[k], found.words[k], size) != 0) return -EFAULT;
  return r;
}

// ---- epoll ----

long epoll_parked(int fd, epoll_event* events, int n, uint64_t deadline, const uint64_t* mask) {
  Items items;
  PollItem& item = items.add(fd, EPOLLIN);
  item.exclusive = true;
  auto ask = [&]() -> long {
    return unless_refused(at_once([&] { return raw_syscall(SYS_epoll_pwait, item.number(), arg(events), n, 0, 0, 8); }));
  };
  if (deadline == 0) {
    test_cancel();
    long r = ask();
    count_events(r);
    return r;
  }
  return wait_parked(items, deadline, mask, ask, [](Items&) -> long { return -EBADF; });
}

// `call` is the program's own.
template <class Call>
int epoll_served(ServedBy by, int fd, epoll_event* events, int n, uint64_t deadline, const uint64_t* mask, Call call) {
  bool own = by == ServedBy::Parking && deadline != 0 && !mask && OwnWait::begin();
  long r = by == ServedBy::Parking && !own ? epoll_parked(fd, events, n, deadline, mask) : kInKernel;
  if (r != kInKernel) return static_cast<int>(with_errno(r));
  int got = despite_others(call);
  if (!own) return got;
  OwnWait::end();  // keeps errno
  count_events(got);
  if (got < 0 && errno == EINTR && end_pending(tls_current)) errno = ECANCELED;
  return got;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int poll(struct pollfd* fds, nfds_t n, int ms) {
  ServedBy by = served_by();
  if (by == ServedBy::Libc) return for_a_time(ms, [&] { return REAL(poll)(fds, n, ms); });
  uint64_t deadline = after_ms(ms);
  long r = by == ServedBy::Parking ? poll_parked(fds, n, deadline, nullptr) : kInKernel;
  return r == kInKernel ? despite_others([&] { return REAL(poll)(fds, n, left_ms(deadline)); }) : static_cast<int>(with_errno(r));
}
FIBERTHREAD_ALIAS(__poll, poll);

FIBERTHREAD_EXPORT int __poll_chk(struct pollfd* fds, nfds_t n, int ms, size_t size) {
  return n > size / sizeof *fds ? REAL(__poll_chk)(fds, n, ms, size) : poll(fds, n, ms);
}

FIBERTHREAD_EXPORT int ppoll(struct pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* set) {
  uint64_t mask = 0;
  ServedBy by = served_by(set, mask);
  if (by == ServedBy::Libc) return for_a_time(timeout, [&] { return REAL(ppoll)(fds, n, timeout, set); });
  if (timeout && (!valid(*timeout) || timeout->tv_sec < 0)) return static_cast<int>(with_errno(-EINVAL));
  uint64_t deadline = after(timeout);
  long r = by == ServedBy::Parking ? poll_parked(fds, n, deadline, set ? &mask : nullptr) : kInKernel;
  timespec t;
  if (r != kInKernel) return static_cast<int>(with_errno(r));
  return despite_others([&] {
    timespec* left = left_until(deadline, t);
    if (!set) return REAL(ppoll)(fds, n, left, nullptr);
    return static_cast<int>(with_errno(signal_masked_call(mask, SYS_ppoll, arg(fds), static_cast<long>(n), arg(left), arg(&mask), 8)));
  });
}

FIBERTHREAD_EXPORT int __ppoll_chk(struct pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* set, size_t size) {
  return n > size / sizeof *fds ? REAL(__ppoll_chk)(fds, n, timeout, set, size) : ppoll(fds, n, timeout, set);
}

FIBERTHREAD_EXPORT int select(int n, fd_set* r, fd_set* w, fd_set* e, timeval* timeout) {
  ServedBy by = served_by();
  timespec t;
  if (timeout) t = {timeout->tv_sec + timeout->tv_usec / 1'000'000, timeout->tv_usec % 1'000'000 * 1000};
  if (by == ServedBy::Libc || n < 0 || n > kMostBits)
    return for_a_time(timeout ? &t : nullptr, [&] { return REAL(select)(n, r, w, e, timeout); });
  if (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)) return static_cast<int>(with_errno(-EINVAL));
  uint64_t deadline = after(timeout ? &t : nullptr);
  fd_set* const sets[] = {r, w, e};
  long got = by == ServedBy::Parking ? select_parked(n, sets, deadline, nullptr) : kInKernel;
  if (got == kInKernel) got = kernel_result(despite_others([&] { return REAL(pselect)(n, r, w, e, left_until(deadline, t), nullptr); }));
  if (timeout && deadline != 0 && deadline != kNever) {  // Linux tells what is left of it
    left_until(deadline, t);
    *timeout = {t.tv_sec, t.tv_nsec / 1000};
  }
  return static_cast<int>(with_errno(got));
}
FIBERTHREAD_ALIAS(__select, select);

FIBERTHREAD_EXPORT int pselect(int n, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, const sigset_t* set) {
  uint64_t mask = 0;
  ServedBy by = served_by(set, mask);
  if (by == ServedBy::Libc || (!set && (n < 0 || n > kMostBits)))
    return for_a_time(timeout, [&] { return REAL(pselect)(n, r, w, e, timeout, set); });
  if (timeout && (!valid(*timeout) || timeout->tv_sec < 0)) return static_cast<int>(with_errno(-EINVAL));
  uint64_t deadline = after(timeout);
  fd_set* const sets[] = {r, w, e};
  long got = by == ServedBy::Parking && n >= 0 && n <= kMostBits ? select_parked(n, sets, deadline, set ? &mask : nullptr) : kInKernel;
  timespec t;
  if (got != kInKernel) return static_cast<int>(with_errno(got));
  return despite_others([&] {
    timespec* left = left_until(deadline, t);
    if (!set) return REAL(pselect)(n, r, w, e, left, nullptr);
    struct {
      const uint64_t* set;
      size_t size;
    } last{&mask, 8};
    return static_cast<int>(with_errno(signal_masked_call(mask, SYS_pselect6, n, arg(r), arg(w), arg(e), arg(left), arg(&last))));
  });
}

FIBERTHREAD_EXPORT int epoll_wait(int fd, struct epoll_event* events, int n, int ms) {
  ServedBy by = served_by();
  if (by == ServedBy::Libc) return for_a_time(ms, [&] { return REAL(epoll_wait)(fd, events, n, ms); });
  uint64_t deadline = after_ms(ms);
  return epoll_served(by, fd, events, n, deadline, nullptr, [&] { return REAL(epoll_wait)(fd, events, n, left_ms(deadline)); });
}

FIBERTHREAD_EXPORT int epoll_pwait(int fd, struct epoll_event* events, int n, int ms, const sigset_t* set) {
  uint64_t mask = 0;
  ServedBy by = served_by(set, mask);
  if (by == ServedBy::Libc) return for_a_time(ms, [&] { return REAL(epoll_pwait)(fd, events, n, ms, set); });
  uint64_t deadline = after_ms(ms);
  return epoll_served(by, fd, events, n, deadline, set ? &mask : nullptr, [&] {
    int left = left_ms(deadline);
    if (!set) return REAL(epoll_wait)(fd, events, n, left);
    return static_cast<int>(with_errno(signal_masked_call(mask, SYS_epoll_pwait, fd, arg(events), n, left, arg(&mask), 8)));
  });
}

namespace {
// glibc 2.34 has no such name. There, only syscall() makes the call.
int real_epoll_pwait2(int fd, struct epoll_event* events, int n, const timespec* timeout, const sigset_t* set) {
  static const bool named = find_real("epoll_pwait2");
  if (named) return REAL(epoll_pwait2)(fd, events, n, timeout, set);
  return static_cast<int>(with_errno(program_syscall(SYS_epoll_pwait2, fd, arg(events), n, arg(timeout), arg(set), 8)));
}
}  // namespace

FIBERTHREAD_EXPORT int epoll_pwait2(int fd, struct epoll_event* events, int n, const timespec* timeout, const sigset_t* set) {
  uint64_t mask = 0;
  ServedBy by = served_by(set, mask);
  if (by == ServedBy::Libc) return for_a_time(timeout, [&] { return real_epoll_pwait2(fd, events, n, timeout, set); });
  timespec t;
  if (timeout && !copy_user(&t, timeout)) return static_cast<int>(with_errno(-EFAULT));
  if (timeout && (!valid(t) || t.tv_sec < 0)) return static_cast<int>(with_errno(-EINVAL));
  uint64_t deadline = after(timeout ? &t : nullptr);
  return epoll_served(by, fd, events, n, deadline, set ? &mask : nullptr, [&] {
    timespec* left = left_until(deadline, t);
    if (!set) return real_epoll_pwait2(fd, events, n, left, nullptr);
    return static_cast<int>(with_errno(signal_masked_call(mask, SYS_epoll_pwait2, fd, arg(events), n, arg(left), arg(&mask), 8)));
  });
}
