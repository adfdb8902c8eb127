// SPDX-License-Identifier: MIT
// Wakes the fiber that a signal was recorded for: parked, in a system call, or by way of sysmon.
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "sched/preempt.h"
#include "sched/worker.h"
#include "shim/signal_parts.h"

namespace fiberthread::signals {
namespace {

std::atomic<uint64_t> ever_poked{0};
char poke_mark;  // its address in si_value marks a signal that only means "look at what is pending"

}  // namespace

bool may_be_poked(int sig) { return ever_poked.load(std::memory_order_relaxed) & bit(sig); }

bool is_poke(const siginfo_t& info) { return info.si_code == SI_QUEUE && info.si_value.sival_ptr == &poke_mark; }

namespace {

void tell_at_once(FiberRecord* f, int sig, int from) {
  Worker* w = interrupt_running(f, kInterruptSafePoint);
  if (!w || w->thread.tid == from) return;
  if (sig == kPreemptSignal) {
    signal_worker(w, sig, nullptr);
    return;
  }
  // It has taken the signal meanwhile. A poke that came late would stay pending, and the kernel would drop a file's signal of the same
  // number in its favour (F_OWNER_TID).
  if (!pending_for(f, bit(sig))) return;
  // A poke would have the default action if the handler is gone. So a thread that takes the handler away sees the bit, or we see that it is
  // gone.
  if (!(ever_poked.load(std::memory_order_relaxed) & bit(sig))) ever_poked.fetch_or(bit(sig), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Action a = action_of(sig); !handled(a)) {
    // A profiling timer's may have come too late for its handler. The fiber finds out at its next safe point.
    bool profiles = sig == SIGPROF || sig == SIGVTALRM;
    if (a.handler == reinterpret_cast<void*>(SIG_DFL) && !profiles && pending_for(f, bit(sig) & ~mask_of(f))) default_action(sig);
    return;
  }
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = SI_QUEUE;
  info.si_value.sival_ptr = &poke_mark;
  // Before the call. A thread that finds the signal pending also sees this, by the kernel's lock; for drop_pokes(), by the total order.
  w->embedder.poked.fetch_or(bit(sig), std::memory_order_seq_cst);
  signal_worker(w, sig, &info, signalfd_may_show(bit(sig)) ? f : nullptr);
}

struct Told {
  std::atomic<FiberRecord*> fiber{nullptr};
  std::atomic<int> sig{0};
  std::atomic<int> from{0};
};
Told to_tell[32];

void tell_by_sysmon(FiberRecord* f, int sig, int from, void (*call)()) {
  f->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_seq_cst);
  for (;;) {
    for (auto& t : to_tell) {
      FiberRecord* none = nullptr;
      if (!t.fiber.compare_exchange_strong(none, f, std::memory_order_acq_rel)) continue;
      t.from.store(from, std::memory_order_relaxed);
      t.sig.store(sig, std::memory_order_release);
      call();
      return;
    }
    sysmon_call();
    if (static_cast<int>(raw_syscall(SYS_gettid)) == sysmon_tid()) return;  // full: 32 fibers will be woken, and one of them will do
  }
}

}  // namespace

void tell(FiberRecord* f, int sig, TellBy by, int from) {
  if (by == TellBy::Caller) tell_at_once(f, sig, from);
  else tell_by_sysmon(f, sig, from, by == TellBy::Sysmon ? sysmon_call : sysmon_call_later);
}

void on_sysmon() {
  listen_on_sysmon();
  for (auto& t : to_tell) {
    if (!t.fiber.load(std::memory_order_relaxed)) continue;
    int sig = t.sig.exchange(0, std::memory_order_acquire);
    if (!sig) continue;  // another thread is filling it in, and calls sysmon again after that
    int from = t.from.load(std::memory_order_relaxed);
    FiberRecord* f = t.fiber.exchange(nullptr, std::memory_order_acq_rel);
    tell_at_once(f, sig, from);
  }
}

void forget_tellings() {
  for (auto& t : to_tell) {
    if (!t.fiber.load()) continue;
    t.fiber.store(nullptr);
    t.sig.store(0);
  }
}

uint64_t pending_for_thread() {
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/thread-self/status"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  long n = raw_syscall(SYS_read, fd, arg(text), sizeof text - 1);
  raw_syscall(SYS_close, fd);
  text[n > 0 ? n : 0] = 0;
  const char* line = strstr(text, "\nSigPnd:\t");
  uint64_t pending = 0;
  // Not strtoull(): a new libc gives that a name that older ones lack.
  for (const char* p = line ? line + strlen("\nSigPnd:\t") : ""; *p >= '0' && *p <= 'f'; p++)
    pending = pending << 4 | static_cast<uint64_t>(*p <= '9' ? *p - '0' : *p - 'a' + 10);
  return pending;
}

// A poke stays pending if another fiber runs there when it comes, or if the fiber that was meant has blocked the signal since.
uint64_t pending_in_kernel(FiberRecord* me) {
  Busy busy;
  uint64_t pending = 0;
  raw_syscall(SYS_rt_sigpending, arg(&pending), 8);
  std::atomic<uint64_t>& poked = me->run.worker->embedder.poked;
  for (uint64_t doubtful = pending & poked.load(std::memory_order_relaxed); doubtful; doubtful &= doubtful - 1) {
    uint64_t one = doubtful & -doubtful;
    poked.fetch_and(~one, std::memory_order_relaxed);  // before the look: a thread that sends another poke sets it again
    pending &= ~one;
    // Only taking it out shows which of the two it is. What a signalfd may show goes back, after all have been taken out.
    siginfo_t info, shown[8];
    bool own[8];  // sent to the thread, which the kernel gives first
    unsigned n = 0;
    timespec at_once{};
    bool may_be_shown = signalfd_may_show(one), for_thread = may_be_shown && pending_for_thread() & one;
    for (; raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) > 0;
         for_thread = for_thread && pending_for_thread() & one) {
      if (is_poke(info)) continue;
      FiberRecord* to = sent_to_main(info) ? main_fiber : me;
      if (may_be_shown && to == me && n < sizeof own) {
        own[n] = for_thread;
        shown[n++] = info;
      } else if (for_thread || sent_to_thread(info)) {
        record(to, info, SentTo::Thread);
      } else {
        hand_out(info);
      }
    }
    for (unsigned i = 0; i < n; i++) {
      FiberRecord* to = me;
      if (own[i] ? keep_in_kernel(me, shown[i]) : keep_in_kernel_for_process(shown[i])) pending |= one;
      else if (own[i]) record(to, shown[i], SentTo::Thread);
      else hand_out(shown[i]);
    }
  }
  return pending;
}

}  // namespace fiberthread::signals

using namespace fiberthread::signals;

void fiberthread::signal_adopt_pending(FiberRecord* me) {
  uint64_t pending = 0;
  if (raw_syscall(SYS_rt_sigpending, arg(&pending), 8) != 0 || !pending) return;
  int error = errno;
  while (uint64_t own = pending_for_thread() & mask_of(me)) {
    own &= -own;
    siginfo_t info;
    timespec at_once{};
    // The kernel gives the thread's signals before those of the process.
    if (raw_syscall(SYS_rt_sigtimedwait, arg(&own), arg(&info), arg(&at_once), 8) <= 0) break;
    if (!is_poke(info)) record(me, info, SentTo::Thread);
  }
  errno = error;
}
