// SPDX-License-Identifier: MIT
// Sysmon: a kernel thread that looks after the workers. It runs timers that no worker looks at, wakes idle workers for queued work that no
// worker comes to, and takes the slot of a worker that sleeps in the kernel.
//
// It takes no libc lock, ever: a preempted fiber may hold any of them.
//
// The hand-over. Worker, entering scheduler code:     Sysmon:
//     in_sched = 1                                        revoked: kKept → kAsked by CAS
//     revoked?  kAsked → kKept by CAS: keep the slot      membarrier
//               kTaken: the slot is gone; → kKept         in_sched == 0 and heartbeat as seen?  kAsked → kTaken by CAS
//     leaving: in_sched = 0                               else kAsked → kKept by CAS
// The CAS decides. If a worker has entered before and read kKept, the membarrier makes sysmon see its in_sched.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "sched/accounting.h"
#include "sched/asleep.h"
#include "sched/chaos.h"
#include "sched/clock.h"
#include "sched/explore/explore.h"
#include "sched/life/fork.h"
#include "sched/observe/cycles.h"
#include "sched/observe/deadlock.h"
#include "sched/observe/dumper.h"
#include "sched/observe/metrics.h"
#include "sched/embedder.h"
#include "sched/memory/block.h"
#include "sched/own_descriptors.h"
#include "sched/poller.h"
#include "sched/preempt.h"
#include "sched/observe/probe.h"
#include "sched/observe/observe.h"
#include "sched/observe/stall.h"
#include "sched/run/growth.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

// A look costs what a switch of kernel threads costs. A worker that falls asleep is found within a tick, and loses its slot
// if it is still asleep a little later.
constexpr uint64_t kTick = 900'000;  // ns between looks while there is work
constexpr uint64_t kSecondLook = 100'000;
constexpr uint64_t kOffCpu = 50'000;       // a worker that lacked the CPU for less of a tick is not suspected
constexpr uint64_t kAttended = 200'000;    // how long after a timer's time sysmon comes if an idle worker attends to it
constexpr uint64_t kHotTick = 50'000;      // from a look that finds what an idle worker could run to the next look
constexpr uint32_t kLinger = 2;            // looks without news before sysmon rests
constexpr uint32_t kLingerLong = 12;       // the same while all slots but the reserve are held by fibers that run for long
constexpr uint64_t kRest = 36'000'000;     // ns of rest before it looks for a deadlock and rests until something happens
constexpr uint32_t kFewSwitches = 8;       // since the last look; a worker that makes more of them keeps sysmon from resting
constexpr uint32_t kMostPause = 16;        // looks from one try to the next, if they are in vain
constexpr uint64_t kHogsTick = 3'000'000;  // tick while only hogs wait
constexpr uint64_t kRotation = 2'000'000;  // how long one worker may sleep in the kernel while the kernel refuses more workers
constexpr uint64_t kLongRun = 800'000;     // ns on a worker without a wait, after which a fiber that keeps others waiting is a hog
constexpr uint32_t kNaps = 2;              // more looks than that have found a napping fiber off the CPU when its worker loses the slot
constexpr uint32_t kUnstoppableLooks = 5;  // the same where the kernel gives no timers

// Sysmon treats an explored process as it treats others only at one look of kSeldom, and while its worker has been asleep in the kernel for
// kLongSleep looks.
constexpr uint32_t kSeldom = 250, kLongSleep = 16;

// A futex word that tells how sysmon sleeps until wake_at. A signal that sysmon blocks elsewhere ends its sleep in ppoll().
constexpr uint32_t kAwake = 0, kDeep = 1, kShort = 2, kInPoll = 4, kOnPoller = 8;
std::atomic<uint32_t> asleep{kAwake};
std::atomic<uint64_t> wake_at{kNever};
std::atomic<int> tid{0};
constexpr uint64_t kBlocked = ~uint64_t{0};  // a new kernel thread of ours
std::atomic<uint32_t> mask_done{0};          // the version of main's mask that sysmon has
std::atomic<uint64_t> mask_had{kBlocked};    // what sysmon blocks for sure, of what main may block; only sysmon stores it
std::atomic<uint32_t> called{0};
// Opened before a chroot can hide it. To open it later would take a number from the program for an instant.
std::atomic<int> proc_status{-1};  // /proc/self/status
std::atomic<bool> follows_clock{false};

