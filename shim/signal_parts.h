// SPDX-License-Identifier: MIT
// What the files of shim/signal*.cpp share: what the program has asked for, what is pending for which fiber, and how a signal gets there.
#pragma once
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "sched/glibc/signals.h"
#include "sched/scheduler.h"
#include "shim/signal.h"
#include "shim/thread.h"

namespace fiberthread {
struct PosixTimer;
}

namespace fiberthread::signals {

constexpr int kSignals = 64;
constexpr int kFirstQueued = 32;  // the kernel's SIGRTMIN: from here on, several of one signal can be pending
constexpr uint64_t bit(int sig) { return uint64_t{1} << (sig - 1); }
// Signals that no thread can block: two for the kernel, two for libc.
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

// ---- all signals blocked, one lock: this keeps everything below consistent ----

extern SpinLock signals_lock;

class SignalsGuard {
 public:
  SignalsGuard() {
    uint64_t all = ~kTrapMask;  // preemption too
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
// Returns those of the signals for which on_signal() is the kernel's handler.
uint64_t kernel_calls_us(uint64_t signals);
// From now on the default action of these signals is ours to take, because they may be a fiber's that blocks them: main waits for them in
// sigwait, or a fiber's timer sends them. The kernel sees a signal to the process, and that another fiber has it unblocked. Or a fiber that
// takes signals (sched_take_signals) waits for them in sigwait, and its parked kernel thread lets them in.
void catch_by_default(uint64_t signals);

// The kernel's handler for all signals that the program handles (signal_deliver.cpp).
void on_signal(int sig, siginfo_t* info, void* context);
// Takes the action to run, for one signal. Returns false if there is no handler any more.
bool claim(int sig, Action& a);
// Does to the process what the default action of `sig` does, even if this thread blocks it.
void default_action(int sig);

// Returns the caller if it is a fiber, whose mask we keep. Null: the kernel keeps the mask.
FiberRecord* ours();
sighandler_t set_handler(int sig, sighandler_t handler, int flags);

// ---- pending signals (signal_pending.cpp) ----

constexpr uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);

struct PendingQueue;
struct Pending {
  Pending* next;
  PendingQueue* queue;  // null: it is on its way to another
  PosixTimer* timer;    // that has sent it, or null
  siginfo_t info;
  bool for_process;
};

struct PendingQueue {
  std::atomic<uint64_t> bits{0};
  Pending* first = nullptr;
};

// The state of one fiber. All of it is under the lock, except `bits`, which is a hint without it, and what is the fiber's own.
struct ThreadSignals {
  PendingQueue queue;
  std::atomic<uint64_t> waited_for{0};  // by sigwait and its kin
  std::atomic<bool> ended{false};
  std::atomic<uint32_t> arriving{0};  // how often a thread was about to record a signal here
  // Signals to this thread that the kernel keeps, and others of the same numbers that come after them: see send_beside_signalfd().
  std::atomic<uint64_t> kept{0};
  std::atomic<bool> owns_files{false};  // a thread has asked that the kernel thread of this fiber gets the signals of a file
  bool restarts = false;                // own: see signal_restarts()
  void** back = nullptr;                // own: see signal_handler_to_leave()
};
inline ThreadSignals& state_of(FiberRecord* f) { return shim_share<ThreadSignals, 0, 96>(f); }

void drop_pending(int sig);  // for all fibers and the process
enum class Drop { Any, IfOld };
bool nothing_is_pending();                                    // for any fiber and the process, of what the library keeps
void drop_pending_of(PosixTimer& t, Drop which = Drop::Any);  // the signal of this timer
void add_overruns(siginfo_t& info, uint64_t more);
extern PendingQueue process_queue;  // signals to the process that no thread takes now
void forget_pending();              // called in the child of a fork

// Takes out the first pending signal that is in `wanted`. Returns false if there is none.
bool take_any(FiberRecord* me, uint64_t wanted, siginfo_t* out);
// Returns true if a signal in `wanted` is pending for `me` or for the process.
bool pending_for(FiberRecord* me, uint64_t wanted);

// Returns the signals that the fiber has blocked and does not wait for.
uint64_t refused_by(FiberRecord* f);
// Embedder::refused_by(). What the fiber waits for is let in only if the kernel calls us for it. Otherwise the kernel would act, or drop it.
uint64_t refused_asleep(FiberRecord* f);
inline uint64_t mask_of(const FiberRecord* f) { return __atomic_load_n(&f->run.sigmask, __ATOMIC_SEQ_CST); }
// Sequentially consistent. A thread that changes a mask looks at what is pending afterwards, and a thread that adds a pending signal looks
// at the mask afterwards. So one of them sees the other.
inline void set_mask_of(FiberRecord* f, uint64_t mask) {
  __atomic_store_n(&f->run.sigmask, without_trap(mask) & ~kNeverBlocked, __ATOMIC_SEQ_CST);
}

// Returns the fiber that takes a signal sent to the process. Null: none does now.
FiberRecord* pick_target(FiberRecord* me, int sig);
enum class SentTo { Thread, Process };
// Which thread wakes a fiber. A handler that may have interrupted the scheduler itself must leave it to sysmon. SysmonLater: at sysmon's next
// look.
enum class TellBy { Caller, Sysmon, SysmonLater };
// Records a signal for `f`, or for the process if `f` is null. Returns false if `f` need not be told: the signal was dropped, because it is
// pending already, there is no memory, it is an old one of a timer, or it was sent to a thread that has ended. In this last case a signal sent
// to the process goes to another fiber, and `f` becomes that. With a signal to the process, `f` also gets those of the number that no thread has
// taken yet; it must be told of them even if the new one is dropped.
bool record(FiberRecord*& f, const siginfo_t& info, SentTo to);
bool record_locked(FiberRecord*& f, const siginfo_t& info, SentTo to);  // under SignalsGuard
bool signalfd_may_show(uint64_t signals);  // returns true if the program has asked for a signalfd of one of these
// Signals sent to threads, of which a signalfd may show some. It shows what the kernel keeps, so that keeps the blocked ones of each thread
// which has a kernel thread of its own. A thread that sends to itself gets one. `kept` has the signals of which the kernel may keep some. All
// that follow go to the kernel too, blocked or not, until kept_have_come(). So the order of a thread's signals is: what is recorded, then what
// the kernel keeps.
enum class Sent { Recorded, ToKernel, Nowhere };
Sent send_beside_signalfd(FiberRecord* to, const siginfo_t& info);
// Gives the kernel what was recorded for the thread `f` before it blocked these signals. Returns false if `f` is on no kernel thread of its own.
bool keep_recorded_in_kernel(FiberRecord* f, uint64_t signals);
// Gives the kernel a signal of the caller that was taken out of it. Returns false if it must be recorded.
bool keep_in_kernel(FiberRecord* me, const siginfo_t& info);
// Called when the caller has blocked these. A signalfd shows no poke from now on.
void drop_pokes(FiberRecord* me, uint64_t signals);
bool queue_to_kernel_thread(int tid, const siginfo_t& info);
// Gives the kernel thread what is recorded of `signals` for the thread `f`, in order. Returns false if the kernel refuses one, which stays.
bool move_to_kernel(FiberRecord* f, uint64_t signals, int tid);  // under SignalsGuard
// Gives the kernel what is recorded for the process and for the caller, which blocks it, but not signals of timers. `tid` is the caller's
// kernel thread. Returns false if there is nothing.
bool all_to_kernel(FiberRecord* me, int tid);
// Returns true if queue_to_kernel_thread() has sent this to the caller's kernel thread. SI_QUEUE alone does not tell that it is not the process's.
// Async-signal-safe.
bool kept_for_this_thread(const siginfo_t& info);
// Called by `me` when it has unblocked signals, and the kernel has been told.
void kept_have_come(FiberRecord* me);
bool keep_in_kernel_for_process(const siginfo_t& info);  // the same for a signal sent to the process
// Records a signal sent to the process, for `to`, or for no fiber if `to` is null, and makes it known.
void give(FiberRecord* to, const siginfo_t& info, TellBy by);
// Called after `f` has `blocked` these signals. What `f` was going to get of the signals sent to the process goes to a fiber that has them
// unblocked, or waits for them. The kernel has the same effect, since it gives such signals to no thread before one takes them.
void give_away(FiberRecord* f, uint64_t blocked, TellBy by = TellBy::Caller);
// Returns true if RLIMIT_SIGPENDING has room for another real-time signal to a thread. The kernel counts only its own.
bool room_for_pending();

// ---- waking the fiber that a signal was recorded for (signal_tell.cpp) ----

// Returns true if the signal only means "look at what is pending".
bool is_poke(const siginfo_t& info);
bool may_be_poked(int sig);  // a poke by this signal was sent once, or is about to be
// Wakes `f`, or has sysmon wake it, so that it looks at what is pending. `from` is the kernel thread that took the signal while `f` did not
// run there, or 0. If `f` runs there by now, it has looked since, so it gets no poke: the kernel would merge the next signal with that.
// kPreemptSignal has it look for a request that it end.
void tell(FiberRecord* f, int sig, TellBy by, int from = 0);
// Returns what the kernel keeps for the caller's kernel thread or for the process, as far as it is blocked. Pokes are left out.
uint64_t pending_in_kernel(FiberRecord* me);
// Returns the signals that were sent to this kernel thread, and not to the process, and are pending. The kernel tells that by text only.
// Without /proc: none.
uint64_t pending_for_thread();
void on_sysmon();        // Embedder::on_sysmon(): tells the fibers that other threads have left to it
void forget_tellings();  // called in the child of a fork

// ---- signals that only parked fibers take (signal_listen.cpp) ----

// Makes the listener look for these until no fiber wants them any more. The caller has made it known before that it wants them.
void listen_for(uint64_t bits);
void listen_on_sysmon();  // starts the listener if the thread that needed it could not
// Called when a fiber gets this mask. It shall get the signals that main blocks and it does not.
void unblocked_beside_main(uint64_t mask);
// Does the same when main begins to block these.
void blocked_by_main(uint64_t mask);
// Called when the caller blocks these, and has just stopped waiting for them. From its return on, no kernel thread takes one out of the kernel
// because of what the caller wanted before: not the listener, and if a signalfd may show the signal, no worker. What was recorded for the caller
// until now is with the kernel, if a signalfd may show it.
void await_unwanted(uint64_t signals);
// Called when the caller lets these in, and the kernel has been told. On return, what the listener has taken out of the kernel of these is
// recorded. So a signal that was sent before runs before the call returns that has let it in, as POSIX has it.
void await_taken(uint64_t signals);
// Gives a signal that was taken out of the kernel to the fiber that it belongs to.
void hand_out(const siginfo_t& info);
// Returns true if a fiber is in sigwait or its kin for the signal.
bool is_waited_for(int sig);
void forget_listener();  // called in the child of a fork

// A fiber in sigwait or its kin. It finds signals sent to the process in process_queue.
struct SigWaiter {
  SigWaiter* next;
  FiberRecord* fiber;
  uint64_t wanted;
};
void add_waiter(SigWaiter& w);
void remove_waiter(SigWaiter& w);
// Makes one fiber that waits for `sig` look at what is pending, if there is such a fiber.
void wake_waiter(int sig, TellBy by);

// ---- signals of CPU time (signal_profile.cpp) ----

// Returns true if the kernel has sent the signal for CPU time that the process has used.
bool profiles(const siginfo_t& info);
// Returns true if such a signal was recorded while it had a handler, and has none now.
bool comes_too_late(const siginfo_t& info);
// Returns a fiber that runs and does not block the signal. Null: there is none.
FiberRecord* running_fiber(int sig);
// Embedder::take_at_tick() and deliver(), for SIGPROF and SIGVTALRM.
int take_at_tick(siginfo_t* info, const void* context);
void deliver_at_tick(int sig, siginfo_t* info, void* context);

// ---- running handlers (signal_deliver.cpp) ----

// Returns true if the signal, which the kernel has given to the caller's kernel thread, was sent to that thread.
bool sent_to_thread(const siginfo_t& info);
// Returns true if the kernel thread got this because another process sent it to main's thread.
bool sent_to_main(const siginfo_t& info);
enum class Ran { No, Restarts, Interrupts };  // by SA_RESTART
// Runs the handler as a call. The caller is Busy, once. The fiber gets the mask `back` afterwards. `context` is what the signal
// interrupted. Null: this call.
Ran run_as_call(FiberRecord* me, siginfo_t* info, uint64_t back, ucontext_t* context = nullptr);

// ---- masks (signal_mask.cpp) ----

void change_mask(FiberRecord* me, uint64_t mask);
// Gives the caller the mask back that it had before a handler, or before a call that changes it. On return, no worker that the caller has
// left lets in what this mask blocks: else the kernel could take a default action. Busy.
void restore_mask(FiberRecord* me, uint64_t mask);
// Runs the handlers of what is pending and no longer blocked.
void run_unblocked(FiberRecord* me);
// Called when this becomes the mask of `me`. If `me` is the main fiber, sysmon takes signals as main would.
void follow_main(FiberRecord* me, uint64_t mask);
extern uint64_t followed;  // main's mask that sysmon has; written by the main fiber only
void follow_main_anew();   // called when there is a new sysmon
// Called when `me` begins a wait that lets these signals in. If it is the main fiber, they may be sent to main's thread. 0: the wait is
// over.
void main_lets_in(FiberRecord* me, uint64_t signals);
void look_up_jumps();

}  // namespace fiberthread::signals
