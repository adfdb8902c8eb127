// SPDX-License-Identifier: MIT
#include "sched/observe/dumper.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <initializer_list>

#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/observe/stall.h"
#include "sched/observe/waits.h"
#include "sched/worker.h"

extern "C" int __clone(int (*)(void*), void*, int, void*, ...) noexcept;  // libc's clone, by the name that is not taken over

namespace fiberthread {

std::atomic<bool> dump_signal_is_ours{false};

namespace {

constexpr uint64_t kPatience = 30'000'000'000;
constexpr size_t kMostPath = 1024;
constexpr rlim_t kMostClosed = 1 << 20;

const char* record_file = nullptr;
const char* library = nullptr;   // its path, as the loader keeps it
std::atomic<bool> taken{false};  // a thread has started a dumper, or is about to
std::atomic<int> child{0};
std::atomic<bool> requested{false};
// Sysmon's own. `by_request`: the dumper is one that dump_attend() has started. `wanted` has the ids of what is to be dumped; none: all.
bool by_request = false, wanted_sample = false;
uint64_t wanted[kMostDumped];
uint32_t wanted_count = 0;

// A dumper has two processes. The first shares our memory, and waits for the second. It gives no signal at its end, so the program's own
// waits do not see it. If it became another program, the kernel would give SIGCHLD at its end again. So the second becomes the program
// `fiberthread`.
constinit struct Start {
  char path[kMostPath];
  char pid[24], fibers[24 * kMostDumped], most[24];
  const char* argv[16];
  volatile int dumper;
  std::atomic<uint32_t> go;  // futex: the starting thread lets the dumper look at this process now
} start{};
FIBERTHREAD_LARGE alignas(16) char stack[16 * 1024];

// Returns the end of the text.
char* put_number(char* to, uint64_t n) {
  char digits[20];
  int i = 0;
  do digits[i++] = static_cast<char>('0' + n % 10);
  while (n /= 10);
  while (i) *to++ = digits[--i];
  *to = 0;
  return to;
}

bool find_launcher() {
  const char* slash = library ? strrchr(library, '/') : nullptr;
  auto length = slash ? static_cast<size_t>(slash - library) : 0;
  if (!slash || length + 32 > kMostPath) return false;
  for (const char* place : {"/fiberthread", "/../bin/fiberthread", "/../../bin/fiberthread"}) {
    memcpy(start.path, library, length);
    strcpy(start.path + length, place);
    if (raw_syscall(SYS_faccessat, AT_FDCWD, arg(start.path), 1 /* X_OK */) == 0) return true;
  }
  return false;
}

void close_others() {
  if (raw_syscall(SYS_close_range, 3, ~0u, 0) == 0) return;
  rlimit limit{};  // an old kernel, or a filter
  raw_syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, arg(&limit));
  for (rlim_t fd = 3; fd < limit.rlim_cur && fd < kMostClosed; fd++) raw_syscall(SYS_close, static_cast<long>(fd));
}

[[noreturn]] void become_dumper() {
  close_others();  // the dumper must not keep the other end of a program's pipe open
  uintptr_t by_default[8] = {};
  for (int sig = 1; sig <= 64; sig++) raw_syscall(SYS_rt_sigaction, sig, arg(by_default), 0, 8);
  uint64_t none = 0;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&none), 0, 8);
  static const char* const environment[] = {nullptr};
  raw_syscall(SYS_execve, arg(start.path), arg(start.argv), arg(environment));
  raw_syscall(SYS_exit, 127);
  __builtin_unreachable();
}

// The first process. It has a stack of its own, but the thread pointer of the thread that made it. So it makes system calls only, with all
// signals blocked.
int first(void*) {
  close_others();
  while (!start.go.load(std::memory_order_acquire)) futex_wait(&start.go, 0);
  // As vfork does: the child runs on this stack while this process waits.
  long pid = raw_syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) become_dumper();
  start.dumper = static_cast<int>(pid);
  int status = 0;
  long r = -EINTR;
  while (pid > 0 && r == -EINTR) r = raw_syscall(SYS_wait4, pid, arg(&status), __WALL, 0);
  raw_syscall(SYS_exit, pid > 0 && r == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 127);
  return 0;
}

}  // namespace

void dumper_find() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&dumper_find), &info) != 0) library = info.dli_fname;
}