// An explored process needs sysmon in few of its schedules, and would spend an eighth of its time on that thread. There, sysmon is a helper. It
// begins when something may be left to it: the worker falls asleep, there is another kernel thread, a fiber has another mask than main had at
// first, or somebody calls for sysmon. When a fiber sleeps in a call for long, the launcher ends the run, and begins it anew with
// Explored::Order::sysmon.
enum class Late : uint8_t { No, Waits, Begun };
std::atomic<Late> late{Late::No};  // relaxed: until it has begun, there is one kernel thread only
Worker* reserved = nullptr;        // made before the server forks, so that addresses do not depend on when sysmon begins
uint32_t first_mask;               // main_mask_version() when the scheduler started; the next one is the mask that main had already

void try_take(Worker* w, uint32_t heartbeat) {
  uint32_t kept = kKept;
  if (!w->run.revoked.compare_exchange_strong(kept, kAsked, std::memory_order_seq_cst)) return;
  barrier_everywhere();
  Slot* s = w->run.slot;
  uint32_t asked = kAsked;
  chaos_delay();
  if (w->run.in_sched.load(std::memory_order_seq_cst) == 0 && w->run.heartbeat.load(std::memory_order_relaxed) == heartbeat && s) {
    // Set first, before the worker can come back and read it.
    if (observed(kObserveTrace)) w->observed.taken_at.store(cycles(), std::memory_order_relaxed);
    w->run.taken_unwanted.store(!work_queued(), std::memory_order_relaxed);
    if (w->run.revoked.compare_exchange_strong(asked, kTaken, std::memory_order_acq_rel)) {
      statistics.handovers.fetch_add(1, std::memory_order_relaxed);
      FIBERTHREAD_PROBE1("hand-over", w);
      if (observed(kObserveTrace | kObserveSysmon)) observe_handed_over(w);
      hand_slot_to_spare(s);
    } else if (observed(kObserveTrace)) {
      w->observed.taken_at.store(0, std::memory_order_relaxed);
    }
    return;
  }
  w->run.revoked.compare_exchange_strong(asked, kKept, std::memory_order_acq_rel);
}

Growth growth;

// When to try whether a wake-up for a fiber in `next` pays.
struct TryWakeUps {
  uint32_t looks = 0, pause = 1;  // looks since the last try, and from that one to the next

  void look() {
    if (wake_pays.load(std::memory_order_relaxed) == WakePays::Paid) pause = 1;
    if (wake_pays.load(std::memory_order_relaxed) != WakePays::No || ++looks < pause) return;
    looks = 0;
    if (pause < kMostPause) pause *= 2;
    wake_pays.store(WakePays::Try, std::memory_order_relaxed);
  }
} try_wake_ups;

struct Findings {
  Waiting waiting;        // which fibers wait for a slot
  bool busy = false;      // a worker has made more than a few switches since the last look
  bool progress = false;  // a worker has made one
  bool suspects = false;  // a worker sleeps, perhaps for long

  bool queued() const { return waiting != Waiting::Nobody; }
};

