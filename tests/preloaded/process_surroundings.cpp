// SPDX-License-Identifier: MIT
// Surroundings in which a process may have to live: an empty root, no /proc, filters of system calls, few kernel threads, little address
// space, stacks of its own. Each is tried in a child.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <vector>

namespace {

// ---- work that needs little help from libc ----

pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t c = PTHREAD_COND_INITIALIZER;
std::atomic<int> started, finished;
int turn, wire[2];

void start_thread(pthread_t* t, void* (*f)(void*), void* p = nullptr) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 128 * 1024);
  int e = pthread_create(t, &a, f, p);
  if (e) {
    printf("no thread: %s\n", strerror(e));
    fflush(stdout);
    _exit(50);
  }
}

void* takes_turns(void* p) {
  started++;
  long me = (long)p;
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&m);
    while (turn % 4 != me) pthread_cond_wait(&c, &m);
    turn++;
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
  }
  finished++;
  return nullptr;
}
void* sleeps(void*) {
  started++;
  for (int i = 0; i < 5; i++) usleep(500);
  finished++;
  return nullptr;
}
void* reads(void*) {
  started++;
  char b;
  if (read(wire[0], &b, 1) == 1) finished++;
  return nullptr;
}
void* writes(void*) {
  started++;
  usleep(2000);
  if (write(wire[1], "x", 1) == 1) finished++;
  return nullptr;
}
void* computes(void*) {
  started++;
  for (volatile int i = 0; i < 3000000;) i = i + 1;
  finished++;
  return nullptr;
}

std::vector<pthread_t> running;
void start_all() {
  pipe(wire);
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &s, nullptr);
  pthread_t t;
  for (long i = 0; i < 4; i++) start_thread(&t, takes_turns, (void*)i), running.push_back(t);
  for (int i = 0; i < 4; i++) start_thread(&t, sleeps), running.push_back(t);
  for (int i = 0; i < 3; i++) start_thread(&t, reads), running.push_back(t);
  for (int i = 0; i < 3; i++) start_thread(&t, writes), running.push_back(t);
  for (int i = 0; i < 3; i++) start_thread(&t, computes), running.push_back(t);
}
void finish_all(const char* name) {
  for (auto t : running) pthread_join(t, nullptr);
  running.clear();
  printf("%s: %d of %d\n", name, finished.load(), started.load());
  fflush(stdout);
}
void all(const char* name) {
  start_all();
  finish_all(name);
}
// These threads exist already, and wait, when something changes.
pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
void* behind_gate(void* p) {
  pthread_mutex_lock(&gate);
  pthread_mutex_unlock(&gate);
  struct Job {
    void* (*f)(void*);
    void* p;
  };
  auto* j = static_cast<Job*>(p);
  j->f(j->p);
  return nullptr;
}
struct Job {
  void* (*f)(void*);
  void* p;
} jobs[16];
void start_behind_gate() {
  pipe(wire);
  pthread_mutex_lock(&gate);
  int n = 0;
  for (long i = 0; i < 4; i++) jobs[n++] = {takes_turns, (void*)i};
  for (int i = 0; i < 3; i++) jobs[n++] = {reads, nullptr};
  for (int i = 0; i < 3; i++) jobs[n++] = {writes, nullptr};
  for (int i = 0; i < 3; i++) jobs[n++] = {sleeps, nullptr};
  for (int i = 0; i < 3; i++) jobs[n++] = {computes, nullptr};
  for (int i = 0; i < n; i++) {
    pthread_t t;
    start_thread(&t, behind_gate, &jobs[i]);
    running.push_back(t);
  }
}
void open_gate(const char* name) {
  pthread_mutex_unlock(&gate);
  finish_all(name);
}

// ---- the surroundings ----

