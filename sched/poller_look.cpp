// SPDX-License-Identifier: MIT
// How a worker looks at the poller's epoll, and sleeps there. An old kernel or a filter may refuse the better calls.
#include <poll.h>
#include <time.h>

#include "sched/poller.h"
#include "sched/syscall.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

std::atomic<bool> no_pwait2{false};  // an old kernel, or a filter, refuses it

bool refused(long r) { return r == -ENOSYS || r == -EPERM; }

// Tries two system calls: a filter allows the one that libc makes for epoll_wait(), and may refuse the other.
long look_at_epoll(int ep, PollEvents& events, int ms) {
  long n = raw_syscall(SYS_epoll_pwait, ep, arg(events.all), kPollEvents, ms, 0, 8);
#ifdef SYS_epoll_wait
  if (refused(n)) n = raw_syscall(SYS_epoll_wait, ep, arg(events.all), kPollEvents, ms);
#endif
  return n;
}

// Epolls that watch one listening socket are ready at the same time, always in the same order, and the fiber that comes first takes all
// connections. So they have turns to be the first.
void set_events(PollEvents& events, long n) {
  static std::atomic<uint32_t> turn{0};  // relaxed: any order will do
  events.n = n > 0 ? static_cast<int>(n) : 0;
  // Mixed: were every second look one of losers that go on waiting, only every second epoll would have its turns.
  events.first = n > 1 ? static_cast<int>((turn.fetch_add(1, std::memory_order_relaxed) * 2654435761u >> 16) % static_cast<uint32_t>(n))
                       : 0;
}
}  // namespace

bool poll_look() {
  int ep = poll_descriptor();
  if (ep < 0) return false;
  PollEvents events;
  if (Worker* w = this_worker()) w->counts.polls++;
  else statistics.polls.fetch_add(1, std::memory_order_relaxed);
  long n = look_at_epoll(ep, events, 0);
  set_events(events, n);
  return events.n && poll_dispatch(events);
}

void poll_sleep(PollEvents& events, uint64_t deadline, uint64_t slack) {
  int ep = poll_descriptor();
  long n;
  if (deadline == kNever) {
    n = look_at_epoll(ep, events, -1);
  } else {
    uint64_t now = now_ns(), left = deadline > now ? begin_of_slack(deadline, slack, now) - now : 0;
    timespec t{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    n = no_pwait2.load(std::memory_order_relaxed) ? -ENOSYS
                                                  : raw_syscall(SYS_epoll_pwait2, ep, arg(events.all), kPollEvents, arg(&t), 0, 8);
    if (refused(n)) {  // two calls are as exact
      no_pwait2.store(true, std::memory_order_relaxed);
      pollfd p{ep, POLLIN, 0};
      n = raw_syscall(SYS_ppoll, arg(&p), 1, arg(&t), 0, 8);
      if (n > 0) n = look_at_epoll(ep, events, 0);
    }
  }
  set_events(events, n);
}

}  // namespace fiberthread