bool dumper_start(uint64_t most, const uint64_t* only, uint32_t count, bool sample) {
  if (taken.exchange(true, std::memory_order_acq_rel)) return false;
  int pid = -1;
  if (find_launcher()) {
    put_number(start.pid, static_cast<uint64_t>(raw_syscall(SYS_getpid)));
    put_number(start.most, most);
    char* end = start.fibers;
    for (uint32_t i = 0; i < count && i < kMostDumped; i++) {
      if (i) *end++ = ',';
      end = put_number(end, only[i]);
    }
    int n = 0;
    for (const char* a : {"fiberthread", "dump", "--report"}) start.argv[n++] = a;
    if (count) start.argv[n++] = "--fiber", start.argv[n++] = start.fibers;
    if (sample) start.argv[n++] = "--sample";
    if (most) start.argv[n++] = "--most", start.argv[n++] = start.most;
    if (record_file) start.argv[n++] = "--record", start.argv[n++] = record_file;
    start.argv[n++] = start.pid;
    start.argv[n] = nullptr;
    start.dumper = 0;
    start.go.store(0, std::memory_order_relaxed);
    uint64_t old;
    sched_block_signals(&old);
    int saved_errno = errno;
    pid = __clone(first, stack + sizeof stack, CLONE_VM, nullptr);
    errno = saved_errno;
    sched_restore_signals(old);
  }
  if (pid < 0) {
    taken.store(false, std::memory_order_release);
    return false;
  }
  child.store(pid, std::memory_order_release);
  raw_syscall(SYS_prctl, PR_SET_PTRACER, pid);  // for systems where only ancestors may look inside a process
  start.go.store(1, std::memory_order_release);
  futex_wake(&start.go, 1);
  return true;
}

Dumper dumper_look() {
  int pid = child.load(std::memory_order_relaxed);
  if (!pid) return Dumper::None;
  int status = 0;
  long r = raw_syscall(SYS_wait4, pid, arg(&status), WNOHANG | __WALL, 0);
  if (r == 0 || r == -EINTR) return Dumper::Runs;
  child.store(0, std::memory_order_relaxed);
  taken.store(false, std::memory_order_release);
  return r == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Dumper::Said : Dumper::Failed;
}

bool dumper_wait() {
  uint64_t until = now_ns() + kPatience;
  Dumper d;
  while ((d = dumper_look()) == Dumper::Runs) {
    if (now_ns() > until) {
      if (start.dumper > 0) raw_syscall(SYS_kill, start.dumper, SIGKILL);
      until = kNever;
    }
    timespec t{0, 2'000'000};
    raw_syscall(SYS_nanosleep, arg(&t), 0);
  }
  return d == Dumper::Said;
}

FIBERTHREAD_IN_FORK_CHILD(Observers, dumper, [](FiberRecord*) {
  child.store(0);
  taken.store(false);
  requested.store(false);
  by_request = wanted_sample = false;
  wanted_count = 0;
})

void record_to(const char* file) { record_file = file; }

bool record_wanted() { return record_file != nullptr; }

void record_end(const FiberRecord* f) {
  uint64_t id = f ? f->identity.id : 0;
  if (!library) return;  // no thread was ever made
  if (dumper_start(f ? 0 : 1, &id, f ? 1 : 0)) dumper_wait();
}

void report_fibers(uint64_t most, const uint64_t* only, uint32_t n) {
  NoSignals no_signals;
  Output out;
  put_fibers(out, most ? most : ~uint64_t{0}, only, n);
}

void dump_request() {
  requested.store(true, std::memory_order_release);
  if (sched_started()) {
    sysmon_call();
    return;
  }
  // Without a scheduler there is no sysmon, so the caller makes the dump itself.
  requested.store(false, std::memory_order_relaxed);
  if (!library) dumper_find();
  if (!dumper_start(0) || !dumper_wait()) report_fibers(0);
}

void dump_request_of(const uint64_t* ids, uint32_t n, bool sample) {
  if (by_request || wanted_count) {  // one at a time
    report_fibers(0, ids, n);
    if (sample) stall_free_sample();
    return;
  }
  wanted_sample = sample;
  for (uint32_t i = 0; i < n; i++) wanted[i] = ids[i];
  wanted_count = n;
}

namespace {
void wanted_is_dumped(bool said) {
  if (!said) report_fibers(0, wanted, wanted_count);
  if (wanted_sample) stall_free_sample();
  wanted_sample = by_request = false;
  wanted_count = 0;
}
}  // namespace

bool dump_attend() {
  if (by_request) {
    Dumper d = dumper_look();
    if (d == Dumper::Runs) return true;
    wanted_is_dumped(d != Dumper::Failed);
  }
  // If a dumper is running for a report, dumper_start() fails, and this request gets lines without stacks.
  if (wanted_count == 0 && (!requested.load(std::memory_order_relaxed) || !requested.exchange(false, std::memory_order_acq_rel)))
    return false;
  by_request = dumper_start(0, wanted, wanted_count, wanted_sample);
  if (!by_request) wanted_is_dumped(false);
  return by_request;
}

}  // namespace fiberthread