void look_at(Worker* w, uint64_t now, Findings& look) {
  uint32_t beat = w->run.heartbeat.load(std::memory_order_relaxed);
  bool progress = beat != w->notes.heartbeat;
  if (progress) w->notes.beat_at = now;
  else if (now - w->notes.beat_at >= kLongRun) w->ticks.long_run.store(beat, std::memory_order_relaxed);
  look.busy |= beat - w->notes.heartbeat > kFewSwitches;
  look.progress |= progress;
  w->notes.heartbeat = beat;
  w->look.without_hog.fetch_add(1, std::memory_order_relaxed);
  if (look.queued()) w->look.oldest_due.store(true, std::memory_order_relaxed);
  if (stalls_watched()) stall_look_at(w, now);
  growth.count(w, progress, look.waiting);
  if (own_wait_is_to_end(w)) {
    signal_worker(w, kPreemptSignal, nullptr);
    look.suspects = true;
  }
  uint32_t off_cpu = w->notes.off_cpu;
  w->notes.off_cpu = 0;
  // The kernel refuses a worker for this one's slot. If this one sleeps for ever, the others would too. So its fiber gives way.
  if (workers_refused.load(std::memory_order_relaxed) && free_slot_for(look.waiting) && now - w->notes.rotated_at > kRotation &&
      w->run.running.load(std::memory_order_relaxed) && !w->bond.fiber &&
      (w->run.revoked.load(std::memory_order_relaxed) == kTaken || !__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED)) &&
      asleep_by_proc(w->thread.tid)) {
    w->notes.rotated_at = now;
    preempt_sleeper(w);
  }
  // A worker without a slot to lose may sleep as it likes, and so may others while a slot is free for the next fiber. For hogs, a slot of the
  // reserve is of no use.
  bool needed = has_reserve(w) ? look.waiting == Waiting::Others : look.queued();
  if (!(needed || !any_free_slot()) || !__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) ||
      !w->run.running.load(std::memory_order_relaxed) || w->run.revoked.load(std::memory_order_relaxed) == kTaken) {
    w->notes.at = 0;
    return;
  }
  // A fiber that cannot be stopped keeps its worker, which goes on without the slot, as a thread of NPTL would.
  bool unstoppable = options.preempt && w->ticks.timer < 0 && !w->ticks.sampling_page && w->notes.stuck_looks >= kUnstoppableLooks;
  if (unstoppable && !w->run.in_sched.load(std::memory_order_relaxed)) {
    try_take(w, beat);
    return;
  }
  uint64_t cpu = cpu_time_of_thread(w->thread.tid), used = cpu - w->notes.cpu, time = now - w->notes.at;
  bool ran = w->notes.at && used + kOffCpu > time;
  // A worker that has gone on to another fiber and used a quarter of the time lacks the CPU rather than sleeps, as beside its load, or beside
  // the workers of the reserve. If it sleeps, the next look sees that it has done neither.
  bool goes_on = w->notes.at && (progress || reserve_is_wanted()) && used * 4 > time;
  w->notes.cpu = cpu;
  w->notes.at = now;
  if (chaos(16)) {
    try_take(w, beat);  // right at any time, only useless
    return;
  }
  if (ran || goes_on || w->run.in_sched.load(std::memory_order_relaxed)) return;
  auto suspect = [&](uint32_t looks) {
    w->notes.off_cpu = looks;
    look.suspects = true;
  };
  // On a CPU at this moment, the time of the worker's thread goes on. A fiber that naps is found there from time to time.
  if (cpu_time_of_thread(w->thread.tid) != cpu) {
    if (off_cpu > 1) suspect(off_cpu);
    return;
  }
  // A fiber that has run since the look before, and is off the CPU again at each look, naps: it reads from a disk, perhaps a mapped file.
  bool naps = false;
  if (off_cpu == 0 || used != 0) {
    off_cpu = progress || !look.queued() ? 1 : off_cpu + 1;
    naps = off_cpu > kNaps;
    if (!naps) return suspect(off_cpu);
  }
  // Or it has slept or lacked the CPU since the look before. Without the CPU it cannot have fallen asleep, so its sleep, if it is one, is that
  // long. The reader may have been late.
  if (asleep_by_proc(w->thread.tid) && (naps || cpu_time_of_thread(w->thread.tid) == cpu)) try_take(w, beat);
}

// Returns whether the worker that has the slot of an explored process has been asleep in the kernel since kLongSleep looks ago. `runs`: there is
// one with a fiber.
bool explored_worker_sleeps(bool& runs) {
  static uint32_t beat = 0, looks = 0;
  static uint64_t cpu = 0;
  runs = false;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    if (!__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) || !w->run.running.load(std::memory_order_relaxed)) continue;
    uint32_t its_beat = w->run.heartbeat.load(std::memory_order_relaxed);
    uint64_t its_cpu = cpu_time_of_thread(w->thread.tid);
    bool same = its_beat == beat && its_cpu == cpu && asleep_by_proc(w->thread.tid);
    beat = its_beat;
    cpu = its_cpu;
    looks = same ? looks + 1 : 0;
    runs = true;
    return looks >= kLongSleep;
  }
  return false;
}

constexpr uint64_t kWake = uint64_t{1} << (kPreemptSignal - 1);

void end_sleep(uint32_t slept) {
  if (slept & kInPoll) raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid.load(std::memory_order_relaxed), kPreemptSignal);
  else if (slept) futex_wake(&asleep, 1);
}

constexpr uint64_t kClockLook = 100'000'000;  // ns between looks at the clock where no descriptor tells that it was set

