// SPDX-License-Identifier: MIT
// How the scheduler takes its order from sched/explore/. All runnable fibers stand in the global queue.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "sched/arch/step.h"
#include "sched/explore/explore.h"
#include "sched/explore/step.h"
#include "sched/observe/deadlock.h"
#include "sched/observe/text.h"
#include "sched/observe/waits.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

// ns. So long may events from outside come before time jumps to the next timer. Where none can come, it jumps at once: a schedule of
// tests/explore/eventfd_count took 60 ms, and takes 2 (2 CPUs, November 2026).
constexpr uint64_t kOutside = 10'000'000;

uint32_t choose(FiberRecord* me, bool stop = false) {
  FiberRecord* at = global_queue.first();
  auto next = [](void* p) {
    auto** at = static_cast<FiberRecord**>(p);
    FiberRecord* f = *at;
    if (f) *at = f->run.queue_next;
    return f;
  };
  uint64_t due = next_timer();
  return explore_choose(me, next, &at, !stop && due != kNever && explore_may_fire(due), stop);
}

void fire_next_timer() {
  uint64_t due = next_timer();
  if (due == kNever) return;
  explore_jump(due);
  run_timers(due);
}

// ---- whether an event can come that no fiber causes ----

bool inherited(const struct stat& s) {
  for (int fd = 0; fd < 3; fd++) {
    struct stat first;
    if (raw_syscall(SYS_fstat, fd, arg(&first)) == 0 && first.st_dev == s.st_dev && first.st_ino == s.st_ino) return true;
  }
  return false;
}

// Returns true if only a process that has got it from this one can make the descriptor ready: an eventfd, a pipe without a name, or one of a pair
// of sockets.
bool is_own(int fd) {
  char path[48] = {}, file[32] = {};
  Text(path, sizeof path - 1) << "/proc/self/fd/" << static_cast<uint64_t>(fd);
  struct stat s;
  if (raw_syscall(SYS_readlinkat, AT_FDCWD, arg(path), arg(file), sizeof file - 1) <= 0 || raw_syscall(SYS_fstat, fd, arg(&s)) != 0 ||
      inherited(s))
    return false;
  if (!strcmp(file, "anon_inode:[eventfd]") || !strncmp(file, "pipe:[", 6)) return true;
  ucred peer{};
  sockaddr_un address;
  uint32_t size = sizeof peer, here = sizeof address, there = sizeof address;
  constexpr uint32_t kUnnamed = sizeof address.sun_family;
  return raw_syscall(SYS_getsockname, fd, arg(&address), arg(&here)) == 0 && here == kUnnamed && address.sun_family == AF_UNIX &&
         raw_syscall(SYS_getpeername, fd, arg(&address), arg(&there)) == 0 && there == kUnnamed &&
         raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, arg(&peer), arg(&size)) == 0 && peer.pid == raw_syscall(SYS_getpid);
}

// Returns true if the kernel may do something for the process in the background, and then write to an eventfd.
bool has_rings() {
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[4096 + 1];
  bool found = false;
  size_t kept = 0;
  for (long n; !found && (n = raw_syscall(SYS_read, fd, arg(text + kept), static_cast<long>(sizeof text - 1 - kept))) > 0;) {
    size_t size = kept + static_cast<size_t>(n);
    text[size] = 0;
    found = strstr(text, "[aio]") || strstr(text, "[io_uring]");
    kept = size < 16 ? size : 16;
    memmove(text, text + size - kept, kept);
  }
  raw_syscall(SYS_close, fd);
  return found;
}

bool has_child() {
  // __WALL: also those made by clone()
  return raw_syscall(SYS_waitid, P_ALL, 0, 0, WEXITED | WNOHANG | WNOWAIT | __WALL, 0) != -ECHILD;
}

// Called in worker context. Returns true if no descriptor that fibers wait for can become ready before a fiber runs.
bool nothing_comes() {
  uint32_t workers = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    if (!w->thread.initial && !w->thread.kernel_tid.load(std::memory_order_acquire)) continue;
    if (w->run.running.load(std::memory_order_seq_cst)) return false;  // its fiber is in the kernel
    workers++;
  }
  if (!poll_each_waited(is_own) || !no_other_thread(workers)) return false;
  // A child may have the descriptors too.
  return !has_child() && !has_rings();
}

bool can_be_stopped(FiberRecord* me) {
  return sched_started() && me && !me->run.kernel && !tls_busy && !tls_vforked && !me->run.bound.load(std::memory_order_relaxed);
}

}  // namespace