const char* empty_directory() {
  static char path[] = "empty-XXXXXX";
  return mkdtemp(path);
}
void chroot_first() {
  const char* d = empty_directory();
  if (chroot(d) != 0 || chdir("/") != 0) printf("no chroot\n");
  all("chroot first");
}
void chroot_later() {
  const char* d = empty_directory();
  start_behind_gate();
  if (chroot(d) != 0 || chdir("/") != 0) printf("no chroot\n");
  open_gate("chroot later");
  started = finished = 0;
  all("chroot, new threads");
}
void chroot_by_thread() {
  static const char* d = empty_directory();
  start_behind_gate();
  pthread_t t;
  start_thread(&t, [](void*) -> void* {
    if (chroot(d) != 0 || chdir("/") != 0) printf("no chroot\n");
    return nullptr;
  });
  pthread_join(t, nullptr);
  // The root directory belongs to the whole process.
  printf("root is empty for all: %d\n", access("/bin", F_OK) == -1 && access("/proc", F_OK) == -1);
  open_gate("chroot by a thread");
}
void other_user() {
  start_behind_gate();
  if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) printf("no other user\n");
  open_gate("as another user");
  started = finished = 0;
  all("as another user, new threads");
}

void refuse(std::initializer_list<int> calls) {
  std::vector<sock_filter> f;
  f.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (int n : calls) {
    f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)n, 0, 1));
    f.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  f.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog prog = {(unsigned short)f.size(), f.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog);
  if (r != 0) printf("no filter: %ld %s\n", r, strerror(errno));
}
template <int... kCalls>
void filtered_first() {
  refuse({kCalls...});
  all("filter first");
}
template <int... kCalls>
void filtered_later() {
  start_behind_gate();
  refuse({kCalls...});
  open_gate("filter later");
}

void few_threads() {
  rlimit l = {1, 1};
  if (setresuid(65534, 65534, 65534) != 0) printf("no other user\n");
  setrlimit(RLIMIT_NPROC, &l);
  pthread_t t;
  int e = pthread_create(&t, nullptr, sleeps, nullptr);
  printf("no kernel threads: %s\n", strerror(e));
}
void few_threads_later() {
  start_behind_gate();
  usleep(1000);
  if (setresuid(65534, 65534, 65534) != 0) printf("no other user\n");
  rlimit l = {1, 1};
  setrlimit(RLIMIT_NPROC, &l);
  open_gate("no more kernel threads");
}
void little_memory() {
  // The limit is 64 MB more than the process has now.
  FILE* f = fopen("/proc/self/statm", "r");
  long pages = 0;
  if (f) fscanf(f, "%ld", &pages), fclose(f);
  rlimit l = {(rlim_t)pages * 4096 + (64 << 20), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &l);
  all("little address space");
}
void few_descriptors() {
  rlimit l = {8, 8};
  setrlimit(RLIMIT_NOFILE, &l);
  all("few descriptors");
}
void few_signals() {
  rlimit l = {0, 0};
  setrlimit(RLIMIT_SIGPENDING, &l);
  all("no queued signals");
}
void no_locked_memory() {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0) all("locked memory");
  else printf("locked memory: 17 of 17\n");
}
void closes_all() {
  start_behind_gate();
  int keep[2] = {wire[0], wire[1]};
  for (int i = 3; i < 2000; i++)
    if (i != keep[0] && i != keep[1]) close(i);
  open_gate("all descriptors closed");
}

// ---- stacks of the program's own ----