// Sleeps until a thread stores kAwake, the time `until` has come, the clock was set, or the poller or a client of the metrics has something.
void sleep_in_poll(uint64_t until, bool on_poller) {
  int clock = follows_clock.load(std::memory_order_relaxed) ? clock_descriptor() : -1;
  short events = 0;
  int metrics = metrics_descriptor(events);
  pollfd p[] = {{clock, POLLIN, 0}, {on_poller ? poll_descriptor() : -1, POLLIN, 0}, {metrics, events, 0}};
  uint64_t now = now_ns(), left = until > now ? until - now : 0;
  timespec t{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  uint64_t mask = without_trap(mask_had.load(std::memory_order_relaxed)) & ~kWake;
  if (asleep.load(std::memory_order_acquire) == kAwake) return;
  if (raw_syscall(SYS_ppoll, arg(p), 3, until == kNever ? 0 : arg(&t), arg(&mask), 8) > 0 && p[0].revents && clock_was_set())
    end_waits_for_clock();
}

// While exploring, timers and descriptors are the worker's own business. Where an idle worker sleeps until the next timer, to wake beside it would
// only keep it from its CPU. Sysmon comes later then, in case that worker lacks a CPU, or has found other work.
uint64_t next_due() {
  uint64_t due = exploring ? kNever : next_timer();
  return due != kNever && timer_attended(due) ? due + kAttended : due;
}
bool poller_unwatched() { return !exploring && poll_active() && !poll_watched(); }

// Main goes on without waiting if `mask_had` has all that it blocks. So sysmon announces what it is about to let in, and looks for a newer mask
// before it does. Either main sees the announcement, or sysmon sees that main has another mask.
void adopt_mask() {
  uint32_t v = main_mask_version(), newest;
  if (v == mask_done.load(std::memory_order_relaxed)) return;
  uint64_t had = mask_had.load(std::memory_order_relaxed), mask;
  for (;; v = newest) {
    mask = main_mask();
    mask_had.store(had & mask, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if ((newest = main_mask_version()) == v) break;
  }
  chaos_delay();
  uint64_t in_kernel = without_trap(mask | kWake);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&in_kernel), 0, 8);
  mask_had.store(mask, std::memory_order_release);  // after the call
  mask_done.store(v, std::memory_order_release);
  futex_wake(&mask_done, 1 << 30);
}

}  // namespace

void sysmon_reserve() { reserved = reserve_helper(); }

bool sysmon_comes_late() {
  if (!exploring || !explore_claim_deferred() || !explore_unclaimed()) return false;
  first_mask = main_mask_version();
  late.store(Late::Waits, std::memory_order_relaxed);
  return true;
}

void sysmon_begin_late() {
  if (tls_vforked) return;  // the thread would be the child's
  Late waits = Late::Waits;
  if (!late.compare_exchange_strong(waits, Late::Begun, std::memory_order_relaxed)) return;
  Busy busy;
  sysmon_prepare();
  auto main = [](void*) -> int {
    tls_worker = nullptr;
    sysmon_main();
  };
  int its_tid = start_helper(main, reserved);
  if (its_tid > 0) {
    tid.store(its_tid, std::memory_order_relaxed);  // sysmon stores it too, but the caller may ask before sysmon runs
  } else {
    own_fd_close(proc_status);
    late.store(Late::Waits, std::memory_order_relaxed);  // there may be room for a thread later
  }
}

bool sysmon_waits() { return late.load(std::memory_order_relaxed) == Late::Waits; }
bool sysmon_is_helper() { return late.load(std::memory_order_relaxed) != Late::No; }

void sysmon_call() {
  sysmon_begin();
  called.exchange(1, std::memory_order_seq_cst);
  end_sleep(asleep.exchange(kAwake, std::memory_order_seq_cst));
}

// Sysmon makes a membarrier when it begins a long sleep. After that it sees `called`, or the look at `asleep` sees that it sleeps.
void sysmon_call_later() {
  sysmon_begin();
  called.exchange(1, std::memory_order_seq_cst);
  sysmon_wake();
}

bool sysmon_is_called() { return called.load(std::memory_order_seq_cst); }

int sysmon_proc_status() { return proc_status.load(std::memory_order_relaxed); }

// Before a late sysmon has begun, the process's first thread has the same properties.
int sysmon_tid() { return sysmon_waits() ? static_cast<int>(raw_syscall(SYS_getpid)) : tid.load(std::memory_order_relaxed); }

void sysmon_wake() {
  uint32_t s = asleep.load(std::memory_order_relaxed);
  if (__builtin_expect(s & kDeep, 0) && asleep.compare_exchange_strong(s, kAwake, std::memory_order_acq_rel)) end_sleep(s);
}

