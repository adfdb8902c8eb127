// SPDX-License-Identifier: MIT
// On which CPU the kernel runs a worker that is woken or made.
//
// A Linux guest of KVM takes an idle CPU for one that the host has stopped, and does not choose it. So a thread that is woken or made by one
// that goes on is queued behind it on the same CPU, and runs at the kernel's next tick: 2 ms later on average, while another CPU is idle.
// (NPTL's threads are too.) There, while some CPU is idle, the set of CPUs of a worker leaves out the CPU of its waker until the worker has
// woken up.
#include <fcntl.h>
#include <string.h>

#include "sched/arch/arch.h"
#include "sched/own_descriptors.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

namespace {

// Odd while sysmon's set of CPUs is not the process's. A reader that finds the same even value before and after its call had the right set:
// the kernel changes the set between the two increments. (seq_cst, for a system call is no acquire and no release.)
std::atomic<uint32_t> set_version{0};

// Worker::Place::state
constexpr uint32_t kWillMove = 1;  // another thread is about to change the set
constexpr uint32_t kMoved = 2;     // it is done with that

constexpr uint32_t kStoppedUs = 150;  // an idle CPU of a guest is stopped after a while: KVM waits for up to 200 us before

std::atomic<bool> moves{false};  // relaxed: a late reader makes one call more
// The set of CPUs that the process began with, if that is all that its cpuset allows, and 0 bytes otherwise.
uint64_t whole[16];
long whole_size = 0;

std::atomic<int> uptime{-1};                 // /proc/uptime
std::atomic<bool> others_idle{true};         // when sysmon last measured, some CPU was idle for at least half of the time
constexpr uint64_t kMeasured = 100'000'000;  // ns from one such look to the next
constexpr uint64_t kYoung = 2'000'000;       // ns until sysmon asks where it is: many processes have ended by then

// Sysmon's own. place_prepare() is called before it starts.
uint64_t next_look = 0;
bool asked = false;

struct Uptime {
  uint64_t passed = 0, idle = 0;  // in 1/100 s, the latter of all CPUs
} last;

// Reads a line such as "31075.66 61203.04". Without /proc: zeros.
Uptime read_uptime() {
  char text[64];
  long got = raw_syscall(SYS_pread64, uptime, arg(text), sizeof text - 1, 0);
  const char *p = text, *end = text + (got > 0 ? got : 0);
  auto number = [&] {
    uint64_t n = 0;
    for (; p < end && *p != ' ' && *p != '\n'; p++)
      if (*p != '.') n = n * 10 + static_cast<uint64_t>(*p - '0');
    if (p < end) p++;
    return n;
  };
  Uptime u;
  u.passed = number();
  u.idle = number();
  return u;
}

}  // namespace

