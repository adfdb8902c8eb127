// SPDX-License-Identifier: MIT
#include "sched/preempt.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/auxv.h>
#include <ucontext.h>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/arch/inject.h"
#include "sched/embedder.h"
#include "sched/fiber.h"
#include "sched/glibc/modules.h"
#include "sched/life/fork.h"
#include "sched/observe/stall.h"
#include "sched/syscall.h"
#include "sched/worker.h"

// From the linker: the bounds of the section that has FIBERTHREAD_STOPPABLE functions. Weak: a program of tests may have none.
extern "C" {
extern const char __start_fiberthread_stoppable[] __attribute__((visibility("hidden"), weak));
extern const char __stop_fiberthread_stoppable[] __attribute__((visibility("hidden"), weak));
}

namespace fiberthread {

namespace {

// ---- kernel values that libc's headers hide ----

constexpr unsigned long kSaRestorer = 0x04000000;

char timer_mark;  // its address in sigev_value tells our timers from others
char trap_mark;   // that of preempt_let_trap_in()

// ---- the owner of the interrupted code ----

// Code in which a fiber is never stopped, or only reluctantly because it may hold a lock that many need.
struct Range {
  uintptr_t low, high;
  bool never;
};
struct Ranges {
  static constexpr unsigned kMax = 32;
  unsigned count = 0;
  Range range[kMax];
};
enum class Code { Free, Reluctant, Never };

// The handler reads these. They are rewritten after dlopen(). The version is odd while they are being written.
std::atomic<uint32_t> ranges_version{0};
constinit Ranges ranges{};
SpinLock ranges_lock;
unsigned long long ranges_generation;  // the loader's count of changes when they were made

// Ticks in a row that found this fiber where it is not stopped, or only reluctantly.
thread_local constinit uint32_t tls_refused __attribute__((tls_model("initial-exec"))) = 0;
constexpr uint32_t kMaxRefused = 3;
constexpr uint32_t kMaxForeignMask = 64;  // in ticks of kTickNs; after that, the program probably set the mask itself, on purpose
uint32_t max_foreign_mask = kMaxForeignMask;

bool is_library(const dl_phdr_info& info, const char* prefix) {
  const char* slash = strrchr(info.dlpi_name, '/');
  const char* base = slash ? slash + 1 : info.dlpi_name;
  return strncmp(base, prefix, strlen(prefix)) == 0;
}

struct Search {
  Ranges found;
  unsigned long long generation = 0;
  const void* loader;  // addresses in these objects
  const void* libc;
  const void* malloc;
  bool first = true;
  bool full = false;
};

int look_at_object(dl_phdr_info* info, size_t, void* data) {
  auto& s = *static_cast<Search*>(data);
  s.generation = info->dlpi_adds + info->dlpi_subs;
  bool program = s.first;
  s.first = false;
  bool never = false;
  if (object_contains(*info, reinterpret_cast<const void*>(&look_at_object))) {
    // Tests are linked with our objects. There Busy alone must suffice, or no fiber would ever be preempted.
    if (program) return 0;
    never = true;
  } else if (object_contains(*info, s.loader)) {
    never = true;
  } else if (!object_contains(*info, s.libc) && !is_library(*info, "libgcc_s.so") && !is_library(*info, "linux-vdso.so") &&
             (program || !object_contains(*info, s.malloc))) {
    return 0;
  }
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& ph = info->dlpi_phdr[i];
    if (ph.p_type != PT_LOAD || !(ph.p_flags & PF_X)) continue;
    if (s.found.count == Ranges::kMax) {
      s.full = true;
      return 1;
    }
    uintptr_t low = info->dlpi_addr + ph.p_vaddr;
    Range* r = s.found.range;
    unsigned at = s.found.count++;
    for (; at > 0 && r[at - 1].low > low; at--) r[at] = r[at - 1];
    r[at] = {low, low + ph.p_memsz, never};
  }
  return 0;
}

std::atomic<uintptr_t> asleep_low{0}, asleep_high{0};

Code code_at(uintptr_t pc) {
  // These hold in tests too, which are linked with our objects.
  if (embedder().must_not_stop_at(pc) || injecting(pc)) return Code::Never;
  uint32_t version = ranges_version.load(std::memory_order_acquire);
  unsigned low = 0, high = ranges.count < Ranges::kMax ? ranges.count : Ranges::kMax;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (ranges.range[middle].high <= pc) low = middle + 1;
    else high = middle;
  }
  Code code = Code::Free;
  if (low < ranges.count && low < Ranges::kMax && ranges.range[low].low <= pc)
    code = ranges.range[low].never ? Code::Never : Code::Reluctant;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (version & 1 || ranges_version.load(std::memory_order_relaxed) != version) return Code::Never;  // the next tick tries again
  return code;
}

