// SPDX-License-Identifier: MIT
// What the rooms of shim/signal*.cpp share: what the program asked for, what is pending for whom, and how a signal gets there.
#pragma once
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "sched/glibc/signals.h"
#include "sched/scheduler.h"
#include "shim/signal.h"
#include "shim/thread.h"

namespace fiberthread::signals {

constexpr int kSignals = 64;
constexpr int kFirstQueued = 32;  // the kernel's SIGRTMIN: from here on each signal counts
constexpr uint64_t bit(int sig) { return uint64_t{1} << (sig - 1); }
// What nobody can block: the kernel's two, libc's two.
constexpr uint64_t kNeverBlocked = bit(SIGKILL) | bit(SIGSTOP) | bit(kLibcCancelSignal) | bit(kLibcSetxidSignal);

inline uint64_t words(const sigset_t& set) {
  uint64_t w;
  memcpy(&w, &set, sizeof w);
  return w;
}
inline sigset_t as_set(uint64_t w) {
  sigset_t set;
  sigemptyset(&set);
  memcpy(&set, &w, sizeof w);
  return set;
}

// ---- all signals blocked, one lock: how everything below is kept consistent ----

extern SpinLock signals_lock;

class SignalsGuard {
 public:
  SignalsGuard() {
    uint64_t all = ~kTrapSignal;  // preemption too
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(&old_), 8);
    signals_lock.lock();
  }
  ~SignalsGuard() {
    signals_lock.unlock();
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old_), 0, 8);
  }

 private:
  uint64_t old_;
};

// ---- what the program asked for (signal.cpp) ----

struct Action {
  void* handler = nullptr;  // or SIG_DFL, SIG_IGN
  uint64_t mask = 0;
  int flags = 0;
};

Action action_of(int sig);
inline bool handled(const Action& a) {
  return a.handler != reinterpret_cast<void*>(SIG_DFL) && a.handler != reinterpret_cast<void*>(SIG_IGN);
}
extern int process;  // pid

// The kernel's handler for all that the program handles (signal_deliver.cpp).
void on_signal(int sig, siginfo_t* info, void* context);
// The action to run, once; false if there is no handler any more.
bool claim(int sig, Action& a);
// Does to the process what the default action of `sig` is, though this thread may block it.
void default_action(int sig);

// A fiber whose mask we keep; null: the kernel's calls do.
FiberRecord* ours();
sighandler_t set_handler(int sig, sighandler_t handler, int flags);

// ---- pending signals (signal_pending.cpp) ----

constexpr uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);

struct Pending {
  Pending* next;
  siginfo_t info;
  bool for_process;
};

struct PendingQueue {
  std::atomic<uint64_t> bits{0};
  Pending* first = nullptr;
};

// Of each fiber. Under the lock, but for `bits` (a hint then) and what is said to be its own.
struct ThreadSignals {
  PendingQueue queue;
  std::atomic<uint64_t> waited_for{0};  // by sigwait
  std::atomic<bool> ended{false};
  std::atomic<uint32_t> arriving{0};  // times that a signal was to be recorded here
  bool restarts = false;              // own: see signal_restarts()
  void** back = nullptr;              // own: see signal_handler_to_leave()
};
inline ThreadSignals& state_of(FiberRecord* f) { return shim_share<ThreadSignals, 0, 96>(f); }

void drop_pending(int sig);         // everybody's
extern PendingQueue process_queue;  // for the process, when no thread takes them
void forget_pending();              // in the child of a fork

// The first signal that is in `wanted`, taken out.
bool take_any(FiberRecord* me, uint64_t wanted, siginfo_t* out);
bool pending_for(FiberRecord* me, uint64_t wanted);

inline uint64_t mask_of(const FiberRecord* f) { return __atomic_load_n(&f->run.sigmask, __ATOMIC_SEQ_CST); }
// Sequentially consistent: who changes a mask looks at what is pending afterwards, who adds a pending signal looks at the
// mask afterwards.
inline void set_mask_of(FiberRecord* f, uint64_t mask) {
  __atomic_store_n(&f->run.sigmask, without_trap(mask) & ~kNeverBlocked, __ATOMIC_SEQ_CST);
}