struct Coroutine {
  ucontext_t here, back;
  char* stack;
  int n = 0;
};
thread_local Coroutine* current;
thread_local int local;
void body() {
  for (int i = 0; i < 20; i++) {
    Coroutine* me = current;
    local++;
    pthread_mutex_lock(&m);
    turn++;
    pthread_mutex_unlock(&m);
    if (i % 5 == 0) usleep(10);
    if (i % 3 == 0) sched_yield();
    for (volatile int k = 0; k < 20000;) k = k + 1;
    try {
      throw i;
    } catch (int e) {
      me->n += e == i;
    }
    swapcontext(&me->here, &me->back);
  }
}
void* coroutines(void*) {
  std::vector<Coroutine> all(8);
  for (auto& x : all) {
    x.stack = (char*)malloc(65536);
    getcontext(&x.here);
    x.here.uc_stack.ss_sp = x.stack;
    x.here.uc_stack.ss_size = 65536;
    x.here.uc_link = nullptr;
    makecontext(&x.here, body, 0);
  }
  for (int round = 0; round < 20; round++)
    for (auto& x : all) {
      current = &x;
      swapcontext(&x.back, &x.here);
    }
  int n = 0;
  for (auto& x : all) n += x.n, free(x.stack);
  return (void*)(long)(n + local);
}
void contexts() {
  turn = 0;
  std::vector<pthread_t> t(8);
  long n = 0;
  for (auto& x : t) start_thread(&x, coroutines);
  for (auto& x : t) {
    void* r;
    pthread_join(x, &r);
    n += (long)r;
  }
  printf("contexts: %ld, %d\n", n, turn);
}
// A context goes on in another thread.
ucontext_t wanders, homes[2];
std::atomic<int> at{0};
void wander() {
  for (int i = 0; i < 50; i++) {
    ucontext_t* back = &homes[i % 2];
    at = (i + 1) % 2 + 10;
    swapcontext(&wanders, back);
  }
}
void wandering() {
  static char stack[65536];
  getcontext(&wanders);
  wanders.uc_stack.ss_sp = stack;
  wanders.uc_stack.ss_size = sizeof stack;
  makecontext(&wanders, wander, 0);
  static sem_t turns[2];
  sem_init(&turns[0], 0, 1);
  sem_init(&turns[1], 0, 0);
  static std::atomic<int> steps;
  auto f = [](void* p) -> void* {
    long me = (long)p;
    for (int i = 0; i < 25; i++) {
      sem_wait(&turns[me]);
      swapcontext(&homes[me], &wanders);
      steps++;
      sem_post(&turns[1 - me]);
    }
    return nullptr;
  };
  pthread_t a, b;
  start_thread(&a, f, (void*)0);
  start_thread(&b, f, (void*)1);
  pthread_join(a, nullptr);
  pthread_join(b, nullptr);
  printf("a wandering context: %d\n", steps.load());
}

struct {
  const char* name;
  void (*f)();
} parts[] = {
    {"chroot first", chroot_first},
    {"chroot later", chroot_later},
    {"chroot by a thread", chroot_by_thread},
    {"another user", other_user},
    {"filter: membarrier", filtered_first<SYS_membarrier>},
    {"filter later: membarrier", filtered_later<SYS_membarrier>},
    {"filter: timers", filtered_first<SYS_timer_create, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_settime>},
    {"filter later: timers", filtered_later<SYS_timer_create, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_settime>},
    {"filter: files", filtered_first<SYS_openat>},
    {"filter later: files", filtered_later<SYS_openat, SYS_close, SYS_fcntl>},
    {"filter: signals to threads", filtered_first<SYS_tgkill, SYS_rt_tgsigqueueinfo>},
    {"filter later: signals to threads", filtered_later<SYS_tgkill, SYS_rt_tgsigqueueinfo, SYS_rt_sigaction, SYS_sigaltstack>},
    {"filter later: threads", filtered_later<SYS_clone, SYS_clone3>},
    {"filter: memory", filtered_first<SYS_madvise, SYS_mremap>},
    {"filter later: memory", filtered_later<SYS_madvise, SYS_mremap, SYS_mprotect>},
    {"filter: scheduling", filtered_first<SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_setattr, SYS_getpriority, SYS_prctl>},
    {"filter later: scheduling",
     filtered_later<SYS_sched_getaffinity, SYS_sched_yield, SYS_prctl, SYS_getpid, SYS_gettid, SYS_clock_gettime>},
    {"few threads", few_threads},
    {"few threads later", few_threads_later},
    {"little memory", little_memory},
    {"few descriptors", few_descriptors},
    {"few signals", few_signals},
    {"locked memory", no_locked_memory},
    {"closes all", closes_all},
    {"contexts", contexts},
    {"wandering", wandering},
};

}  // namespace

int main(int argc, char** argv) {
  char directory[] = "around-XXXXXX";
  assert(mkdtemp(directory) && chdir(directory) == 0);
  for (auto& part : parts) {
    if (argc > 1 && strcmp(argv[1], part.name) != 0) continue;
    printf("-- %s\n", part.name);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      part.f();
      fflush(stdout);
      _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) != pid) {
    }
    if (status) printf("ended with %#x\n", status);
    fflush(stdout);
  }
  return 0;
}
