// SPDX-License-Identifier: MIT
// Threads with kernel threads of their own. Others fork meanwhile, change them, and make them by hundreds. Any kind of thread makes them.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct sched_param zero;
static volatile int stop;
static void batch(void) { assert(pthread_setschedparam(pthread_self(), SCHED_BATCH, &zero) == 0); }

static void* naps(void* p) {
  batch();
  while (!stop) usleep(1000);
  return p;
}
static void* nothing(void* p) { return p; }
static void* short_life(void* p) {
  batch();
  assert(sched_getscheduler(0) == SCHED_BATCH);
  if ((long)p % 3 == 0) usleep(100);
  return p;
}

static int in_child(void (*run)(void)) {
  fflush(stdout);
  pid_t p = fork();
  if (p == 0) {
    run();
    _exit(0);
  }
  int status;
  assert(waitpid(p, &status, 0) == p);
  return status;
}
static void makes_threads(void) {
  pthread_t t[40];
  for (int i = 0; i < 40; i++) assert(pthread_create(&t[i], NULL, i % 4 ? nothing : short_life, (void*)(long)i) == 0);
  for (int i = 0; i < 40; i++) assert(pthread_join(t[i], NULL) == 0);
}

static int number_of(const char* directory) {
  DIR* d = opendir(directory);
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

// A thread that changes another one's properties keeps its own.
static sem_t changed;
static pthread_t other_thread;
static int priority;  // the process's nice value, since "nice" may run the tests
static void* other(void* p) {
  sem_wait(&changed);
  for (int i = 0; i < 3; i++) {
    usleep(1000);
    assert(getpriority(PRIO_PROCESS, 0) == priority && sched_getscheduler(0) == SCHED_OTHER);
  }
  return p;
}
static void* changes_other(void* p) {
  setpriority(PRIO_PROCESS, 0, priority + 7);
  cpu_set_t all;
  assert(sched_getaffinity(0, sizeof all, &all) == 0);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&all) > 1; i++) CPU_CLR(i, &all);
  assert(pthread_setaffinity_np(other_thread, sizeof all, &all) == 0);
  sem_post(&changed);
  return p;
}

// A thread of libc's makes the first of these threads.
static sem_t timer_done;
static void makes_bound(union sigval v) {
  pthread_t t;
  for (long i = 0; i < 3; i++) {
    assert(pthread_create(&t, NULL, short_life, (void*)i) == 0 && pthread_join(t, NULL) == 0);
  }
  assert(sched_getscheduler(0) == SCHED_OTHER);
  sem_post(v.sival_ptr);
}

// Blocks so often that it may keep its kernel thread. Then it does what all others do.
static int pipes[2][2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long sum;
static void* echoes(void* p) {
  char c;
  for (int i = 0; i < 100; i++) {
    assert(read(pipes[0][0], &c, 1) == 1);
    pthread_mutex_lock(&mutex);
    sum++;
    pthread_mutex_unlock(&mutex);
    if (i == 50) {
      batch();  // from now on it is bound
      setpriority(PRIO_PROCESS, 0, 3);
    }
    assert(write(pipes[1][1], &c, 1) == 1);
  }
  return p;
}
static void* works(void* p) {
  while (!stop) {
    pthread_mutex_lock(&mutex);
    sum++;
    sum--;
    pthread_mutex_unlock(&mutex);
    sched_yield();
  }
  return p;
}

int main() {
  priority = getpriority(PRIO_PROCESS, 0);
  sem_init(&timer_done, 0, 0);
  sem_init(&changed, 0, 0);
  struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = makes_bound, .sigev_value.sival_ptr = &timer_done};
  timer_t timer;
  assert(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0);
  timer_settime(timer, 0, &(struct itimerspec){{0, 0}, {0, 1000000}}, NULL);
  while (sem_wait(&timer_done) != 0);
  timer_delete(timer);
  puts("first made by a timer's thread");

  pthread_t t[20];
  for (int i = 0; i < 20; i++) pthread_create(&t[i], NULL, naps, NULL);
  usleep(20000);
  for (int i = 0; i < 5; i++) printf("child %d\n", in_child(makes_threads));
  stop = 1;
  for (int i = 0; i < 20; i++) pthread_join(t[i], NULL);

  pthread_create(&other_thread, NULL, other, NULL);
  pthread_create(&t[0], NULL, changes_other, NULL);
  pthread_join(t[0], NULL);
  pthread_join(other_thread, NULL);
  puts("others' properties");

  makes_threads();
  usleep(20000);
  int threads = number_of("/proc/self/task");
  for (int i = 0; i < 25; i++) makes_threads();
  // 250 threads had a kernel thread of their own. A few more workers may have been made meanwhile.
  for (int i = 0; i < 100 && number_of("/proc/self/task") > threads; i++) usleep(10000);
  printf("kernel threads stay: %d\n", number_of("/proc/self/task") > threads + 50);

  stop = 0;
  assert(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, echoes, NULL);
  for (int i = 4; i < 8; i++) pthread_create(&t[i], NULL, works, NULL);
  for (int i = 0; i < 400; i++) {
    char c = 'x';
    assert(write(pipes[0][1], &c, 1) == 1 && read(pipes[1][0], &c, 1) == 1);
  }
  stop = 1;
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  printf("sum %ld\n", sum);
  return 0;
}
