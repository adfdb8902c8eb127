// SPDX-License-Identifier: MIT
// usage: tails pool|connections [SECONDS [LOAD]]
//
// A server under open-loop load: requests come at random times, whether earlier ones are done or not. Each computes for 10 µs, one in two
// hundred for 5 ms. LOAD is the percentage (70) of what the CPUs of the process can do. With `pool`, 64 threads take requests from one queue.
// With `connections`, each of 256 threads reads its own socket, and a request goes to a thread that has none, if there is one. Prints one line
// of NAME=NUMBER: the microseconds from the time at which a request was to come until it was done, of the short ones and of all; the
// requests done in a second; and the CPU time of the process in seconds.
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "tails: %s: %s\n", #what, strerror(errno)); \
      exit(1); \
    } \
  } while (0)

enum { kShort = 10 * 1000, kLong = 5 * 1000 * 1000, kOneIn = 200, kPool = 64, kConnections = 256, kQueue = 1 << 20 };
struct request {
  uint64_t due;
  int is_long;
};
static struct {
  pthread_mutex_t lock;
  pthread_cond_t more;
  unsigned head, tail;
  int closed;
  struct request of[kQueue];
} queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, {{0, 0}}};
static int sockets[kConnections][2];
static atomic_int waiting[kConnections];  // requests of the connection that are not done
struct times {
  uint32_t* of;
  size_t count, room;
};
static struct times shorts[kConnections], longs[kConnections];
static double loops_per_ns;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// Work, not time: a thread that lacks the CPU does nothing of it.
static volatile uint64_t sink;
static void compute(uint64_t loops) {
  uint64_t x = loops | 1;
  for (uint64_t i = 0; i < loops; i++) x = x * 6364136223846793005u + 1442695040888963407u;
  sink = x;
}
// How fast a CPU computes while all do.
static pthread_barrier_t together;
static void* measure(void* speed) {
  for (int i = 0; i < 20; i++) {
    const uint64_t loops = 1000000;
    pthread_barrier_wait(&together);
    uint64_t begin = now_ns();
    compute(loops);
    double s = (double)loops / (double)(now_ns() - begin);
    if (s > *(double*)speed) *(double*)speed = s;
  }
  return NULL;
}
static void calibrate(int cpus) {
  pthread_t t[kConnections];
  double speed[kConnections] = {0};
  pthread_barrier_init(&together, NULL, (unsigned)cpus);
  for (int i = 0; i < cpus; i++) CHECK(pthread_create(&t[i], NULL, measure, &speed[i]) == 0);
  for (int i = 0; i < cpus; i++) {
    pthread_join(t[i], NULL);
    loops_per_ns += speed[i] / cpus;
  }
}

static void note(struct times* t, uint64_t ns) {
  if (t->count == t->room) CHECK(t->of = realloc(t->of, (t->room = t->room ? 2 * t->room : 1024) * sizeof *t->of));
  t->of[t->count++] = ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}
static void serve(struct request r, long me) {
  compute((uint64_t)((r.is_long ? kLong : kShort) * loops_per_ns));
  note(r.is_long ? &longs[me] : &shorts[me], now_ns() - r.due);
}

static void* pool_thread(void* me) {
  for (;;) {
    pthread_mutex_lock(&queue.lock);
    while (queue.head == queue.tail && !queue.closed) pthread_cond_wait(&queue.more, &queue.lock);
    if (queue.head == queue.tail) break;
    struct request r = queue.of[queue.head++ % kQueue];
    pthread_mutex_unlock(&queue.lock);
    serve(r, (long)me);
  }
  pthread_mutex_unlock(&queue.lock);
  return NULL;
}
static void* connection_thread(void* me) {
  struct request r;
  while (read(sockets[(long)me][1], &r, sizeof r) == sizeof r) {
    serve(r, (long)me);
    waiting[(long)me]--;
  }
  return NULL;
}

static uint64_t random_state = 88172645463325252u;
static uint64_t random_number(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}
static double random_part(void) { return (double)(random_number() >> 11) / 9007199254740992.0; }

static int compare(const void* a, const void* b) {
  uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
  return (x > y) - (x < y);
}
static void print(const char* name, uint32_t* all, size_t n) {
  qsort(all, n, sizeof *all, compare);
  if (n) printf("%s_p50=%u %s_p99=%u %s_p999=%u ", name, all[n / 2], name, all[n * 99 / 100], name, all[n * 999 / 1000]);
}

int main(int argc, char** argv) {
  int pool = argc > 1 && strcmp(argv[1], "pool") == 0;
  double seconds = argc > 2 ? atof(argv[2]) : 3, load = argc > 3 ? atof(argv[3]) : 70;
  if (argc < 2 || (!pool && strcmp(argv[1], "connections")) || seconds <= 0 || load <= 0 || load > 1000) {
    fprintf(stderr, "usage: tails pool|connections [SECONDS [LOAD]]\n");
    return 2;
  }
  cpu_set_t set;
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  const int cpus = CPU_COUNT(&set) < kConnections ? CPU_COUNT(&set) : kConnections;
  calibrate(cpus);
  const long threads = pool ? kPool : kConnections;
  static pthread_t t[kConnections];
  for (long i = 0; i < threads; i++) {
    if (!pool) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]) == 0);
    CHECK(pthread_create(&t[i], NULL, pool ? pool_thread : connection_thread, (void*)i) == 0);
  }
  const double mean = kShort + (double)kLong / kOneIn, gap = mean / cpus / (load / 100);
  uint64_t begin = now_ns(), due = begin;
  while (due < begin + (uint64_t)(seconds * 1e9)) {
    due += (uint64_t)(-log(1 - random_part()) * gap);
    struct timespec at = {(time_t)(due / 1000000000), (long)(due % 1000000000)};
    if (due > now_ns())
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) {
      }
    struct request r = {due, random_number() % kOneIn == 0};
    if (pool) {
      pthread_mutex_lock(&queue.lock);
      if (queue.tail - queue.head < kQueue) queue.of[queue.tail++ % kQueue] = r;
      pthread_cond_signal(&queue.more);
      pthread_mutex_unlock(&queue.lock);
    } else {
      unsigned c = random_number() % kConnections;
      for (int i = 0; i < kConnections && waiting[c]; i++) c = (c + 1) % kConnections;
      waiting[c]++;
      CHECK(write(sockets[c][0], &r, sizeof r) == sizeof r);
    }
  }
  pthread_mutex_lock(&queue.lock);
  queue.closed = 1;
  pthread_cond_broadcast(&queue.more);
  pthread_mutex_unlock(&queue.lock);
  for (long i = 0; !pool && i < threads; i++) shutdown(sockets[i][0], SHUT_WR);
  size_t n = 0, n_short = 0;
  for (long i = 0; i < threads; i++) {
    pthread_join(t[i], NULL);
    n += shorts[i].count + longs[i].count;
  }
  double took = (double)(now_ns() - begin) / 1e9;
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  uint32_t* all;
  CHECK(all = malloc((n + 1) * sizeof *all));
  for (long i = 0; i < threads; i++) {
    if (shorts[i].count) memcpy(all + n_short, shorts[i].of, shorts[i].count * sizeof *all);
    n_short += shorts[i].count;
  }
  print("short", all, n_short);
  for (long i = 0; i < threads; i++) {
    if (longs[i].count) memcpy(all + n_short, longs[i].of, longs[i].count * sizeof *all);
    n_short += longs[i].count;
  }
  print("all", all, n);
  double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  printf("rate=%.0f cpu_s=%.2f\n", (double)n / took, cpu);
  return 0;
}