bool is_stoppable(uintptr_t pc) {
  auto low = reinterpret_cast<uintptr_t>(__start_fiberthread_stoppable);
  return pc - low < reinterpret_cast<uintptr_t>(__stop_fiberthread_stoppable) - low;
}

bool enabled = false;

constexpr uintptr_t kCalled = 4096;  // stack for the function that is called

bool has_room(const FiberRecord* f, ucontext_t* uc) {
  auto low = reinterpret_cast<uintptr_t>(f->memory.stack_low), high = reinterpret_cast<uintptr_t>(f->memory.stack_high);
  // If the handler does not run on an alternate stack, its signal frame lies where the trampoline's frame would go.
  if (reinterpret_cast<uintptr_t>(uc) - low < high - low) return false;
  uintptr_t sp = interrupted_sp(uc);
  if (auto other = reinterpret_cast<uintptr_t>(f->memory.alternate.ss_sp); sp - other <= f->memory.alternate.ss_size) {
    low = other;
    high = low + f->memory.alternate.ss_size;
  }
  return sp <= high && sp >= low + inject_room(uc) + kCalled;
}

// Returns true if the code at `pc` is at a pause, where a loop with one is nearly always found.
bool is_at_pause(uintptr_t pc) {
  if (filtered.load(std::memory_order_relaxed)) return false;  // a filter may not know the call
  unsigned char code[2 * kPauseSize];
  return copy_own(code, reinterpret_cast<void*>(pc - kPauseSize), sizeof code) == sizeof code &&
         (is_pause(code) || is_pause(code + kPauseSize));
}

// Called by injection, on the fiber's stack. Busy was entered by the handler.
void give_way() {
  int error = errno;
  preempt_switch_out(tls_current);
  {
    Busy leave;
    tls_busy = tls_busy - 1;  // the handler's Busy; the end of `leave` then does what was put off under both
  }
  errno = error;
  // A thread that asked for the end of this fiber while it was queued saw it not running, and sent no signal. This fence comes after the
  // worker has marked the fiber as running. So either that thread sees the mark, or we see its request.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  uintptr_t pc = tls_current->turns.place.pc;
  if (!is_stoppable(pc) && embedder().end_requested_at(tls_current, pc)) embedder().end_now();
}

