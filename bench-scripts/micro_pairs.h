// SPDX-License-Identifier: MIT
// Cases of micro.c: threads that are created and joined, and two threads that take turns.
#pragma once
#include "micro.h"

// ---- creating ----

static void create_join_batch(long n) {
  for (long i = 0; i < n; i++) {
    pthread_t t;
    create(&t, NULL, nothing, NULL, 0);
    CHECK(pthread_join(t, NULL));
  }
}
static void create_join(void) { measure(create_join_batch, 500); }

static pthread_t* many;
static void create_many_batch(long n) {
  create_all(many, n, NULL, nothing);
  join_all(many, n);
}
static void create_many(void) {
  many = room_for(size);
  measure(create_many_batch, size);
}

// A tree of threads with `size` leaves. Each thread creates ten others, and adds up their results.
struct node {
  long first, leaves, result;
};
static long alive_limit;           // 0: threads are no kernel threads
static void look_at_limit(void) {  // one thread at a time: without the wait, creators would go far beyond the limit
  static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
  static long calls;
  pthread_mutex_lock(&looking);
  if (calls++ % 64 == 0 && number_in("/proc/self/status", "Threads:") > alive_limit)
    cannot(kernel_threads_room(), "each is a kernel thread; see pid_max, threads-max and max_map_count");
  pthread_mutex_unlock(&looking);
}
static void* node_body(void* p) {
  struct node* me = p;
  if (me->leaves == 1) {
    me->result = me->first;
  } else {
    struct node below[10];
    pthread_t t[10];
    for (int i = 0; i < 10; i++) {
      below[i] = (struct node){me->first + i * (me->leaves / 10), me->leaves / 10, 0};
      if (alive_limit) look_at_limit();
      create(&t[i], NULL, node_body, &below[i], kernel_threads_room());
    }
    for (int i = 0; i < 10; i++) {
      CHECK(pthread_join(t[i], NULL));
      me->result += below[i].result;
    }
  }
  return p;
}
static void skynet(void) {
  long leaves = 1;
  while (leaves < size) leaves *= 10;
  long room = kernel_threads_room();
  if (kernel_threads()) alive_limit = room - kLeftToOthers;
  struct node root = {0, leaves, 0};
  pthread_t t;
  uint64_t start = now_ns();
  create(&t, NULL, node_body, &root, 0);
  CHECK(pthread_join(t, NULL));
  double s = seconds_since(start);
  if (root.result != leaves * (leaves - 1) / 2) fail("skynet: wrong sum", 0);
  printf("s=%.4f\n", s);
}

// ---- two partners ----

static sem_t sem_ping, sem_pong;
static void* sem_partner(void* p) {
  for (;;) {
    sem_wait(&sem_ping);
    sem_post(&sem_pong);
  }
  return p;
}
static void sem_batch(long n) {
  for (long i = 0; i < n; i++) {
    sem_post(&sem_ping);
    sem_wait(&sem_pong);
  }
}
static void sem_ping_pong(void) {
  pthread_t t;
  sem_init(&sem_ping, 0, 0);
  sem_init(&sem_pong, 0, 0);
  create(&t, NULL, sem_partner, NULL, 0);
  measure(sem_batch, 5000);
}

static long turns_per_us;
static __attribute__((noinline)) void compute(long us) {
  for (volatile long i = us * turns_per_us; i > 0; i--) {
  }
}
static void* half(void* p) {
  for (;;) {
    sem_wait(&sem_ping);
    compute(size);
    sem_post(&sem_pong);
  }
  return p;
}
static void halves_batch(long n) {
  for (long i = 0; i < n; i++) {
    sem_post(&sem_ping);
    compute(size);
    sem_wait(&sem_pong);
  }
}
static void halves(void) {
  turns_per_us = 1000;
  for (int i = 0; i < 3; i++) {
    uint64_t start = now_ns();
    compute(10000);
    turns_per_us = turns_per_us * 10000000 / (now_ns() - start);
  }
  pthread_t t;
  sem_init(&sem_ping, 0, 0);
  sem_init(&sem_pong, 0, 0);
  create(&t, NULL, half, NULL, 0);
  measure(halves_batch, 10000 / size + 1);
}

static pthread_cond_t cond_ping = PTHREAD_COND_INITIALIZER, cond_pong = PTHREAD_COND_INITIALIZER;
static int partners_turn;
static void* cond_partner(void* p) {
  pthread_mutex_lock(&mutex);
  for (;;) {
    while (!partners_turn) pthread_cond_wait(&cond_ping, &mutex);
    partners_turn = 0;
    pthread_cond_signal(&cond_pong);
  }
  return p;
}
static void cond_batch(long n) {
  pthread_mutex_lock(&mutex);
  for (long i = 0; i < n; i++) {
    partners_turn = 1;
    pthread_cond_signal(&cond_ping);
    while (partners_turn) pthread_cond_wait(&cond_pong, &mutex);
  }
  pthread_mutex_unlock(&mutex);
}
static void cond_ping_pong(void) {
  pthread_t t;
  create(&t, NULL, cond_partner, NULL, 0);
  measure(cond_batch, 2000);
}

static int ends[2];
static void transfer(ssize_t done) {
  if (done != 1) fail("socketpair", errno);
}
static void* socket_partner(void* p) {
  char c;
  for (;;) {
    transfer(read(ends[1], &c, 1));
    transfer(write(ends[1], &c, 1));
  }
  return p;
}
static void socket_batch(long n) {
  char c = 'x';
  for (long i = 0; i < n; i++) {
    transfer(write(ends[0], &c, 1));
    transfer(read(ends[0], &c, 1));
  }
}
static void socketpair_ping_pong(void) {
  pthread_t t;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  create(&t, NULL, socket_partner, NULL, 0);
  measure(socket_batch, 500);
}
