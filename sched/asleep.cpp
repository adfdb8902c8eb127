// SPDX-License-Identifier: MIT
#include "sched/asleep.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <string.h>
#include <sys/stat.h>

#include "sched/life/fork.h"
#include "sched/scheduler.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

// A futex word, for those who wait until the reader is no longer Starting. It goes back to None if there is no memory or thread for it now.
// The thread that takes it from None decides whether a reader starts. Release and acquire: a thread that sees Runs knows that the reader has
// closed its copies.
enum Reader : uint32_t { kNone, kStarting, kRuns, kImpossible };
std::atomic<uint32_t> reader{kNone};

void set_reader(Reader r) {
  reader.store(r, std::memory_order_release);
  futex_wake(&reader, 1 << 30);
}

// Sysmon stores `asked` after `answer`, and the reader `answer` after it has read. Each is a futex word that the other side waits for.
enum Answer : uint32_t { kNotYet, kAsleep, kAwake };
std::atomic<int> asked{0};  // the tid; 0: nothing
std::atomic<uint32_t> answer{kNotYet};

constexpr int kTask = 0;  // /proc/self/task in the reader's table

// Reads a file of the thread. Returns the bytes read; 0 if that file cannot be read.
long read_file(int tid, const char* file, char* text, size_t size) {
  char path[32], digits[12];
  int n = 0;
  for (int t = tid; t; t /= 10) digits[n++] = static_cast<char>('0' + t % 10);
  char* p = path;
  while (n) *p++ = digits[--n];
  strcpy(p, file);
  long fd = raw_syscall(SYS_openat, kTask, arg(path), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  long got = raw_syscall(SYS_read, fd, arg(text), static_cast<long>(size));
  raw_syscall(SYS_close, fd);
  return got > 0 ? got : 0;
}

Answer look(int tid) {
  if (tid == raw_syscall(SYS_gettid)) return kAsleep;  // the reader itself, which has nothing else to do
  char text[128];
  long n = read_file(tid, "/syscall", text, sizeof text - 1);
  // A process that has changed its ids may no longer read /syscall.
  if (n == 0) n = read_file(tid, "/stat", text, sizeof text - 1);
  if (n == 0) return kAsleep;
  text[n] = 0;
  // /syscall begins with "running", also if the thread only lacks a CPU. /stat is "tid (name) R …", and the name may contain brackets.
  const char* end = strrchr(text, ')');
  return (end ? end[1] != ' ' || end[2] != 'R' : text[0] != 'r') ? kAsleep : kAwake;
}

[[noreturn]] int read_for_sysmon(void*) {
  // A table without any of the program's files. The kernel copies the first 64 of them all the same, and closes the copies.
  bool ready = raw_syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) == 0 &&
               raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/self/task"), O_PATH | O_DIRECTORY | O_CLOEXEC) == kTask;
  set_reader(kRuns);
  for (;;) {
    int tid;
    while (!(tid = asked.load(std::memory_order_acquire))) futex_wait(&asked, 0);
    asked.store(0, std::memory_order_relaxed);
    answer.store(ready ? look(tid) : kAsleep, std::memory_order_release);
    futex_wake(&answer, 1);
  }
}

// Returns true if there is a reader, or will be.
bool start_reader() {
  uint32_t now = kNone;
  if (!reader.compare_exchange_strong(now, kStarting, std::memory_order_relaxed)) return now != kImpossible;
  // Without a kernel that knows the call, or without /proc, it would be of no use. The call says here that the range is none.
  struct statx s;
  if (raw_syscall(SYS_close_range, 1, 0, CLOSE_RANGE_UNSHARE) != -EINVAL ||
      raw_syscall(SYS_statx, AT_FDCWD, arg("/proc/self/task"), 0, STATX_TYPE, arg(&s)) != 0)
    set_reader(kImpossible);
  else if (start_helper(read_for_sysmon) <= 0) set_reader(kNone);
  else return true;
  return false;
}

}  // namespace

bool asleep_by_proc(int tid) {
  if (filtered.load(std::memory_order_relaxed)) return true;  // a filter may end the process for what the reader does
  if (!start_reader()) return true;
  answer.store(kNotYet, std::memory_order_relaxed);
  asked.store(tid, std::memory_order_release);
  futex_wake(&asked, 1);
  uint32_t a;
  while ((a = answer.load(std::memory_order_acquire)) == kNotYet) futex_wait(&answer, kNotYet);
  return a == kAsleep;
}

void asleep_make_no_copies() {
  uint32_t r = kNone;
  while (!reader.compare_exchange_strong(r, kImpossible, std::memory_order_acq_rel) && r == kStarting) {
    futex_wait(&reader, kStarting);
    r = kNone;
  }
}

FIBERTHREAD_IN_FORK_CHILD(Sysmon, asleep, [](FiberRecord*) {
  reader.store(kNone);
  asked.store(0);
  answer.store(kNotYet);
})

}  // namespace fiberthread