// Decides in the handler whether the interrupted fiber gives way. One that sleeps in a system call has no use for its worker.
enum class Found { Running, Asleep };
bool gives_way(ucontext_t* uc, Found found) {
  bool sleeper = found == Found::Asleep;
  FiberRecord* f = tls_current;
  if (!enabled || !f || f->run.kernel || tls_busy > 0) return false;
  Worker* w = f->run.worker;
  uint32_t beat = w ? w->run.heartbeat.load(std::memory_order_relaxed) : 0;
  if (w && !sleeper) {
    w->ticks.whole = w->ticks.beat == beat && !w->ticks.sampling_page;
    w->ticks.beat = beat;
  }
  uintptr_t pc = interrupted_pc(uc);
  // When a thread asked for the fiber's end, the fiber was where it could not be stopped. It may be stopped here.
  if (embedder().end_requested_at(f, pc) && inject_call(uc, embedder().end_now)) return false;
  uintptr_t high = asleep_high.load(std::memory_order_acquire), low = asleep_low.load(std::memory_order_relaxed);
  if (!sleeper && pc - low < high - low) return false;
  Code code = is_stoppable(pc) ? Code::Free : code_at(pc);
  Waiting who = preempt_wanted_by(f);
  if (who == Waiting::Nobody || !has_room(f, uc)) return false;
  auto note_place = [&] {
    f->turns.place.note(interrupted_pc(uc), interrupted_sp(uc), [uc](unsigned i) { return interrupted_register(uc, i); });
  };
  if (code == Code::Free) {
    note_place();  // a place in libc only where the fiber is stopped there: it is seldom a loop
    if (is_at_pause(pc)) f->turns.place.waits_here();
  }
  // A spinner waits for what another does.
  if (who == Waiting::Hogs && !sleeper && is_hog(f) && !is_spinner(f) && ++f->turns.ticks < hog_turn(f->run.worker)) return false;
  // libc changes the mask for some calls by itself (posix_spawn, system); the fiber must not leave its worker then.
  uint64_t mask;
  memcpy(&mask, &uc->uc_sigmask, sizeof mask);
  bool foreign_mask = w && (mask ^ w->run.kernel_mask) & ~kLibcsSignals;
  if (code == Code::Never || (code == Code::Reluctant && tls_refused < kMaxRefused && !sleeper) ||
      (foreign_mask && tls_refused < max_foreign_mask)) {
    tls_refused = tls_refused + 1;
    return false;
  }
  // These count as hogs at once. Else a request of some milliseconds would have three slices before the short ones behind it.
  bool long_run = w && runs_long(w);
  if (sleeper || long_run) f->turns.preempted.store(f->turns.preempted.load(std::memory_order_relaxed) | 4, std::memory_order_relaxed);
  if (sleeper) {
    f->turns.in_libc = false;
  } else if (code == Code::Reluctant) {
    // The fiber goes to the front of the queue once, so that a lock that it may hold is soon free. The next tick takes it to the tail. If
    // they always went to the front, a few fibers that are mostly in malloc() would keep all others from running.
    f->turns.in_libc = !f->turns.in_libc;
  } else {
    f->turns.in_libc = false;
  }
  if (!f->turns.in_libc) tls_refused = 0;
  if (code != Code::Free) note_place();
  return true;
}

void stop(ucontext_t* uc) {
  tls_busy = 1;
  inject(uc, give_way);
}

// A signal that came with the tick goes first. If the fiber then goes on in a handler, it gives way before that handler's first instruction.
void tick(ucontext_t* uc) {
  siginfo_t info;
  int sig = embedder().take_at_tick(&info, uc);
  bool stops = gives_way(uc, Found::Running);
  if (__builtin_expect(sig == 0, 1)) {
    if (stops) stop(uc);
    return;
  }
  uintptr_t pc = interrupted_pc(uc);
  embedder().deliver(sig, &info, uc);
  if (stops && tls_busy == 0 && (interrupted_pc(uc) == pc || !embedder().must_not_stop_at(interrupted_pc(uc))) && has_room(tls_current, uc))
    stop(uc);
}

// ---- preemption more often than every tick of the kernel ----

std::atomic<uint32_t> sampled{0};  // workers with a perf event
std::atomic<bool> refusal_told{false};