void sysmon_follow_clock() {
  if (__builtin_expect(follows_clock.load(std::memory_order_relaxed), 1) || !sched_started() || exploring) return;
  Busy busy;
  clock_was_set();  // arms the timer: changes of the clock count from now on
  if (follows_clock.exchange(true, std::memory_order_acq_rel)) return;
  end_sleep(asleep.exchange(kAwake, std::memory_order_seq_cst));
}

namespace {
// `slept` is what `asleep` was. The CAS fails if sysmon has woken up since, or sleeps otherwise.
void end_any_sleep(uint32_t slept) {
  if (slept != kAwake && asleep.compare_exchange_strong(slept, kAwake, std::memory_order_acq_rel)) end_sleep(slept);
}
}  // namespace

void sysmon_wake_for_timers() {
  uint64_t due = next_timer(), at = wake_at.load(std::memory_order_relaxed);
  if (due >= at) return;
  if (at - due > kTick) end_any_sleep(asleep.load(std::memory_order_relaxed));
  else sysmon_wake();  // does nothing to a short sleep, which is over soon anyway
}

void sysmon_watch_poller() {
  uint32_t s = asleep.load(std::memory_order_relaxed);
  if (!(s & kOnPoller)) end_any_sleep(s);
}

void sysmon_adopt_mask(uint32_t v, bool anew) {
  if (sysmon_waits() && v - first_mask > 2) sysmon_begin();
  if (sysmon_waits()) return;                           // main's mask is what it was, or there is no room for a thread
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the version, before the look at what sysmon has
  // What it is only to let in, main's own kernel thread lets in while main runs. So sysmon may adopt that at its next look. But a new one has
  // begun when this returns, and its number is known.
  bool has = !(main_mask() & ~mask_had.load(std::memory_order_acquire)) && mask_done.load(std::memory_order_acquire) != 0;
  if (has && !anew) return sysmon_wake();
  end_sleep(asleep.exchange(kAwake, std::memory_order_seq_cst));
  for (uint32_t d; static_cast<int32_t>((d = mask_done.load(std::memory_order_acquire)) - v) < 0;) futex_wait(&mask_done, d);
}

FIBERTHREAD_IN_FORK_CHILD(Sysmon, sysmon, [](FiberRecord*) {
  asleep.store(kAwake);
  follows_clock.store(false);
  wake_at.store(kNever);
  tid.store(0);
  late.store(Late::No);
  reserved = nullptr;
  mask_done.store(0);
  mask_had.store(kBlocked);
  called.store(0);
  growth = {};
  try_wake_ups = {};
  own_fd_close(proc_status);  // it is the parent's
})

