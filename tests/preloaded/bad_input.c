// SPDX-License-Identifier: MIT
// What a program may do wrong gives POSIX's errors, and never a crash. Also too little memory or address space.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void* nothing(void* p) { return p; }
static void* wait_for(void* p) {
  while (!*(volatile int*)p) sched_yield();
  return p;
}
static void* joins_itself(void* p) {
  assert(pthread_join(pthread_self(), NULL) == EDEADLK);
  return p;
}
static void* uses_stack(void* p) {
  volatile char a[8192];
  memset((char*)a, 1, sizeof a);
  return (void*)(long)(a[100] + (p == NULL));
}

static void sizes(void) {
  pthread_attr_t a;
  pthread_t t;
  pthread_attr_init(&a);
  assert(pthread_attr_setstacksize(&a, 1) == EINVAL);
  assert(pthread_attr_setdetachstate(&a, 77) == EINVAL);
  // More than the whole address space.
  assert(pthread_attr_setstacksize(&a, (size_t)1 << 47) == 0);
  assert(pthread_create(&t, &a, nothing, NULL) == EAGAIN);
  assert(pthread_attr_setstacksize(&a, (size_t)-4096) == 0);
  int e = pthread_create(&t, &a, nothing, NULL);
  assert(e == EAGAIN || e == EINVAL);
  pthread_attr_destroy(&a);
  // The guard is larger than the stack. It is added to the stack's size.
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 64 * 1024);
  pthread_attr_setguardsize(&a, 1 << 20);
  assert(pthread_create(&t, &a, uses_stack, NULL) == 0 && pthread_join(t, NULL) == 0);
  pthread_attr_setguardsize(&a, (size_t)-4096);
  e = pthread_create(&t, &a, nothing, NULL);
  assert(e == EINVAL || e == EAGAIN);
  // Sizes that work: small, odd and large ones, guards of each size, and memory of the program's own.
  for (size_t size = 16384; size <= 64 << 20; size = size * 2 + 4096) {
    pthread_attr_setstacksize(&a, size);
    pthread_attr_setguardsize(&a, size >= 65536 ? 8192 : 0);
    assert(pthread_create(&t, &a, uses_stack, NULL) == 0 && pthread_join(t, NULL) == 0);
  }
  pthread_attr_destroy(&a);
  for (int i = 0; i < 50; i++) {
    pthread_attr_init(&a);
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN), size = least > 32 * 1024 ? 2 * least : 64 * 1024;
    void* mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(pthread_attr_setstack(&a, mem, size) == 0 && pthread_create(&t, &a, uses_stack, NULL) == 0);
    pthread_attr_destroy(&a);
    void* r;
    assert(pthread_join(t, &r) == 0 && r == (void*)2);
    memset(mem, 0xff, size);
    munmap(mem, size);
  }
}

static void handles(void) {
  pthread_t t;
  int go = 0;
  pthread_create(&t, NULL, joins_itself, NULL);
  assert(pthread_join(t, NULL) == 0);
  pthread_create(&t, NULL, wait_for, &go);
  assert(pthread_tryjoin_np(t, NULL) == EBUSY);
  struct timespec past = {0, 0};
  assert(pthread_timedjoin_np(t, NULL, &past) == ETIMEDOUT);
  assert(pthread_clockjoin_np(t, NULL, CLOCK_MONOTONIC, &past) == ETIMEDOUT);
  assert(pthread_kill(t, 0) == 0 && pthread_kill(t, 12345) == EINVAL);
  char name[16], longer[] = "a name that is too long";
  assert(pthread_setname_np(t, longer) == ERANGE && pthread_setname_np(t, "short") == 0);
  assert(pthread_getname_np(t, name, sizeof name) == 0 && strcmp(name, "short") == 0);
  assert(pthread_getname_np(t, name, 3) == ERANGE);
  struct sched_param p = {1000};
  assert(pthread_setschedparam(t, SCHED_FIFO, &p) == EINVAL && pthread_setschedparam(t, 77, &p) == EINVAL);
  cpu_set_t none;
  CPU_ZERO(&none);
  assert(pthread_setaffinity_np(t, sizeof none, &none) == EINVAL);
  assert(pthread_detach(t) == 0 && pthread_detach(t) == EINVAL && pthread_join(t, NULL) == EINVAL);
  go = 1;
  assert(pthread_setcancelstate(77, NULL) == EINVAL && pthread_setcanceltype(77, NULL) == EINVAL);
  assert(pthread_mutex_destroy(&(pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER) == 0);
  stack_t small = {malloc(100), 0, 100};
  assert(sigaltstack(&small, NULL) == -1 && errno == ENOMEM);
  sigset_t set;
  sigemptyset(&set);
  assert(pthread_sigmask(77, &set, NULL) == EINVAL && sigaction(SIGKILL, &(struct sigaction){0}, NULL) == -1 && errno == EINVAL);
  assert(signal(0, SIG_IGN) == SIG_ERR && signal(65, SIG_IGN) == SIG_ERR && raise(1000) != 0);
}

// With little address space, as many threads begin as fit. The next one gives EAGAIN, and the program goes on.
static int with_little_memory(void) {
  struct rlimit limit = {400 << 20, 400 << 20};
  setrlimit(RLIMIT_AS, &limit);
  static pthread_t t[100000];
  volatile int go = 0;
  int n = 0, e = 0;
  while (n < 100000 && (e = pthread_create(&t[n], NULL, wait_for, (void*)&go)) == 0) n++;
  assert(n > 8 && n < 100000 && e == EAGAIN);
  go = 1;
  for (int i = 0; i < n; i++) assert(pthread_join(t[i], NULL) == 0);
  assert(pthread_create(&t[0], NULL, nothing, NULL) == 0 && pthread_join(t[0], NULL) == 0);
  while (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
  }
  for (int i = 0; i < 10; i++)
    if (pthread_create(&t[0], NULL, nothing, NULL) == 0) pthread_join(t[0], NULL);
  return 0;
}

static void exhausted(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "bad_input", "little memory", (char*)NULL);
    _exit(1);
  }
  int status;
  assert(waitpid(child, &status, 0) == child);
  printf("exhausted: %#x\n", status);
}

int main(int argc, char** argv) {
  if (argc > 1) return with_little_memory();
  sizes();
  handles();
  exhausted();
  return 0;
}