// Makes a perf event that signals the calling kernel thread after every `us` of its own time in user mode. So it does not interrupt system
// calls either. Returns false if the kernel refuses (perf_event_paranoid, seccomp).
//
// The mapped page keeps the event alive. So a descriptor is in the program's way for an instant only, and the child of a fork inherits
// nothing of it.
bool start_sampling(Worker* w, uint32_t us) {
  perf_event_attr attr = {};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_TASK_CLOCK;
  attr.sample_period = uint64_t{us} * 1000;
  attr.wakeup_events = 1;
  attr.disabled = attr.exclude_kernel = attr.exclude_hv = 1;
  long fd = raw_syscall(SYS_perf_event_open, arg(&attr), 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  if (fd < 0) return false;
  f_owner_ex owner = {F_OWNER_TID, static_cast<int>(raw_syscall(SYS_gettid))};
  long page = -1;
  bool ok = raw_syscall(SYS_fcntl, fd, F_SETOWN_EX, arg(&owner)) == 0 && raw_syscall(SYS_fcntl, fd, F_SETSIG, kPreemptSignal) == 0 &&
            raw_syscall(SYS_fcntl, fd, F_SETFL, O_ASYNC) == 0 &&
            (page = raw_syscall(SYS_mmap, 0, static_cast<long>(page_size()), PROT_READ, MAP_SHARED, fd, 0)) > 0 &&
            raw_syscall(SYS_ioctl, fd, PERF_EVENT_IOC_ENABLE, 0) == 0;
  if (!ok && page > 0) unmap_memory(reinterpret_cast<void*>(page), page_size());
  raw_syscall(SYS_close, fd);
  if (ok) {
    w->ticks.sampling_page = page;
    sampled.fetch_add(1, std::memory_order_relaxed);
  }
  return ok;
}

void tell_refusal() {
  if (!options.verbose || refusal_told.exchange(true)) return;
  constexpr char kLine[] = "fiberthread: FIBERTHREAD_PREEMPT_US: the kernel refuses the perf event; preempting at its tick instead\n";
  raw_syscall(SYS_write, 2, arg(kLine), sizeof kLine - 1);
}

void on_signal(int, siginfo_t* info, void* context) {
  if (info->si_code == SI_TIMER) {
    if (info->si_value.sival_ptr != &timer_mark) return;
    account_tick();
    tick(static_cast<ucontext_t*>(context));
    return;
  }
  if (info->si_code == SI_QUEUE && info->si_value.sival_ptr == &timer_mark) {
    if (auto* uc = static_cast<ucontext_t*>(context); gives_way(uc, Found::Asleep)) stop(uc);
    return;
  }
  if (info->si_code == SI_QUEUE && info->si_value.sival_ptr == &trap_mark) return let_trap_in(context);
  if (stall_on_signal(info, static_cast<ucontext_t*>(context))) return;
  // The kernel reports a perf event in this way. No other descriptor is set to send this signal.
  if (info->si_code == POLL_IN || info->si_code == POLL_HUP) {
    account_tick();
    tick(static_cast<ucontext_t*>(context));
    return;
  }
  int error = errno;
  embedder().poked(info, context);
  errno = error;
}

void unblock() {
  uint64_t set = uint64_t{1} << (kPreemptSignal - 1);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), 0, sizeof set);
}

}  // namespace

void install_kernel_handler(int sig, void (*handler)(int, siginfo_t*, void*), kernel_handler* old) {
  kernel_handler action = {};
  action.handler = handler;
  action.flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  if (kernel_restorer) {
    action.flags |= kSaRestorer;
    action.restorer = kernel_restorer;
  }
  action.mask = ~kTrapMask;  // the program's handlers must not start on top of ours
  raw_syscall(SYS_rt_sigaction, sig, arg(&action), arg(old), sizeof action.mask);
}

void restore_kernel_handler(int sig, const kernel_handler& old) { raw_syscall(SYS_rt_sigaction, sig, arg(&old), 0, sizeof old.mask); }

bool preempt_init() {
  install_kernel_handler(kPreemptSignal, on_signal);
  if (!inject_init()) return false;
  preempt_look_at_objects();
  if (uint64_t us = options.preempt_us) max_foreign_mask = static_cast<uint32_t>(kMaxForeignMask * (kTickNs / 1000) / us) + 1;
  enabled = true;
  return true;
}

void preempt_look_at_objects() {
  // Only once, because dlsym() clears the error that the program's next dlerror() must return.
  static const void* const loader = dlsym(RTLD_DEFAULT, "__tls_get_addr");
  static const void* const libc = dlsym(RTLD_NEXT, "gnu_get_libc_version");
  static const void* const malloc = dlsym(RTLD_DEFAULT, "malloc");
  Search s;
  s.loader = loader;
  s.libc = libc;
  s.malloc = malloc;
  dl_iterate_phdr(look_at_object, &s);
  if (s.full) return;
  Busy busy;
  ranges_lock.lock();
  if (s.generation >= ranges_generation) {
    ranges_generation = s.generation;
    ranges_version.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    ranges = s.found;
    ranges_version.fetch_add(1, std::memory_order_release);
  }
  ranges_lock.unlock();
}

