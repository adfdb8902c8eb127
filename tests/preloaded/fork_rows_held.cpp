// SPDX-License-Identifier: MIT
// A process forks while another of its threads is inside a call: that thread holds a lock, or has changed something that it will change
// back. The child does not have that thread, but can make threads all the same.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "children.h"

namespace {

using Visit = int (*)(dl_phdr_info*, size_t, void*);
using Iterate = int (*)(Visit, void*);

Iterate libcs_iterate() {
  static auto* real = reinterpret_cast<Iterate>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  return real;
}

void await(const std::atomic<int>& word, int value) {
  while (word != value) usleep(100);
}

// ---- what a child must be able to do ----

int threads_work() {
  for (int round = 0; round < 2; round++) {
    std::mutex m;
    int n = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 5; i++)
      threads.emplace_back([&] {
        std::lock_guard l(m);
        n++;
      });
    for (auto& t : threads) t.join();
    if (n != 5) return 1;
  }
  return 7;
}

// Makes threads, and makes calls that need the loader or all kernel threads.
int all_works() {
  if (int r = threads_work(); r != 7) return r;
  void* library = dlopen("libm.so.6", RTLD_NOW);
  if (!library || dlclose(library) != 0) return 2;
  if (setresuid(-1, -1, -1) != 0) return 3;
  int own = 4;
  std::thread([&] { own = setresgid(-1, -1, -1); }).join();
  return own == 0 ? threads_work() : own;
}

// ---- the loader's list of objects ----

std::atomic<int> in_list, leave_list;

int stays(dl_phdr_info*, size_t, void*) {
  in_list = 1;
  await(leave_list, 1);
  return 1;
}

int list_held() {
  in_list = leave_list = 0;
  std::thread holder([] { libcs_iterate()(stays, nullptr); });
  await(in_list, 1);
  printf("by another thread, fork: %#x\n", status_of_fork(threads_work));
  fflush(stdout);
  pid_t pid = _Fork();
  if (pid == 0) _exit(threads_work());
  printf("by another thread, _Fork: %#x\n", status_within_limit(pid));
  std::thread([] { printf("by another thread, fork in a thread: %#x\n", status_of_fork(threads_work)); }).join();
  // The child makes no thread, but has a child that does.
  printf("by another thread, fork twice: %#x\n", status_of_fork([] {
           int s = status_of_fork(threads_work);
           return WIFEXITED(s) ? WEXITSTATUS(s) : 9;
         }));
  leave_list = 1;
  holder.join();
  printf("afterwards: %#x\n", status_of_fork(all_works));
  return 0;
}

int list_held_by_caller() {
  int inside = 0;
  static pid_t pid;
  libcs_iterate()(
      [](dl_phdr_info*, size_t, void* data) {
        *static_cast<int*>(data) = status_of_fork(threads_work);
        fflush(stdout);
        pid = fork();
        return 1;
      },
      &inside);
  if (pid == 0) _exit(threads_work());  // it has left the call
  int left = status_within_limit(pid);
  printf("by the caller: %#x, %#x\n", inside, left);
  printf("afterwards: %#x\n", status_of_fork(all_works));
  return 0;
}

// ---- what the library does after a dlopen ----

thread_local bool opens;
std::atomic<int> stop_at, calls, stopped;

}  // namespace

// Stands for libc's function in this process. A thread that opens a library stops in its call number `stop_at`.
extern "C" int dl_iterate_phdr(Visit visit, void* data) {
  if (opens && calls++ == stop_at) {
    stopped = 1;
    await(stopped, 0);
  }
  return libcs_iterate()(visit, data);
}

namespace {

// On libc's own threads, dlopen() makes none of these calls.
int dlopen_under_way() {
  enum { kMostCalls = 20 };
  int wrong = 0;
  libcs_iterate();
  for (stop_at = 0; stop_at < kMostCalls; stop_at++) {
    calls = stopped = 0;
    std::atomic<int> over = 0;
    std::thread opener([&] {
      opens = true;
      void* library = dlopen("libm.so.6", RTLD_NOW);
      if (library) dlclose(library);
      opens = false;
      over = 1;
    });
    while (!stopped && !over) usleep(100);
    if (stopped) {
      int s = status_of_fork(all_works);
      if (s != 0x700) wrong++, printf("call %d: %#x\n", stop_at.load(), s);
      stopped = 0;
    }
    opener.join();
  }
  printf("a dlopen under way: %d wrong\n", wrong);
  return 0;
}

// ---- ids ----

// A kernel thread that neither libc nor the library has made. It blocks all signals, libc's own included, so it cannot be told anything.
#if defined(__x86_64__)
long kernel_call(long nr, long a, long b, long c, long d) {
  long r;
  register long r10 asm("r10") = d;
  asm volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return r;
}
#elif defined(__aarch64__)
long kernel_call(long nr, long a, long b, long c, long d) {
  register long x8 asm("x8") = nr;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
}
#endif

std::atomic<int> deaf, hears;

int is_deaf(void*) {
  unsigned long all = ~0ul, none = 0;
  kernel_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8);
  deaf = 1;
  while (!hears) {
    timespec t = {0, 1000000};
    kernel_call(SYS_nanosleep, (long)&t, 0, 0, 0);
  }
  kernel_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, 8);
  return 0;
}

// Returns true if the signal for libc's changes of ids waits for the thread.
bool is_told(int tid) {
  char path[64], line[256];
  unsigned long long pending = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
  FILE* f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "SigPnd: %llx", &pending) == 1) break;
  if (f) fclose(f);
  return pending >> (33 - 1) & 1;
}

int ids_change() {
  static char stack[65536] __attribute__((aligned(64)));
  static std::atomic<int> alive = 1;  // the kernel clears it
  deaf = hears = 0;
  int tid = clone(is_deaf, stack + sizeof stack,
                  CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID, nullptr, nullptr,
                  nullptr, &alive);
  if (tid < 0) return puts("no thread"), 1;
  await(deaf, 1);
  // libc does not know that thread, and does not wait for it.
  std::atomic<int> over = 0;
  std::thread changes([&] {
    if (setresuid(-1, -1, -1) != 0) puts("not changed");
    over = 1;
  });
  while (!over && !is_told(tid)) usleep(100);
  printf("while ids change: %#x\n", status_of_fork(all_works));
  // A child without threads of its own has libc change its ids.
  printf("the same without threads: %#x\n", status_of_fork([] { return setresuid(-1, -1, -1) == 0 ? 7 : 1; }));
  hears = 1;
  changes.join();
  await(alive, 0);
  printf("afterwards: %#x\n", status_of_fork(all_works));
  return 0;
}

const Part parts[] = {
    {"list", list_held},
    {"own list", list_held_by_caller},
    {"dlopen", dlopen_under_way},
    {"ids", ids_change},
};

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // so the lines before a hang are seen
  return run_parts(parts, argc > 1 ? argv[1] : nullptr);
}
