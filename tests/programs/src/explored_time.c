// SPDX-License-Identifier: MIT
// explored_time MODE: what time is to an explored program.
//   alone  waits of all kinds in a process of one thread, each of which must last
//   busy   two threads that work until five seconds have passed
//   sleep  main relies on sleep(1) to come after another thread: right unless timers of that length may fire early
//   taken  work goes on until each of two threads has had a part of it, and one of them is quicker
//   tty    a thread writes more than a terminal takes while main does not read
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int state, had[2], terminal;
enum { kShort = 30 };  // ms

static long now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static struct timespec in(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

#define LASTS(call) \
  do { \
    long begin = now(CLOCK_MONOTONIC); \
    call; \
    long took = now(CLOCK_MONOTONIC) - begin; \
    assert(took >= kShort - 1 && took < 5000); \
  } while (0)

static void alone(void) {
  struct timespec t = {0, kShort * 1000000};
  struct epoll_event e;
  int ep = epoll_create1(0);
  pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
  sem_t* shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  sem_init(shared, 1, 0);
  sem_init(shared + 1, 0, 0);
  pthread_mutex_lock(&lock);
  LASTS(t = in(CLOCK_REALTIME, kShort); pthread_cond_timedwait(&changed, &lock, &t));
  LASTS(t = in(CLOCK_MONOTONIC, kShort); pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &t));
  LASTS(t = in(CLOCK_REALTIME, kShort); sem_timedwait(shared, &t));
  LASTS(t = in(CLOCK_MONOTONIC, kShort); sem_clockwait(shared + 1, CLOCK_MONOTONIC, &t));
  LASTS(t = in(CLOCK_MONOTONIC, kShort); clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0));
  LASTS(usleep(kShort * 1000));
  LASTS(poll(0, 0, kShort));
  // What has not waited takes no time, even if its result is as large as the number ETIMEDOUT.
  struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = ETIMEDOUT};
  char name[32], message[ETIMEDOUT] = {};
  snprintf(name, sizeof name, "/explored_time.%d", getpid());
  long begin = now(CLOCK_MONOTONIC);
  mqd_t queue = mq_open(name, O_RDWR | O_CREAT, 0600, &attr);
  if (queue >= 0) {
    mq_unlink(name);
    t = in(CLOCK_REALTIME, 60000);
    assert(mq_send(queue, message, sizeof message, 0) == 0 && mq_timedreceive(queue, message, sizeof message, 0, &t) == ETIMEDOUT);
  }
  assert(now(CLOCK_MONOTONIC) - begin < 5000);
  LASTS(epoll_wait(ep, &e, 1, kShort));
}

static void* works(void* p) {
  for (long end = now(CLOCK_MONOTONIC) + 5000; now(CLOCK_MONOTONIC) < end;) {
    pthread_mutex_lock(&lock);
    state++;
    pthread_mutex_unlock(&lock);
  }
  return p;
}

static void* prepares(void* p) {
  pthread_mutex_lock(&lock);
  state = 1;
  pthread_mutex_unlock(&lock);
  return p;
}

static void* takes(void* p) {
  pthread_mutex_lock(&lock);
  while (!had[0] || !had[1]) {
    while (!state && (!had[0] || !had[1])) pthread_cond_wait(&changed, &lock);
    had[(long)p] += state;
    state = 0;
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&lock);
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return p;
}

static void* writes(void* p) {
  static char much[1 << 16];
  for (size_t at = 0; at < sizeof much;) at += write(terminal, much + at, sizeof much - at);
  return p;
}

int main(int argc, char** argv) {
  pthread_t t, u;
  const char* mode = argv[1];
  if (!strcmp(mode, "alone")) {
    alone();
  } else if (!strcmp(mode, "busy")) {
    pthread_create(&t, 0, works, 0);
    works(0);
    pthread_join(t, 0);
  } else if (!strcmp(mode, "sleep")) {
    pthread_create(&t, 0, prepares, 0);
    sleep(1);
    pthread_mutex_lock(&lock);
    assert(state == 1);
    pthread_mutex_unlock(&lock);
    pthread_join(t, 0);
  } else if (!strcmp(mode, "taken")) {
    pthread_create(&t, 0, takes, (void*)0);
    pthread_create(&u, 0, takes, (void*)1);
    for (int done = 0; !done;) {
      pthread_mutex_lock(&lock);
      done = had[0] && had[1];
      state = 1;
      pthread_cond_signal(&changed);
      pthread_mutex_unlock(&lock);
    }
    pthread_join(t, 0);
    pthread_join(u, 0);
  } else if (!strcmp(mode, "tty")) {
    char part[4096];
    int pty = posix_openpt(O_RDWR | O_NOCTTY);
    struct termios raw;
    if (pty < 0 || grantpt(pty) != 0 || unlockpt(pty) != 0 || (terminal = open(ptsname(pty), O_RDWR | O_NOCTTY)) < 0) return 0;
    tcgetattr(terminal, &raw);
    cfmakeraw(&raw);
    tcsetattr(terminal, TCSANOW, &raw);
    pthread_create(&t, 0, writes, 0);
    for (long got = 0; got < 1 << 16;) {
      struct pollfd p = {pty, POLLIN, 0};
      poll(&p, 1, -1);
      got += read(pty, part, sizeof part);
    }
    pthread_join(t, 0);
  }
  return 0;
}
