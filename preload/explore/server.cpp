// SPDX-License-Identifier: MIT
// The server: a process that stays at its first thread, and is forked for each schedule. What the program does before is then done once, and
// the child has the same memory as a process that has come there by itself.
//
// A program whose children could see what an earlier one has left is none: nothing may be shared between parent and child but what
// is put back for each run. Nor is one that knows the process's id, or a lock that does: a child has another id.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "preload/explore/server.h"
#include "sched/explore/shared.h"
#include "sched/syscall.h"

using fiberthread::arg;
using fiberthread::Explored;
using fiberthread::raw_syscall;

extern "C" __attribute__((weak)) void* fiberthread_explore_shared();
extern "C" __attribute__((weak)) bool fiberthread_explore_start();
extern "C" __attribute__((weak)) pid_t fiberthread_explore_fork();
extern "C" __attribute__((weak)) void fiberthread_explore_claim();

namespace {

// ---- what the program has done so far ----

// Locks that main holds, or has tried to get, and that know their owner by its id. In a child it has another one.
struct Held {
  uintptr_t lock;
  uint32_t times;
};
Held held[16];
bool knows_id = false;  // main has asked for the process's id, or holds more locks than there is room for

bool begins(const char* text, const char* with) { return strncmp(text, with, strlen(with)) == 0; }

bool knows_owner(const char* call, uintptr_t lock) {
  if (begins(call, "pthread_rwlock_")) return strstr(call, "wrlock") != nullptr;
  int kind = reinterpret_cast<pthread_mutex_t*>(lock)->__data.__kind & 127;  // without what says whether the lock may be elided
  return kind != PTHREAD_MUTEX_TIMED_NP && kind != PTHREAD_MUTEX_ADAPTIVE_NP;
}

}  // namespace

void note_before_first_thread(const char* call, uintptr_t lock) {
  if (!lock || !(begins(call, "pthread_mutex_") || begins(call, "pthread_rwlock_") || begins(call, "mtx_"))) return;
  bool leaves = strstr(call, "unlock"), ends = strstr(call, "destroy");
  Held* h = nullptr;
  for (Held& o : held)
    if (o.times && o.lock == lock) h = &o;
  if (leaves || ends) {
    if (h) h->times = ends ? 0 : h->times - 1;
    return;
  }
  if (!strstr(call, "lock") || !knows_owner(call, lock)) return;
  for (Held& o : held)
    if (!h && !o.times) h = &o;
  if (!h) return void(knows_id = true);
  h->lock = lock;
  h->times++;
}

void note_id_before_first_thread() { knows_id = true; }

namespace {

bool no_ids() {
  for (const Held& h : held)
    if (h.times) return false;
  return !knows_id;
}

constexpr int kMostFiles = 64;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE (Linux 5.14)
struct Files {
  int count = 0, fd[kMostFiles];
  off_t offset[kMostFiles];  // the children move it, and it is one for all
};

// None of these functions takes memory from the heap: where the program's next block comes from would depend on it.

// Reads the file by parts, and calls line(data, text) for each line, until one returns false. Returns false then, or without the file.
bool each_line(const char* path, bool (*line)(void*, const char*), void* data) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[4096];
  size_t used = 0;
  bool go_on = true;
  for (ssize_t n; go_on && (n = read(fd, text + used, sizeof text - 1 - used)) > 0;) {
    used += static_cast<size_t>(n);
    char* begin = text;
    while (char* end = static_cast<char*>(memchr(begin, '\n', used - static_cast<size_t>(begin - text)))) {
      *end = 0;
      go_on = go_on && line(data, begin);
      begin = end + 1;
    }
    used -= static_cast<size_t>(begin - text);
    memmove(text, begin, used);
    if (used == sizeof text - 1) used = 0;  // a line that is longer: its rest counts as another one
  }
  close(fd);
  return go_on;
}

bool only_thread() {
  return each_line("/proc/self/status", [](void*, const char* l) { return strncmp(l, "Threads:", 8) != 0 || atoi(l + 8) == 1; }, nullptr);
}

bool no_shared_memory(const Explored* own) {
  auto line = [](void* own, const char* l) {
    char* at;
    auto low = strtoul(l, &at, 16);
    strtoul(at + 1, &at, 16);
    bool writes = at[2] == 'w', shared = at[4] == 's';
    return !writes || !shared || low == reinterpret_cast<uintptr_t>(own);
  };
  return each_line("/proc/self/maps", line, const_cast<Explored*>(own));
}

// The program has written nothing but to stdout and stderr. What it wrote to a file would be there once, and each run may change it.
bool wrote_nowhere_else(uint64_t known) {
  struct Search {
    uint64_t known;
    bool found;
  } search{known, false};
  auto line = [](void* p, const char* l) {
    auto* s = static_cast<Search*>(p);
    if (!strncmp(l, "wchar:", 6)) s->found = strtoull(l + 6, nullptr, 10) == s->known;
    return true;
  };
  return each_line("/proc/self/io", line, &search) && search.found;
}

bool no_timers() {
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval t;
    if (getitimer(which, &t) != 0 || t.it_value.tv_sec || t.it_value.tv_usec) return false;
  }
  // Without this file nobody knows.
  return access("/proc/self/timers", F_OK) == 0 && each_line("/proc/self/timers", [](void*, const char*) { return false; }, nullptr);
}

