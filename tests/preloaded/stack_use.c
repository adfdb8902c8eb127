// SPDX-License-Identifier: MIT
// How much stack calls use: no more than some kilobytes, as on NPTL, since programs choose small stacks by what they need there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMost = 7000, kNsPerMs = 1000000 };
static long stack_size = 65536;  // or twice the least that there is
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static int ends[2];
static const struct timespec soon = {0, 2 * kNsPerMs};

static struct timespec deadline(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += soon.tv_nsec;
  if (t.tv_nsec >= 1000 * kNsPerMs) t.tv_sec++, t.tv_nsec -= 1000 * kNsPerMs;
  return t;
}
static void* sleeps(void* p) {
  nanosleep(&soon, NULL);
  return p;
}
static void* sends(void* p) {
  nanosleep(&soon, NULL);
  send(ends[1], "x", 1, 0);
  return p;
}
static void handler(int sig) {}

static void waits_for_cond(void) {
  struct timespec t = deadline();
  pthread_mutex_lock(&mutex);
  pthread_cond_timedwait(&cond, &mutex, &t);
  pthread_mutex_unlock(&mutex);
}
static void waits_for_sem(void) {
  struct timespec t = deadline();
  sem_timedwait(&sem, &t);
}
static void creates_and_joins(void) {
  pthread_t t;
  pthread_create(&t, NULL, sleeps, NULL);
  pthread_join(t, NULL);
}
static void receives(void) {
  char c;
  pthread_t t;
  pthread_create(&t, NULL, sends, NULL);
  recv(ends[0], &c, 1, 0);
  pthread_join(t, NULL);
}
static void polls(void) {
  struct pollfd p = {ends[0], POLLIN, 0};
  sigset_t none;
  sigemptyset(&none);
  poll(&p, 1, 2);
  ppoll(&p, 1, &soon, &none);
}
static void selects(void) {
  fd_set set;
  sigset_t none;
  sigemptyset(&none);
  FD_ZERO(&set);
  FD_SET(ends[0], &set);
  pselect(ends[0] + 1, &set, NULL, NULL, &soon, &none);
}
static void waits_for_epoll(void) {
  struct epoll_event e;
  int fd = epoll_create1(0);
  epoll_wait(fd, &e, 1, 2);
  close(fd);
}
static void waits_for_signal(void) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  sigtimedwait(&set, NULL, &soon);
  pthread_kill(pthread_self(), SIGUSR1);
  sigsuspend(&before);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
static void changes_ids(void) { (void)!setgid(getgid()); }
static void changes_affinity(void) {
  cpu_set_t set;
  pthread_getaffinity_np(pthread_self(), sizeof set, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}
static void opens_library(void) {
  void* handle = dlopen("libm.so.6", RTLD_NOW);
  if (handle) dlclose(handle);
}
static void spawns(void) {
  char* arguments[] = {"true", NULL};
  pid_t child;
  if (posix_spawnp(&child, "true", NULL, NULL, arguments, NULL) == 0) waitpid(child, NULL, 0);
}
static void forks(void) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, NULL, 0);
}
static void ends_itself(void) { pthread_exit(NULL); }
static void is_cancelled(void) {
  pthread_cancel(pthread_self());
  pthread_testcancel();
}

#define CALL(name) {#name, name}
static const struct {
  const char* name;
  void (*call)(void);
} calls[] = {CALL(waits_for_cond), CALL(waits_for_sem),    CALL(creates_and_joins), CALL(receives),
             CALL(polls),          CALL(selects),          CALL(waits_for_epoll),   CALL(waits_for_signal),
             CALL(changes_ids),    CALL(changes_affinity), CALL(opens_library),     CALL(spawns),
             CALL(forks),          CALL(ends_itself),      CALL(is_cancelled)};
enum { kCalls = sizeof calls / sizeof *calls, kFree = 0x5a };

static char *stack, *from;
static void* run(void* p) {
  from = __builtin_frame_address(0);
  memset(stack, kFree, (size_t)(from - stack) - 256);
  calls[*(int*)p].call();
  return p;
}

int main(void) {
  signal(SIGUSR1, handler);
  sem_init(&sem, 0, 0);
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  if (stack_size < 2 * sysconf(_SC_THREAD_STACK_MIN)) stack_size = 2 * sysconf(_SC_THREAD_STACK_MIN);
  stack = aligned_alloc(65536, stack_size);
  for (int i = 0; i < kCalls; i++) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, stack_size);
    pthread_t t;
    if (pthread_create(&t, &attr, run, &i) != 0) return 1;
    pthread_join(t, NULL);
    pthread_attr_destroy(&attr);
    char* low = stack;
    while (*low == kFree) low++;
    if (from - low > kMost) printf("%s: uses %ld bytes\n", calls[i].name, (long)(from - low));
    else printf("%s: uses little\n", calls[i].name);
  }
  free(stack);
  return 0;
}
