// SPDX-License-Identifier: MIT
// The poller. Fibers that wait for descriptors park here, and workers that have nothing else to run look at epoll for them.
//
// A wait is always the last part of the following loop. The kernel decides, and the poller only says when to ask again:
//
//     PollSeen seen = poll_seen(fd);              // before the try
//     r = a call that cannot block;               // recv(…, MSG_DONTWAIT), poll(…, 0)
//     if (r is EAGAIN) poll_wait_any(…), and try again
//
// A descriptor that becomes ready after the try ends the wait, because that is an event that `seen` does not count. Epoll reports edges, or
// each event once. So a wait without a try before it may last for ever, and the end of a wait promises nothing.
//
// Waits are exclusive or shared. An event ends the oldest of the exclusive waits for the same thing. Its caller takes what there is. If its
// next try is not EAGAIN (it got something, or an error, or gave up), it calls poll_pass(), because there may be more. An event ends all
// shared waits. Errors and hang-ups end all waits of both kinds.
//
// If a number is closed, or given to another file, a wait for it goes on for the file that it had, as on Linux. The poller keeps that file
// by a duplicate, until the caller lets it go (PollItem::kept).
//
// Fibers that may park (may_park()) may call these functions. Any thread may call poll_closing() and poll_closed(), even in a handler of
// the program. Waiting under Busy is allowed, and needed to learn of a signal before its handler runs.
//
// A worker that has nothing in its queues looks at epoll before it looks further. A worker that has something does so now and then. One of
// the workers that sleep, the *watcher*, sleeps in epoll_wait. The last worker to fall asleep becomes the watcher if there is none. No
// worker becomes it earlier while another worker gets events all the time, because the woken fibers would then run on two CPUs in turn.
// There is no watcher while all slots are in use. Where there is no watcher, sysmon is awake and looks at each of its ticks, or it sleeps
// on epoll itself. A caller that begins a wait without a watcher pokes sysmon, and so does a watcher that gets up.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// The state of a descriptor at some moment: which life of its number it is, and how many events it has had.
struct PollSeen {
  uint32_t life = 0;
  uint32_t events = 0;
  bool operator==(const PollSeen&) const = default;
};

enum class PollEnd {
  Ready,        // try again
  Closed,       // the number was closed or given to another file before the wait began, or that file could not be kept: do not try again
  TimedOut,     // the deadline has passed
  Interrupted,  // an interrupt of the mask is set, and still pending if the caller is Busy
  Refused,      // epoll does not take it (EPERM: a regular file; EBADF; no memory): wait in the kernel
};

// Returns the state of fd now. Where the poller has no room for a number, the result is always the same, and waits for it are refused.
PollSeen poll_seen(int fd);

// Passes an event on to the next exclusive wait, see above. Cheap when no fiber waits.
void poll_pass(int fd, uint32_t events);

// Makes all waits for fd try again, after a change that poll() may not show.
void poll_nudge(int fd);

// A descriptor to wait for. It stands on the waiting fiber's stack, or elsewhere, until the call returns.
struct PollItem {
  int fd = -1;          // negative: this item is skipped
  uint32_t events = 0;  // EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP and their kin as in poll(); errors and hang-ups always count
  PollSeen seen{};      // by poll_seen(number()), before the try
  bool exclusive = false;
  bool stays = false;  // it stays with its descriptor after an event, until poll_leave(). One such item is waited for at a time
  // The number that the poller has given to the file of `fd` when that was closed under the wait; -1: it has not. It is one of the library's
  // own until poll_let_go(). Changes only while `linked`, under the lock of the descriptor that the item then leaves.
  std::atomic<int> kept{-1};

  // The number to try, and to wait for.
  int number() const {
    int k = kept.load(std::memory_order_relaxed);
    return k >= 0 ? k : fd;
  }

  // For the poller.
  bool linked = false;  // under the descriptor's lock, as is the next one
  bool ended = false;   // it stays, and does not wait any more
  struct PollGroup* group = nullptr;
  FiberRecord* fiber = nullptr;
  PollItem* next = nullptr;
  PollItem* prev = nullptr;
};
// Waits until any of the descriptors has had an event, or is Closed. Refused: it has waited for none of them. (poll() always shows as ready
// what epoll refuses, so the try before would have succeeded.) Without descriptors, waits for the deadline or an interrupt. `deadline_ns` is
// on now_ns()'s clock, `interrupt_mask` has bits of FiberRecord::run.interrupts.
PollEnd poll_wait_any(PollItem* items, size_t n, uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0);

// Ends the stay of an item. The caller has made its try: a close that follows no longer concerns this wait.
void poll_leave(PollItem& item);
// Closes the file of PollItem::kept. A fiber that ends lets go of all of its own.
void poll_let_go(int kept);
void poll_let_go_all(const FiberRecord* keeper);

// Notes that a call that cannot block found nothing to read: EAGAIN. `seen` is from before that call.
void poll_was_empty(int fd, PollSeen seen);
// Returns true if that still holds. Then, at `seen`, poll() would show neither EPOLLIN nor an error, and an event will come with the next
// data. (Each event of this life was counted, and was for data or room only. Epoll would have reported with EPOLLERR what stays readable
// otherwise, such as queued errors.)
bool poll_is_empty(int fd, PollSeen seen);

// Room for the layer above. The first two members are zero at the beginning of each life of the number.
struct PollNotes {
  std::atomic<uint32_t> kind{0};
  std::atomic<uint32_t> version{0};
  std::atomic<uint32_t> receive{0}, send{0}, low_water{0};
  std::atomic<uint64_t> empty{0};  // for the poller: see poll_was_empty()
};
PollNotes* poll_notes(int fd);  // null if the poller has no room for fd

// poll_closing() is called when the number is about to be closed or replaced. It moves its waits to duplicates, and removes the registration.
// poll_closed() is called afterwards, because a fiber may have begun a wait between the two.
void poll_closing(int fd);
void poll_closed(int fd);
// These do the same for all numbers from first to last.
void poll_closing_range(unsigned first, unsigned last);
void poll_closed_range(unsigned first, unsigned last);
// Removes the registrations of the program's epoll descriptors that no fiber waits for. To look at such a descriptor takes from it what is not
// ready for the thread that looks. A signalfd in it may be ready for another thread.
void poll_release_epolls();
// Notes that another process may use our memory with descriptors of its own, as the child of a vfork does. Called before such a process is
// made.
void poll_memory_shared();

// ---- for the scheduler ----
constexpr int kPollEvents = 32;
struct PollEvents {
  int n = 0, first = 0;  // dispatched are all from `first` on, and then those from 0 on
  epoll_event all[kPollEvents];
};
uint32_t poll_descriptors();  // number of descriptors that are registered; only while metrics are wanted
// Calls visit(fd) for each descriptor that fibers wait for, until it returns false. Returns false then.
bool poll_each_waited(bool (*visit)(int fd));
bool poll_active();  // epoll is open, so there is something to look at
// Looks at epoll once, without sleeping. Returns true if it has made a fiber runnable. Under Busy, or in worker context.
bool poll_look();
// Sleeps until there are events, poll_wake(), or the deadline. `slack_ns`: the kernel ends the sleep later by so much.
void poll_sleep(PollEvents& events, uint64_t deadline_ns, uint64_t slack_ns);
bool poll_dispatch(const PollEvents& events);  // ends the waits for these events; true if it has made a fiber runnable
void poll_wake();                              // ends the watcher's sleep
int poll_descriptor();                         // epoll's descriptor, which is readable when there are events; -1: none

}  // namespace fiberthread