bool no_children() {
  siginfo_t i;
  struct sigaction a;
  return waitid(P_ALL, 0, &i, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD &&
         sigaction(SIGCHLD, nullptr, &a) == 0 && a.sa_handler != SIG_IGN && !(a.sa_flags & SA_NOCLDWAIT);
}

bool may_be_shared(int fd, const Explored::Server& s, Files& files) {
  struct stat st;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &st) != 0) return false;
  if (S_ISCHR(st.st_mode)) return major(st.st_rdev) == 1;  // null, zero, random and their kin
  if (S_ISREG(st.st_mode) && (st.st_ino == s.out || st.st_ino == s.err)) return true;
  if (!(flags & O_PATH) && !S_ISDIR(st.st_mode) && (!S_ISREG(st.st_mode) || (flags & O_ACCMODE) != O_RDONLY)) return false;
  if (files.count == kMostFiles) return false;
  files.fd[files.count] = fd;
  files.offset[files.count++] = lseek(fd, 0, SEEK_CUR);
  return true;
}

bool descriptors_may_be_shared(const Explored::Server& s, Files& files) {
  int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  char entries[2048];
  bool may = true;
  for (long n; may && (n = syscall(SYS_getdents64, directory, entries, sizeof entries)) > 0;)
    for (long at = 0; may && at < n;) {
      auto* e = reinterpret_cast<dirent64*>(entries + at);
      at += e->d_reclen;
      int fd = atoi(e->d_name);
      if (e->d_name[0] != '.' && fd != directory) may = may_be_shared(fd, s, files);
    }
  close(directory);
  return may;
}

bool may_serve(Explored& shared, Files& files) {
  Explored::Server& s = shared.server;
  off_t out = lseek(1, 0, SEEK_CUR), err = lseek(2, 0, SEEK_CUR);
  if (s.root != getpid() || out < 0 || err < 0) return false;
  s.out_before = static_cast<uint64_t>(out);
  s.err_before = static_cast<uint64_t>(err);
  return no_ids() && only_thread() && no_children() && no_timers() && descriptors_may_be_shared(s, files) && no_shared_memory(&shared) &&
         wrote_nowhere_else(s.out_before + s.err_before);
}

// The kernel gives the child of a fork no page tables of a file's private mapping that was never written to: each page that the child reads
// costs it a fault. So one page of each is made as by a write here. The child then gets all that is mapped.
void write_to_files() {
  auto line = [](void*, const char* l) {
    char* at;
    auto low = strtoul(l, &at, 16), high = strtoul(at + 1, &at, 16);
    bool reads = at[1] == 'r', writes = at[2] == 'w', executes = at[3] == 'x', is_private = at[4] == 'p';
    const char* file = strchr(at, '/');
    if (!reads || writes || !is_private || !file) return true;
    int protection = PROT_READ | (executes ? PROT_EXEC : 0);
    auto* page = reinterpret_cast<void*>(low);
    if (mprotect(page, high - low, protection | PROT_WRITE) == 0) {
      madvise(page, 4096, kPopulateWrite);  // fails where a write would be a fault
      mprotect(page, high - low, protection);
    }
    return true;
  };
  each_line("/proc/self/maps", line, nullptr);
}

// By system calls: libc's functions are the library's, and main is a fiber.
void serve(Explored& shared, const Files& files) {
  Explored::Server& s = shared.server;
  uint64_t all = ~uint64_t{0}, mask;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(&mask), sizeof mask);
  s.serves.store(1, std::memory_order_release);
  for (uint32_t run = 1;; run++) {
    for (uint32_t wanted; (wanted = s.wanted.load(std::memory_order_acquire)) < run;)
      raw_syscall(SYS_futex, arg(&s.wanted), FUTEX_WAIT, wanted, 0);
    for (int i = 0; i < files.count; i++) raw_syscall(SYS_lseek, files.fd[i], files.offset[i], SEEK_SET);
    pid_t pid = fiberthread_explore_fork();
    if (pid == 0) {
      raw_syscall(SYS_setpgid, 0, 0);
      raw_syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
      if (raw_syscall(SYS_getppid) != s.root) raw_syscall(SYS_exit_group, 1);
      raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&mask), 0, sizeof mask);
      return;
    }
    if (pid < 0) raw_syscall(SYS_exit_group, 1);
    raw_syscall(SYS_setpgid, pid, pid);
    s.child = pid;
    int status;
    while (raw_syscall(SYS_wait4, pid, arg(&status)) == -EINTR) {
    }
    s.status = status;
    s.ended.store(run, std::memory_order_release);
    raw_syscall(SYS_kill, s.launcher, SIGCHLD);
  }
}

}  // namespace

void serve_before_first_thread() {
  if (!fiberthread_explore_shared) return;
  int error = errno;
  Files files;
  if (auto* shared = static_cast<Explored*>(fiberthread_explore_shared())) {
    bool may = may_serve(*shared, files);
    if (may) write_to_files();
    // In either case, so that the heap and the times are the same.
    if (fiberthread_explore_start() && may) serve(*shared, files);
    fiberthread_explore_claim();
  }
  errno = error;
}
