// SPDX-License-Identifier: MIT
// Threads with the smallest stack do all that threads do: they make others, wait, handle signals, fork, and end in each way.
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_attr_t least;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t sem;
static int turn;
static volatile int handled, stop;

static void must(int e, const char* what) {
  if (e) printf("%s: %s\n", what, strerror(e)), exit(1);
}
static pthread_t make(void* (*start)(void*), void* p) {
  pthread_t t;
  must(pthread_create(&t, &least, start, p), "pthread_create");
  return t;
}
static void* end_of(pthread_t t) {
  void* result;
  must(pthread_join(t, &result), "pthread_join");
  return result;
}

static void* nothing(void* p) { return p; }
static void* creates(void* p) { return end_of(make(nothing, p)); }

static void* waits(void* p) {
  int mine = (int)(long)p;
  for (int i = 0; i < 50; i++) {
    pthread_mutex_lock(&mutex);
    while (turn % 4 != mine) pthread_cond_wait(&cond, &mutex);
    turn++;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
    pthread_rwlock_wrlock(&rwlock);
    sched_yield();
    pthread_rwlock_unlock(&rwlock);
    pthread_barrier_wait(&barrier);
    sem_post(&sem);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 100000;
    if (soon.tv_nsec >= 1000000000) soon.tv_sec++, soon.tv_nsec -= 1000000000;
    while (sem_timedwait(&sem, &soon) != 0 && errno == EINTR) {
    }
    usleep(10);
    poll(NULL, 0, 1);
  }
  return p;
}

static void* pipes(void* p) {
  int fd[2];
  must(pipe(fd), "pipe");
  char c = 1;
  for (int i = 0; i < 20; i++) {
    struct pollfd ready = {fd[0], POLLIN};
    if (write(fd[1], &c, 1) != 1 || poll(&ready, 1, -1) != 1 || read(fd[0], &c, 1) != 1) puts("no byte");
  }
  close(fd[0]);
  close(fd[1]);
  return p;
}

static void handler(int sig) { handled++; }
static void* is_signalled(void* p) {
  sem_post(&sem);
  // Signals come while it waits, and while it runs.
  while (handled < 20 && !stop) {
    usleep(1000);
    for (volatile int i = 0; i < 100000; i++) {
    }
  }
  return p;
}

static void* computes(void* p) {
  volatile double x = 1;
  for (int i = 0; i < 20000000; i++) x = x * 1.0000001;
  return p;
}

static void* prints(void* p) {
  char text[200];
  snprintf(text, sizeof text, "%s %d %5.2f", "text", 5, 2.5);
  return !strcmp(text, "text 5  2.50") ? p : NULL;
}

static void* forks(void* p) {
  pid_t pid = fork();
  if (pid == 0) _exit(end_of(make(creates, p)) == p ? 7 : 1);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? p : NULL;
}

static void* exits(void* p) {
  pthread_exit(p);
  return NULL;
}
static void* is_cancelled(void* p) {
  for (;;) pause();
  return p;
}

static void each(const char* name, void* (*start)(void*)) {
  pthread_t t[4];
  int right = 0;
  for (long i = 0; i < 4; i++) t[i] = make(start, (void*)i);
  for (long i = 0; i < 4; i++) right += end_of(t[i]) == (void*)i;
  printf("%s: %d right\n", name, right);
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  pthread_attr_init(&least);
  long size = sysconf(_SC_THREAD_STACK_MIN);
  must(pthread_attr_setstacksize(&least, size > 16384 ? size : 16384), "pthread_attr_setstacksize");
  pthread_barrier_init(&barrier, NULL, 4);
  sem_init(&sem, 0, 0);
  struct sigaction sa = {.sa_handler = handler};
  sigaction(SIGUSR1, &sa, NULL);
  // libc loads what pthread_exit and cancellation need at their first use. That takes more than the smallest stack.
  pthread_t large;
  pthread_create(&large, NULL, exits, NULL);
  pthread_join(large, NULL);

  each("create", creates);
  each("waits", waits);
  each("pipes", pipes);
  each("prints", prints);
  each("computes", computes);
  each("forks", forks);
  each("exits", exits);
  pthread_t t = make(is_cancelled, NULL);
  pthread_cancel(t);
  printf("cancelled: %d\n", end_of(t) == PTHREAD_CANCELED);
  while (sem_trywait(&sem) == 0) {
  }
  t = make(is_signalled, NULL);
  sem_wait(&sem);
  while (handled < 20) {
    pthread_kill(t, SIGUSR1);
    usleep(100);
  }
  stop = 1;
  end_of(t);
  printf("signalled\n");
  return 0;
}
