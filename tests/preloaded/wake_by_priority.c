// SPDX-License-Identifier: MIT
// Of threads that wait for the same thing, those of a real-time policy are woken first, the highest priority first, and among equals the
// first to come. (Others come after these: parking_lot_test.) Without the right to such policies it says so, on both sides.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kThreads = 7 };
static const int priorities[kThreads] = {1, 5, 20, 5, 1, 40, 20};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, order_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem, ready;
static int order[kThreads], woken, may_go;
static char kernel_thread[64];  // of the thread that was started last: "PID/task/TID"

static void note(int i) {
  pthread_mutex_lock(&order_lock);
  order[woken++] = i;
  pthread_mutex_unlock(&order_lock);
}

// A thread of a real-time policy has a kernel thread of its own, also on fibers.
static void say_ready(void) {
  ssize_t n = readlink("/proc/thread-self", kernel_thread, sizeof kernel_thread - 1);
  kernel_thread[n > 0 ? n : 0] = 0;
  sem_post(&ready);
}
static void until_asleep(void) {
  char path[128], state = 0;
  snprintf(path, sizeof path, "/proc/%s/stat", kernel_thread);
  while (state != 'S') {
    FILE* f = fopen(path, "r");
    assert(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
  }
}

static void* waits_for_mutex(void* p) {
  say_ready();
  pthread_mutex_lock(&mutex);
  note((int)(long)p);
  pthread_mutex_unlock(&mutex);
  return NULL;
}
static void* waits_for_semaphore(void* p) {
  struct sched_param other = {50 - priorities[(long)p]};  // the priority that counts is the one that was set last
  assert(pthread_setschedparam(pthread_self(), SCHED_FIFO, &other) == 0);
  assert(pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){100}) == EINVAL);
  say_ready();
  while (sem_wait(&sem) < 0) {
  }
  note((int)(long)p);
  sem_post(&ready);
  return NULL;
}
static void* waits_for_condition(void* p) {
  pthread_mutex_lock(&mutex);
  say_ready();
  int before = may_go;
  while (may_go == before) pthread_cond_wait(&cond, &mutex);
  note((int)(long)p);
  pthread_mutex_unlock(&mutex);
  sem_post(&ready);
  return NULL;
}

static void wait_ready(void) {
  while (sem_wait(&ready) < 0) {
  }
}
static int start(pthread_t* t, void* (*f)(void*), int i) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
  pthread_attr_setschedpolicy(&a, SCHED_FIFO);
  struct sched_param p = {priorities[i]};
  pthread_attr_setschedparam(&a, &p);
  int e = pthread_create(t, &a, f, (void*)(long)i);
  pthread_attr_destroy(&a);
  if (e) return e;
  wait_ready();
  until_asleep();  // it waits; the order among equals is that of their waits
  return 0;
}
static void print(const char* what) {
  printf("%s:", what);
  for (int i = 0; i < woken; i++) printf(" %d", order[i]);
  printf("\n");
  woken = 0;
}

int main(void) {
  pthread_t t[kThreads];
  sem_init(&sem, 0, 0), sem_init(&ready, 0, 0);
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kThreads; i++)
    if (start(&t[i], waits_for_mutex, i) != 0) {
      printf("this process may not use real-time policies\n");
      return 0;
    }
  pthread_mutex_unlock(&mutex);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  print("mutex");

  for (int i = 0; i < kThreads; i++) assert(start(&t[i], waits_for_semaphore, i) == 0);
  for (int i = 0; i < kThreads; i++) sem_post(&sem), wait_ready();
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  print("semaphore");

  for (int i = 0; i < kThreads; i++) assert(start(&t[i], waits_for_condition, i) == 0);
  for (int i = 0; i < kThreads; i++) {
    pthread_mutex_lock(&mutex);
    may_go++;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
    wait_ready();
  }
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  print("condition");
}