void sysmon_prepare() { own_fd_take(raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/self/status"), O_RDONLY | O_CLOEXEC), proc_status); }

[[noreturn]] void sysmon_main() {
  if (exploring) explore_has_sysmon();
  tid.store(static_cast<int>(raw_syscall(SYS_gettid)), std::memory_order_relaxed);
  raw_syscall(SYS_prctl, PR_SET_TIMERSLACK, 1);
  uint64_t wake = kWake;
  raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, arg(&wake), 0, 8);
  uint32_t quiet = 0, looks = 0;
  bool hot = false;
  for (;;) {
    adopt_mask();
    if (called.load(std::memory_order_relaxed) && called.exchange(0, std::memory_order_acq_rel)) embedder().on_sysmon();
    bool looks_at_clock = follows_clock.load(std::memory_order_acquire) && clock_descriptor() < 0;
    if (__builtin_expect(looks_at_clock, 0) && clock_was_set()) end_waits_for_clock();
    uint64_t now = now_ns();
    recent_ns.store(now, std::memory_order_relaxed);
    // While exploring, the worker's own choices let time pass. A fiber that sleeps in the kernel loses its slot late.
    bool runs = false, stays_out = exploring && !explored_worker_sleeps(runs) && ++looks % kSeldom;
    if (!exploring) run_timers(now);
    if (poller_unwatched()) {
      poll_look();
      poll_get_watcher();
    }
    Waiting waiting = stays_out ? Waiting::Nobody : who_waits();
    Findings look{waiting};
    for (Worker* w = stays_out ? nullptr : all_workers(); w; w = w->thread.all_next)
      if (w->thread.initial || w->thread.kernel_tid.load(std::memory_order_relaxed)) look_at(w, now, look);  // else it has ended
    bool queued = look.queued();
    try_wake_ups.look();
    place_look(now);
    rivals_look(now);
    if (!exploring) growth.decide(waiting);
    if (chaos(64)) want_slots(base_slots() + chaos_number() % 4);
    if (chaos(16) && options.reserve) want_reserve(chaos_number() % 4);
    if (free_slot_for(waiting)) {
      if (workers_refused.load(std::memory_order_relaxed)) empty_unheld_slots();
      if (work_neglected() || chaos(8)) wake_if_needed(waiting);
    } else if (queued) {
      balance_queues();
    }
    uint64_t stacks = free_left_stacks(now);
    uint64_t watch_due = cycles_look(now);
    if (uint64_t due = metrics_look(now); due < watch_due) watch_due = due;
    if (stalls_watched()) stall_attend(now);
    bool dumps = dump_attend();
    // A worker of the reserve would wake a sysmon that sleeps for long, before each fiber that it runs, on the CPU that this fiber waits for.
    bool reserve = reserve_is_wanted();
    quiet = look.busy || queued || dumps || runs || (reserve && look.progress) ? 0 : quiet + !look.suspects;

    bool on_poller = false;
    short events;
    uint32_t in_poll = follows_clock.load(std::memory_order_acquire) || metrics_descriptor(events) >= 0 ? kInPoll : 0;
    uint64_t timer = next_due();
    // Only the second look tells whether the worker neglects the fiber. Where it does not, the next one is a tick away.
    hot = queued && free_slot_for(Waiting::Hogs) && !hot;
    uint64_t until = now + (hot                                                ? kHotTick
                            : look.suspects                                    ? kSecondLook
                            : waiting == Waiting::Hogs || (reserve && !queued) ? kHogsTick
                                                                               : kTick);
    if (quiet >= (reserve ? kLingerLong : kLinger) && !look.suspects) {
      growth.settle();
      until = timer;
      if (looks_at_clock && until > now + kClockLook) until = now + kClockLook;
      // The look for a deadlock may have to look at all fibers. So it comes after a rest that nobody has ended.
      bool for_ever = until == kNever && quiet > kLinger;
      if (until == kNever && !for_ever) until = now + (exploring ? kTick : kRest);
      if (until > stacks) until = stacks;
      if (until > watch_due) until = watch_due;
      on_poller = poller_unwatched();
      if (on_poller) in_poll = kInPoll | kOnPoller;
      wake_at.store(until, std::memory_order_relaxed);
      asleep.exchange(kDeep | in_poll, std::memory_order_seq_cst);
      // A thread that queued work before the store has not poked us. That thread has no fence between queueing and its look at `asleep`. By
      // the membarrier, either it sees the store, or we see the work.
      barrier_everywhere();
      std::atomic_thread_fence(std::memory_order_seq_cst);
      chaos_delay();
      bool unwatched = poller_unwatched() && !on_poller;
      if (work_queued() || unwatched || next_due() < until || left_stacks_due() < until || (for_ever && deadlock_check())) {
        asleep.store(kAwake, std::memory_order_relaxed);
        quiet = 0;
        continue;
      }
    } else {
      if (timer < until) until = timer > now + kHotTick ? timer : now + kHotTick;  // many may come one after the other
      on_poller = poll_left_to_sysmon();
      if (on_poller) in_poll = kInPoll | kOnPoller;
      wake_at.store(until, std::memory_order_relaxed);
      // A short sleep. Only a new mask, a call, or a poller that nobody else watches need end it. The fence pairs with OwnWait::begin(): that
      // finds us asleep, or we see the slot that it has left.
      asleep.exchange(kShort | in_poll, std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!on_poller && poll_left_to_sysmon()) until = now;
      if (until > now + kTick && next_due() < until) until = now + kTick;  // who added that timer may have seen the former wake_at
    }
    uint32_t s = asleep.load(std::memory_order_acquire);
    if (s && !called.load(std::memory_order_seq_cst) && main_mask_version() == mask_done.load(std::memory_order_relaxed)) {
      if (in_poll) sleep_in_poll(until, on_poller);
      else futex_wait(&asleep, s, until == kNever ? 0 : until);
    }
    if (asleep.exchange(kAwake, std::memory_order_relaxed) == kAwake) quiet = 0;  // another thread has ended the sleep
    wake_at.store(now_ns() + kTick, std::memory_order_relaxed);
  }
}

}  // namespace fiberthread