FiberRecord* explored_pick() {
  Worker* w = this_worker();
  if (w->run.post == post_park && in_cycle(w->run.previous, explore_waits_for_ever)) {
    explore_ends(ExploredEnd::Deadlock);
    report_cycle(w->run.previous, nullptr, 0);
    raw_syscall(SYS_exit_group, 1);
  }
  if (poll_active()) poll_look();
  for (;;) {
    uint32_t n = global_queue.size();
    if (!n) return nullptr;
    uint32_t i = choose(nullptr);
    if (FiberRecord* f = global_queue.take(i)) return f;
    fire_next_timer();
  }
}

bool explored_idle() {
  if (next_timer() == kNever) return false;
  if (poll_active() && !nothing_comes()) {
    pollfd p{poll_descriptor(), POLLIN, 0};
    timespec t{0, kOutside};
    if (raw_syscall(SYS_ppoll, arg(&p), 1, arg(&t), 0, 8) > 0) {
      explore_outside();
      if (poll_look()) return true;
    }
  }
  fire_next_timer();
  return true;
}

void explored_point(const ExplorePoint& point, bool gives_way) {
  FiberRecord* me = tls_current;
  if (!can_be_stopped(me)) return;
  if (step_is_open()) step_close();
  Busy busy;
  if (!me->run.worker->run.slot) return;
  explore_note(me, point);
  if (gives_way) explore_gives_way(me);
  for (;;) {
    if (poll_active()) poll_look();
    uint32_t others = global_queue.size(), i = choose(me);
    if (i == 0) return;
    if (i <= others) {
      FiberRecord* f = global_queue.take(i - 1);
      suspend(me, post_yield, f);
      return;
    }
    fire_next_timer();
  }
}

bool explored_window(bool stopped) {
  FiberRecord* me = tls_current;
  return can_be_stopped(me) && me->run.worker->run.slot && !global_queue.empty() && explore_window(stopped);
}

bool explored_stop(const ExplorePoint& access, uint8_t written) {
  FiberRecord* me = tls_current;
  if (!can_be_stopped(me)) return false;
  Busy busy;
  if (!me->run.worker->run.slot || !explore_stop(me, access, global_queue.size())) return false;
  uint32_t i = choose(me, true);
  // The instruction has read what is there now. It is made as a whole when the fiber goes on, so it must find that again.
  char* at = reinterpret_cast<char*>(access.object);
  char read[8];
  if (written) memcpy(read, at, written);
  suspend(me, post_yield, global_queue.take(i - 1));
  if (written) memcpy(at, read, written);
  return true;
}

bool explored_outside_may_come() { return timer_set() || signal_on_its_way() || has_child(); }

void* explored_start(void* argument) {
  void* (*start)(void*) = explore_begins(tls_current);
  if (explored_window(false)) begin_stepping();
  return start(argument);
}

}  // namespace fiberthread

using namespace fiberthread;

// Called by the stubs of preload/explore/ before the call `name` is made, whose first argument is `object` and which returns to `pc`. `how` is
// 1 if the call gives way to others, 2 at the point after the call, 3 after a call where no point is, and 4 if it is none and ends the process. Returns true, after the call, if the
// caller must begin to step in `pc`.
extern "C" [[gnu::visibility("default")]] bool fiberthread_explore_point(const char* name, uintptr_t object, uintptr_t pc, int how) {
  if (!exploring) return false;
  if (how == 4) {
    if (can_be_stopped(tls_current)) explore_fails(tls_current, pc);
    return false;
  }
  if (how != 3) explored_point({name, object, pc, how == 2}, how == 1);
  return how >= 2 && explored_window(false);
}

// For the library that sees accesses to memory.

// The calling fiber. Returns false if the caller is none that is explored.
extern "C" [[gnu::visibility("default")]] bool fiberthread_explore_fiber(ExploredFiber* f) {
  FiberRecord* me = tls_current;
  if (!exploring || !sched_started() || !me || me->run.kernel) return false;
  auto at = [](const char* p) { return reinterpret_cast<uintptr_t>(p); };
  f->number = explore_number(me);
  f->stack_low = at(me->memory.stack_low);
  f->stack_high = at(me->memory.stack_high);
  f->block_low = at(me->memory.block);
  f->block_high = f->block_low + me->memory.block_size;
  return true;
}

// Ends the process, because of this race.
extern "C" [[gnu::visibility("default")]] void fiberthread_explore_race(const Race* race) {
  if (exploring) explore_ends_by(*race);
}
