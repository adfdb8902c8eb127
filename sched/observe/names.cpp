// SPDX-License-Identifier: MIT
// Each worker knows the name of its kernel thread (ObservedWorker::name), and makes no system call if the next fiber has the same. Another
// thread may rename a worker that runs: by /proc, as pthread_setname_np() does in libc. `renamed` counts these, and a worker that sees a
// new count no longer believes what it knows.
#include "sched/observe/names.h"

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>

#include "sched/life/fork.h"
#include "sched/observe/text.h"
#include "sched/observe/trace.h"
#include "sched/syscall.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr size_t kSize = sizeof FiberRecord::Identity::name;
constexpr int kMostTries = 100;

char process_name[kSize];
std::atomic<uint32_t> renamed{0};

// A name, with zeros behind it.
struct Name {
  char text[kSize] = {};
  bool operator==(const Name& other) const { return !memcmp(text, other.text, kSize); }
};

// Returns false if the fiber was never given a name. A byte behind an empty name tells that it was.
bool given_name(const FiberRecord* f, Name& to) {
  memcpy(to.text, f->identity.name, kSize);  // another thread may be changing it, and then asks for the new name to be shown
  if (!to.text[0] && !to.text[1]) return false;
  size_t n = strnlen(to.text, kSize - 1);
  memset(to.text + n, 0, kSize - n);
  return true;
}

Name name_for(const FiberRecord* f) {
  Name name;
  if (given_name(f, name)) return name;
  if (f == main_fiber) memcpy(name.text, process_name, kSize);
  else Text(name.text, kSize - 1) << uint64_t{f->identity.id};
  return name;
}

Name name_asleep(const Worker* w) {
  if (w->bond.fiber) return name_for(w->bond.fiber);
  if (w->thread.initial) return name_for(main_fiber);
  Name name;
  memcpy(name.text, process_name, kSize);
  return name;
}

void set_own(const Name& name) { raw_syscall(SYS_prctl, PR_SET_NAME, arg(name.text)); }

void set_of_thread(int tid, const Name& name) {
  char path[48] = {};
  Text(path, sizeof path - 1) << "/proc/self/task/" << static_cast<uint64_t>(tid) << "/comm";
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  raw_syscall(SYS_write, fd, arg(name.text), static_cast<long>(strlen(name.text)));
  raw_syscall(SYS_close, fd);
}

// The worker may go on to another fiber before the write, which then gives it the wrong name. So we look for that afterwards.
void rename_worker(Worker* w) {
  for (int i = 0; i < kMostTries; i++) {
    uint32_t beat = w->run.heartbeat.load(std::memory_order_acquire);
    const FiberRecord* now = w->run.running.load(std::memory_order_acquire);
    if (!now && !w->thread.initial && !w->thread.kernel_tid.load(std::memory_order_relaxed)) return;  // it has ended
    set_of_thread(w->thread.tid, now ? name_for(now) : name_asleep(w));
    renamed.fetch_add(1, std::memory_order_seq_cst);
    if (w->run.heartbeat.load(std::memory_order_seq_cst) == beat && w->run.running.load(std::memory_order_relaxed) == now) return;
  }
}

// In the child of a fork the caller's kernel thread is the process. It has the caller's name, as on NPTL, and no number.
FIBERTHREAD_IN_FORK_CHILD(Observers, names, [](FiberRecord* me) {
  if (!observed(kObserveNames)) return;
  Name name;
  if (!given_name(me, name)) memcpy(name.text, process_name, kSize);
  set_own(name);
})

}  // namespace

void names_wanted() { observing.fetch_or(kObserveNames, std::memory_order_relaxed); }

void names_start() {
  if (observed(kObserveNames)) raw_syscall(SYS_prctl, PR_GET_NAME, arg(process_name));
}

void name_of_process(char (&to)[16]) { memcpy(to, process_name, kSize); }

void name_worker(Worker* w, const FiberRecord* f) {
  ObservedWorker* of = observed_worker(w);
  if (!of) return;
  // Pairs with the fence in name_changed(): it sees that the fiber runs here, or we see its new name.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  uint32_t count = renamed.load(std::memory_order_acquire);
  Name name = f ? name_for(f) : name_asleep(w);
  if (of->named && of->renamed == count && !memcmp(of->name, name.text, kSize)) return;
  set_own(name);
  memcpy(of->name, name.text, kSize);
  of->renamed = count;
  of->named = true;
}

void name_begins(Worker* w) {
  if (w->observed.by) w->observed.by->named = false;
}

void name_changed(const FiberRecord* f) {
  Busy busy;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Worker* here = this_worker();
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    const FiberRecord* now = w->run.running.load(std::memory_order_relaxed);
    bool sleeps_as = !now && (w->bond.fiber == f || (w->thread.initial && f == main_fiber));
    if (now != f && !sleeps_as) continue;  // it is renamed when it runs or sleeps as `f`
    if (w == here) name_worker(w, f);
    else rename_worker(w);
  }
}

NameForClone::NameForClone() : here_(observed(kObserveNames) ? this_worker() : nullptr) {
  if (!here_) return;
  Name name;
  memcpy(name.text, process_name, kSize);
  set_own(name);
}

NameForClone::~NameForClone() {
  if (!here_) return;
  name_begins(here_);
  name_worker(here_, tls_current);
}

}  // namespace fiberthread