void preempt_start_worker(Worker* w) {
  unblock();
  if (!enabled || !options.preempt) return;
  if (options.preempt_us) {
    if (start_sampling(w, options.preempt_us)) return;
    tell_refusal();
  }
  sigevent event = {};
  event.sigev_value.sival_ptr = &timer_mark;
  event.sigev_signo = kPreemptSignal;
  event.sigev_notify = SIGEV_THREAD_ID;
  event._sigev_un._tid = static_cast<int>(raw_syscall(SYS_gettid));
  int timer;  // the kernel's timer_t
  // Without a timer (RLIMIT_SIGPENDING) no fiber of this worker is preempted. Sysmon gives its slot to another worker instead.
  if (raw_syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, arg(&event), arg(&timer)) != 0) return;
  itimerspec every = {{0, kTickNs}, {0, kTickNs}};
  raw_syscall(SYS_timer_settime, timer, 0, arg(&every), 0);
  w->ticks.timer = timer;
}

// The kernel keeps the timer and the event beyond the end of the thread.
void preempt_end_worker(Worker* w) {
  if (w->ticks.timer >= 0) raw_syscall(SYS_timer_delete, w->ticks.timer);
  if (w->ticks.sampling_page) {
    unmap_memory(reinterpret_cast<void*>(w->ticks.sampling_page), page_size());
    sampled.fetch_sub(1, std::memory_order_relaxed);
  }
  w->ticks.timer = -1;
  w->ticks.sampling_page = 0;
}

namespace {

void send(Worker* w, char* mark) {
  siginfo_t info = {};
  info.si_signo = kPreemptSignal;
  info.si_code = SI_QUEUE;
  info.si_value.sival_ptr = mark;
  signal_worker(w, kPreemptSignal, &info);
}

}  // namespace

void preempt_sleeper(Worker* w) { send(w, &timer_mark); }

void preempt_let_trap_in(Worker* w) { send(w, &trap_mark); }

void signal_worker(Worker* w, int sig, const siginfo_t* info, const FiberRecord* unblocked_by) {
  Busy busy;  // preempt_begin_exec() waits for this
  w->thread.senders.fetch_add(1, std::memory_order_seq_cst);
  bool blocked = unblocked_by && __atomic_load_n(&unblocked_by->run.sigmask, __ATOMIC_SEQ_CST) >> (sig - 1) & 1;
  if (!blocked && !w->thread.executes.load(std::memory_order_seq_cst)) {
    long process = raw_syscall(SYS_getpid);
    if (info) raw_syscall(SYS_rt_tgsigqueueinfo, process, w->thread.tid, sig, arg(info));
    else raw_syscall(SYS_tgkill, process, w->thread.tid, sig);
  }
  w->thread.senders.fetch_sub(1, std::memory_order_release);
}

void await_senders(Worker* w) {
  for (int i = 0; w->thread.senders.load(std::memory_order_seq_cst); i++) SpinLock::pause(i);
}

void preempt_begin_exec(Worker* w) {
  w->thread.executes.exchange(true, std::memory_order_seq_cst);
  await_senders(w);
  preempt_end_worker(w);
}

void preempt_end_exec(Worker* w) {
  w->thread.executes.store(false, std::memory_order_relaxed);
  preempt_start_worker(w);
}

uint32_t preempt_sampled_workers() { return sampled.load(std::memory_order_relaxed); }

bool inject_call(void* ucontext, void (*fn)()) {
  auto* uc = static_cast<ucontext_t*>(ucontext);
  FiberRecord* f = tls_current;
  if (!enabled || !f || f->run.kernel || tls_busy > 0) return false;
  if (code_at(interrupted_pc(uc)) == Code::Never || !has_room(f, uc)) return false;
  inject(uc, fn);
  return true;
}

bool preempt_in_program(uintptr_t pc) { return code_at(pc) == Code::Free; }

void preempt_only_asleep(uintptr_t low, uintptr_t high) {
  asleep_low.store(low, std::memory_order_relaxed);
  asleep_high.store(high, std::memory_order_release);
}

FIBERTHREAD_IN_FORK_CHILD(Preemption, preemption, [](FiberRecord*) {
  sampled.store(0, std::memory_order_relaxed);
  // Another thread of the parent may have been writing.
  ranges_lock.reset();
  ranges_version.store((ranges_version.load(std::memory_order_relaxed) + 1) & ~1u, std::memory_order_relaxed);
  ranges_generation = 0;
})

}  // namespace fiberthread
