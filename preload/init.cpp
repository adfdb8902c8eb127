// The library's start and end, and its options. It is linked with -z initfirst, so that nothing of the program or of
// other libraries runs before; libc itself is not ready then, which is why options come from envp and output is raw.
#include <string.h>
#include <unistd.h>

#include <fcntl.h>

#include "sched/chaos.h"
#include "sched/context.h"
#include "sched/poller.h"
#include "sched/worker.h"
#include "shim/fork.h"
#include "sync/channel_core.h"

namespace fiberthread {
namespace {

std::atomic<int> report_fd{-1};

void say(int fd, const char* a, const char* b = "", const char* c = "", const char* d = "") {
  char line[256];
  size_t n = 0;
  for (const char* s : {"fiberthread: ", a, b, c, d, "\n"})
    for (; *s && n < sizeof line; s++) line[n++] = *s;
  raw_syscall(SYS_write, fd, arg(line), static_cast<long>(n));
}

// "0" and "" switch off, "1" on.
bool flag(const char* name, const char* value) {
  if (!*value || !strcmp(value, "0")) return false;
  if (!strcmp(value, "1")) return true;
  say(2, name, "=", value, " is not understood (0 or 1); ignored");
  return false;
}

void read_option(const char* name, const char* value) {
  if (!strcmp(name, "WORKERS")) {
    uint32_t n = 0;
    const char* p = value;
    for (; *p >= '0' && *p <= '9' && n <= kMaxSlots; p++) n = n * 10 + static_cast<uint32_t>(*p - '0');
    if (*p || p == value || n == 0 || n > kMaxSlots) say(2, "FIBERTHREAD_WORKERS=", value, " is not a number from 1 to 256; ignored");
    else options.workers = n;
  } else if (!strcmp(name, "SPAWN")) {
    if (!strcmp(value, "adaptive")) options.spawn = SpawnPolicy::Adaptive;
    else if (!strcmp(value, "round-robin")) options.spawn = SpawnPolicy::RoundRobin;
    else if (!strcmp(value, "local")) options.spawn = SpawnPolicy::Local;
    else say(2, "FIBERTHREAD_SPAWN=", value, " is not adaptive, round-robin or local; ignored");
  } else if (!strcmp(name, "PREEMPT_US")) {
    constexpr uint32_t kMost = 1'000'000;
    uint32_t n = 0;
    const char* p = value;
    for (; *p >= '0' && *p <= '9' && n <= kMost; p++) n = n * 10 + static_cast<uint32_t>(*p - '0');
    if (*p || n < 10 || n > kMost) say(2, "FIBERTHREAD_PREEMPT_US=", value, " is not a number from 10 to 1000000; ignored");
    else options.preempt_us = n;
  } else if (!strcmp(name, "DEADLOCK")) {
    if (!strcmp(value, "report")) options.deadlock = DeadlockPolicy::Report;
    else if (!strcmp(value, "abort")) options.deadlock = DeadlockPolicy::Abort;
    else if (!strcmp(value, "off")) options.deadlock = DeadlockPolicy::Off;
    else say(2, "FIBERTHREAD_DEADLOCK=", value, " is not report, abort or off; ignored");
  } else if (!strcmp(name, "CHAOS")) {
    uint64_t n = 0;
    const char* p = value;
    for (; *p >= '0' && *p <= '9' && n < 1'000'000'000'000; p++) n = n * 10 + static_cast<uint64_t>(*p - '0');
    if (*p || n == 0) say(2, "FIBERTHREAD_CHAOS=", value, " is not a number from 1; ignored");
    else {
      chaos_seed = n;
      if (!options.preempt_us) options.preempt_us = 150;
    }
  } else if (!strcmp(name, "STATS")) {
    options.statistics = flag("FIBERTHREAD_STATS", value);
  } else if (!strcmp(name, "VERBOSE")) {
    options.verbose = flag("FIBERTHREAD_VERBOSE", value);
  } else if (!strcmp(name, "CHANNEL_LOCKFREE")) {
    channel_lock_free = flag("FIBERTHREAD_CHANNEL_LOCKFREE", value);
  } else if (!strcmp(name, "NPTL")) {
    options.force_nptl = flag("FIBERTHREAD_NPTL", value);
  } else if (!strcmp(name, "SELFCHECK")) {
    if (!strcmp(value, "fail")) options.fail_self_check = true;
    else say(2, "FIBERTHREAD_SELFCHECK=", value, " is not \"fail\"; ignored");
  } else {
    say(2, "unknown option FIBERTHREAD_", name, "; ignored");
  }
}

void read_options(char** envp) {
  constexpr char kPrefix[] = "FIBERTHREAD_";
  for (; envp && *envp; envp++) {
    if (strncmp(*envp, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const char* rest = *envp + sizeof kPrefix - 1;
    const char* eq = strchr(rest, '=');
    char name[32];
    if (!eq || static_cast<size_t>(eq - rest) >= sizeof name) continue;
    memcpy(name, rest, static_cast<size_t>(eq - rest));
    name[eq - rest] = 0;
    read_option(name, eq + 1);
  }
}

char* put(char* p, const char* name, uint64_t n) {
  while (*name) *p++ = *name++;
  char digits[20];
  int i = 0;
  do digits[i++] = static_cast<char>('0' + n % 10);
  while (n /= 10);
  while (i) *p++ = digits[--i];
  return p;
}

[[gnu::constructor(101)]] void start(int, char**, char** envp) {
  context_init();
  sched_init();
  read_options(envp);
  fork_init();
  if (options.statistics) {
    // A program may close stderr before it ends: keep one of ours, out of its way.
    poll_take(raw_syscall(SYS_fcntl, 2, F_DUPFD_CLOEXEC, 0), report_fd);
  }
}

[[gnu::destructor]] void end() {
  if (report_fd < 0) return;
  uint64_t switches = 0, parks = 0, steals = 0, preemptions = 0;
  for (Worker* w = all_workers(); w; w = w->all_next) {
    switches += w->switches;
    parks += w->parks;
    steals += w->steals;
    preemptions += w->preemptions.load(std::memory_order_relaxed);
  }
  char line[256];
  char* p = put(line, "fiberthread: fibers=", fibers_spawned());
  p = put(p, " workers=", statistics.workers.load());
  p = put(p, " switches=", switches);
  p = put(p, " parks=", parks);
  p = put(p, " steals=", steals);
  p = put(p, " preemptions=", preemptions);
  p = put(p, " slots=", slots_wanted());
  p = put(p, " handovers=", statistics.handovers.load());
  *p++ = '\n';
  raw_syscall(SYS_write, report_fd, arg(line), p - line);
}

}  // namespace
}  // namespace fiberthread