// Who takes a signal sent to the process; null: nobody now.
FiberRecord* pick_target(FiberRecord* me, int sig);
enum class SentTo { Thread, Process };
// Who wakes a fiber. A handler that may have interrupted the scheduler itself must leave that to sysmon.
enum class TellBy { Caller, Sysmon };
// Records a signal for `f`, or for the process if f is null. False if it was dropped: pending already, or no memory, or sent to a
// thread that has ended. One that was sent to the process goes to another fiber then, and `f` says to which.
bool record(FiberRecord*& f, const siginfo_t& info, SentTo to);
// Records one that was sent to the process, for `to`, or for nobody if that is null, and makes it known.
void give(FiberRecord* to, const siginfo_t& info, TellBy by);
// After `f` has `blocked` these: what it was to get of what was sent to the process goes to who has it unblocked, or waits for it. As in
// the kernel, which records such for nobody until somebody takes it.
void give_away(FiberRecord* f, uint64_t blocked, TellBy by = TellBy::Caller);
// As in the kernel, which counts its own: what real-time signals of threads need room for.
bool room_for_pending();

// ---- waking whom a signal was recorded for (signal_tell.cpp) ----

// Of a signal that only means "look at what is pending".
bool is_poke(const siginfo_t& info);
bool may_be_poked(int sig);  // a poke by this signal was sent ever, or is about to be
// Wakes `f`, or has sysmon do so, to look at what is pending.
void tell(FiberRecord* f, int sig, TellBy by);
// What the kernel keeps for the caller's kernel thread or for the process, as far as it is blocked, without pokes.
uint64_t pending_in_kernel(FiberRecord* me);
void on_sysmon();        // Embedder::on_sysmon(): tells those whom others have left to it
void forget_tellings();  // in the child of a fork

// ---- signals that only parked fibers take (signal_listen.cpp) ----

// Main is in sigwait for these.
void main_waits_for(uint64_t bits);
// From now on, until nobody wants them any more. Before it, the caller has made it known that he does.
void listen_for(uint64_t bits);
// A fiber has this mask: what main blocks and it does not, it shall get.
void unblocked_beside_main(uint64_t mask);
// The same, when main comes to block these.
void blocked_by_main(uint64_t mask);
// Taken out of the kernel: to whom it belongs.
void hand_out(const siginfo_t& info);
void forget_listener();  // in the child of a fork

// A fiber in sigwait or its kin. What is sent to the process it finds in process_queue.
struct SigWaiter {
  SigWaiter* next;
  FiberRecord* fiber;
  uint64_t wanted;
};
void add_waiter(SigWaiter& w);
void remove_waiter(SigWaiter& w);
// One that waits for `sig`, if there is any, looks at what is pending.
void wake_waiter(int sig, TellBy by);

// ---- running handlers (signal_deliver.cpp) ----

bool sent_to_thread(const siginfo_t& info);
enum class Ran { No, Restarts, Interrupts };  // by SA_RESTART
// As a call; Busy, once. The fiber gets the mask `back` afterwards. `context` is what it interrupted; null: this call.
Ran run_as_call(FiberRecord* me, siginfo_t* info, uint64_t back, ucontext_t* context = nullptr);

// ---- masks (signal_mask.cpp) ----

void change_mask(FiberRecord* me, uint64_t mask);
// What is pending and not blocked any more runs now.
void run_unblocked(FiberRecord* me);
// If it is the main fiber whose mask this is now: sysmon takes signals as that would.
void follow_main(FiberRecord* me, uint64_t mask);
extern uint64_t followed;  // its mask then; written by the main fiber only
void follow_main_anew();   // it is a new sysmon
void look_up_jumps();

}  // namespace fiberthread::signals