// Called before there are other threads, since then a table of descriptors grows at once.
void place_prepare() {
  moves.store(false, std::memory_order_relaxed);
  set_version.store(0, std::memory_order_relaxed);  // a fork may have come in between
  next_look = 0;
  asked = false;
  last = {};
  if (uptime < 0 && is_guest()) own_fd_take(raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/uptime"), O_RDONLY | O_CLOEXEC), uptime);
}

namespace {

// Returns true if the process has a filter of system calls, or if /proc does not tell. Filters of services often end the process for
// sched_setaffinity(), which most programs do not call.
bool has_filter() {
  char text[4096];
  long n = raw_syscall(SYS_pread64, sysmon_proc_status(), arg(text), sizeof text - 1, 0);
  if (n <= 0) return true;
  text[n] = 0;
  constexpr char kNone[] = "\nSeccomp:\t0\n";
  return !strstr(text, kNone);
}

// A set that was asked for keeps a thread from CPUs that its cpuset gets later. So a worker that had all of its cpuset asks for all CPUs
// that there can be.
void begin() {
  if (!shuns_idle_cpus() || filtered.load(std::memory_order_relaxed) || has_filter()) return;
  moves.store(true, std::memory_order_relaxed);
  uint64_t all[16], allowed[16];
  memset(all, 0xff, sizeof all);
  long n = raw_syscall(SYS_sched_getaffinity, 0, sizeof whole, arg(whole));
  // Sysmon has all CPUs for a moment, the end of which process_cpus() awaits.
  set_version.fetch_add(1, std::memory_order_seq_cst);
  bool may = n > 0 && raw_syscall(SYS_sched_setaffinity, 0, n, arg(all)) == 0;
  if (may) {
    if (raw_syscall(SYS_sched_getaffinity, 0, sizeof allowed, arg(allowed)) == n && memcmp(whole, allowed, static_cast<size_t>(n)) == 0)
      whole_size = n;
    else raw_syscall(SYS_sched_setaffinity, 0, n, arg(whole));
  }
  set_version.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace

long process_cpus(void* set, long size) {
  for (int i = 0;; i++) {
    uint32_t version = set_version.load(std::memory_order_seq_cst);
    long n = raw_syscall(SYS_sched_getaffinity, sysmon_tid(), size, arg(set));
    if (!(version & 1) && version == set_version.load(std::memory_order_seq_cst)) return n;
    SpinLock::pause(i);  // for three system calls
  }
}

void place_note(Worker* w) {
  if (!moves.load(std::memory_order_relaxed)) return;
  raw_syscall(SYS_getcpu, arg(&w->place.cpu), 0, 0);
  w->place.since = cycles();
}

void place_look(uint64_t now) {
  if (uptime < 0 || now < next_look) return;
  bool young = !next_look;
  next_look = now + (young ? kYoung : kMeasured);
  if (young) return;
  if (!asked) {
    asked = true;
    return begin();
  }
  if (!moves.load(std::memory_order_relaxed)) return;
  if (has_filter()) return moves.store(false, std::memory_order_relaxed);  // made by an instruction that we have not seen
  Uptime u = read_uptime();
  if (last.passed && u.passed > last.passed)
    others_idle.store(2 * (u.idle - last.idle) >= u.passed - last.passed, std::memory_order_relaxed);
  last = u;
}

// A caller that is no worker and no fiber is sysmon, which goes back to sleep: the kernel may run the worker on sysmon's own CPU. Where no CPU
// is idle, the worker would only compete with another program.
void will_move(Worker* w) {
  if (moves.load(std::memory_order_relaxed) && (tls_worker || tls_current) && others_idle.load(std::memory_order_relaxed) &&
      !filtered.load(std::memory_order_relaxed))
    w->place.state.store(kWillMove, std::memory_order_relaxed);  // published by the idle lock, or by clone()
}

void move_elsewhere(Worker* w) {
  Worker::Place& place = w->place;
  if (place.state.load(std::memory_order_relaxed) != kWillMove) return;
  uint32_t here;
  uint64_t others[16], any = 0;
  long n = raw_syscall(SYS_getcpu, arg(&here), 0, 0);
  if (n == 0 && (place.cpu == here || cycles() - place.since > kStoppedUs * cycles_per_us))
    n = raw_syscall(SYS_sched_getaffinity, w->thread.tid, sizeof place.cpus, arg(place.cpus));
  if (n > 0) {
    for (uint32_t i = 0; i < static_cast<unsigned long>(n) / 8; i++)
      any |= others[i] = place.cpus[i] & ~(here / 64 == i ? uint64_t{1} << here % 64 : 0);
    if (!any || raw_syscall(SYS_sched_setaffinity, w->thread.tid, n, arg(others)) != 0) n = 0;
  }
  if (n > 0 && n == whole_size && memcmp(place.cpus, whole, static_cast<size_t>(n)) == 0) memset(place.cpus, 0xff, static_cast<size_t>(n));
  place.size = n > 0 ? n : 0;
  place.state.store(kMoved, std::memory_order_release);
}

void move_back_slow(Worker* w) {
  Worker::Place& place = w->place;
  for (int i = 0; place.state.load(std::memory_order_acquire) == kWillMove; i++) SpinLock::pause(i);  // for three system calls
  if (place.size) raw_syscall(SYS_sched_setaffinity, 0, place.size, arg(place.cpus));
  place.state.store(0, std::memory_order_relaxed);
}

}  // namespace fiberthread
