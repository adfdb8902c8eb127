// SPDX-License-Identifier: MIT
// The poller: fibers that wait for descriptors park here, and whoever has nothing else to run looks at epoll for them.
//
// A wait is always the last part of the same loop, in which the kernel decides and the poller only says when to ask again:
//
//     PollSeen seen = poll_seen(fd);              // before the try
//     r = a call that cannot block;               // recv(…, MSG_DONTWAIT), poll(…, 0)
//     if (r is EAGAIN) poll_wait(fd, EPOLLIN, seen, …), and try again
//
// What becomes ready after the try ends the wait: it is an event that `seen` does not count. Events are edges, or told of once, so
// a wait without a try before it may last for ever, and the end of a wait promises nothing.
//
// Waits are exclusive or shared. Of the exclusive ones for the same thing an event ends one, the oldest, whose caller shall
// take what there is: if its next try is not EAGAIN (it got something, or an error, or gave up), it calls poll_pass(), as
// there may be more. An event ends all shared ones. Errors, hang-ups and close end all of both kinds.
//
// Who may call: fibers that may park (may_park()), but poll_closing() and poll_closed() anybody, even in a handler of the
// program. Waiting under Busy is allowed, and needed to learn of a signal before its handler runs.
//
// Who looks. A worker that has nothing in its queues, before it looks further, and every now and then one that has. Of those
// that sleep one, the *watcher*, does so in epoll_wait: at the latest the last to fall asleep, but not while another worker
// harvests events all the time, since what comes would then run on two CPUs in turn, and not while all slots are in use. Where
// there is no watcher, sysmon is awake and looks at each of its ticks, or sleeps on epoll itself: who begins a wait without a
// watcher pokes it, and so does a watcher that gets up.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// What was known of a descriptor at some moment: which life of its number, and how many events it has had.
struct PollSeen {
  uint32_t life = 0;
  uint32_t events = 0;
  bool operator==(const PollSeen&) const = default;
};

enum class PollEnd {
  Ready,        // try again
  Closed,       // the number was closed or given to another file since `seen`: do not try again, it may be anybody's
  TimedOut,     // the deadline has passed
  Interrupted,  // an interrupt of the mask is set, and still pending if the caller is Busy
  Refused,      // epoll does not take it (EPERM: a regular file; EBADF; no memory): wait in the kernel
};

// A number that the poller has no room for gives always the same, and its waits are refused.
PollSeen poll_seen(int fd);

// `events`: EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP and their kin as of poll(); errors and hang-ups always count.
// `deadline_ns` on now_ns()'s clock; `interrupt_mask` of FiberRecord::run.interrupts. Exclusive.
PollEnd poll_wait(int fd, uint32_t events, PollSeen seen, uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0);
// See above. Cheap when nobody waits.
void poll_pass(int fd, uint32_t events);

// Something has happened to it that poll() may not show: all its waits try again.
void poll_nudge(int fd);

// Several at once. On the stack of who waits, or wherever it stays until the call returns.
struct PollItem {
  int fd = -1;  // negative ones are passed over
  uint32_t events = 0;
  PollSeen seen{};  // by poll_seen(), before the try
  bool exclusive = false;

  // The poller's.
  bool queued = false;  // under the descriptor's lock
  struct PollGroup* group = nullptr;
  PollItem* next = nullptr;
  PollItem* prev = nullptr;
};
// Returns when any of them has had an event, or was closed (Closed, if there was no other reason). With Refused, none of
// them is waited for: what epoll refuses is always ready to poll(), so a try before would not have come to a wait.
// No descriptors at all: a wait for the deadline or an interrupt.
PollEnd poll_wait_any(PollItem* items, size_t n, uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0);

// A call that cannot block found nothing to read there: EAGAIN. `seen` is of before it.
void poll_was_empty(int fd, PollSeen seen);
// True if that holds: so at `seen`, poll() would not show EPOLLIN, nor an error, and an event will tell of what comes. (Each
// event of this life has been counted, and was for data or room only. What stays readable otherwise, as queued errors do, has
// been told of with EPOLLERR.)
bool poll_is_empty(int fd, PollSeen seen);

// Room for the layer above; the first two are zero at the beginning of each life of the number. Null without room.
struct PollNotes {
  std::atomic<uint32_t> kind{0};
  std::atomic<uint32_t> version{0};
  std::atomic<uint32_t> receive{0}, send{0}, low_water{0};
  std::atomic<uint64_t> empty{0};  // the poller's: see poll_was_empty()
};
PollNotes* poll_notes(int fd);

// The number is about to be closed or replaced, by whomever: waits end as Closed, and its registration goes. Afterwards, the
// other is called: somebody may have begun a wait between the two.
void poll_closing(int fd);
void poll_closed(int fd);
// From now on there may be a process with our memory, and descriptors of its own.
void poll_memory_shared();
// The same for all numbers from first to last.
void poll_closing_range(unsigned first, unsigned last);
void poll_closed_range(unsigned first, unsigned last);

// ---- for the scheduler ----
constexpr int kPollEvents = 32;
struct PollEvents {
  int n = 0;
  epoll_event all[kPollEvents];
};
bool poll_active();  // there is something to look at
// Busy, or worker context. True if it has made a fiber runnable.
bool poll_look();
// Sleeps until there are events, poll_wake(), or the deadline.
void poll_sleep(PollEvents& events, uint64_t deadline_ns);
bool poll_dispatch(const PollEvents& events);
void poll_wake();       // ends the watcher's sleep
int poll_descriptor();  // epoll's own, which is readable when there are events; -1 without

}  // namespace fiberthread
