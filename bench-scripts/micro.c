// SPDX-License-Identifier: MIT
// usage: micro CASE [SIZE]     SIZE may also be part of the name: micro mutex 8, micro mutex-8
//
// Small measurements of POSIX threads; the program knows nothing of fibers. It prints one line of NAME=NUMBER, and ends with 0.
// When the platform does not give that many threads, it prints "cannot (N k)" and ends with 3. Names of figures:
//   ns       one operation                      s         the whole case, seconds
//   kb       each blocked thread: resident memory, page tables, and the kernel's stacks and slab (of the whole machine)
//   own_kb   the part of kb that /proc/self/status shows                  available_kb  by MemAvailable, a second opinion
//   end_s    waking and joining the threads     left_mb   memory that the process keeps a second after all threads have ended
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- code that the cases share ----

static long size;         // threads, in most cases
static const char* word;  // the argument after the case, unchanged

static _Noreturn void fail(const char* what, int error) {
  fprintf(stderr, "micro: %s%s%s\n", what, error ? ": " : "", error ? strerror(error) : "");
  exit(1);
}
#define CHECK(call) \
  do { \
    int error_ = (call); \
    if (error_) fail(#call, error_ < 0 ? errno : error_); \
  } while (0)

// Ends the process when the platform's limits are reached. That is not a failure of the measurement. Many threads may call this at once.
static _Noreturn void cannot(long threads, const char* why) {
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&said))
    for (;;) pause();
  if (threads) printf("cannot (%ld k)\n", threads / 1000);
  else printf("cannot (memory)\n");
  fflush(stdout);
  fprintf(stderr, "micro: no more than %ld threads: %s\n", threads, why);
  _exit(3);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static double seconds_since(uint64_t start) { return (now_ns() - start) / 1e9; }
static void sleep_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t)) {
  }
}

// Returns the number after `name` at the start of a line (or at the start of the file, if `name` is ""), or -1.
static long number_in(const char* path, const char* name) {
  FILE* f = fopen(path, "r");
  char line[256];
  long found = -1;
  while (f && found < 0 && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) found = atol(line + strlen(name));
  if (f) fclose(f);
  return found;
}

struct memory {
  long own, kernel, available;  // kB
};
static struct memory memory_now(void) {
  struct memory m;
  m.own = number_in("/proc/self/status", "VmRSS:") + number_in("/proc/self/status", "VmPTE:");
  m.kernel = number_in("/proc/meminfo", "KernelStack:") + number_in("/proc/meminfo", "SUnreclaim:");
  m.available = number_in("/proc/meminfo", "MemAvailable:");
  return m;
}
// Returns the kernel's growth, at least 0: other processes may have given back more than we took, which must not count for us.
static long kernel_growth(struct memory before, struct memory after) {
  return after.kernel > before.kernel ? after.kernel - before.kernel : 0;
}

// Returns how many kernel threads a process can get. Callers leave kLeftToOthers of them to other processes, which could not start programs
// while we measure otherwise.
static long kernel_threads_room(void) {
  static long room;
  if (room) return room;
  room = number_in("/proc/sys/vm/max_map_count", "") / 2;  // a stack and its guard are two mappings
  const char* limits[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
  for (int i = 0; i < 2; i++) {
    long limit = number_in(limits[i], "");
    if (limit > 0 && limit < room) room = limit;
  }
  return room;
}
enum { kLeftToOthers = 2000 };

static void create(pthread_t* t, const pthread_attr_t* attributes, void* (*body)(void*), void* argument, long alive) {
  int error = pthread_create(t, attributes, body, argument);
  if (error == EAGAIN || error == ENOMEM) cannot(alive, strerror(error));
  if (error) fail("pthread_create", error);
}

static void create_all(pthread_t* t, long n, const pthread_attr_t* attributes, void* (*body)(void*)) {
  for (long i = 0; i < n; i++) create(&t[i], attributes, body, NULL, i);
}
static void join_all(pthread_t* t, long n) {
  for (long i = 0; i < n; i++) CHECK(pthread_join(t[i], NULL));
}
// kernel_threads() returns whether each thread is a kernel thread. It makes more threads than any scheduler would use workers, and checks
// that the kernel sees all of them.
static sem_t probe_end;
static void* probe_body(void* p) {
  while (sem_wait(&probe_end)) {
  }
  return p;
}
static int kernel_threads(void) {
  long n = 64 + 4 * sysconf(_SC_NPROCESSORS_ONLN);
  pthread_t t[n];
  sem_init(&probe_end, 0, 0);
  create_all(t, n, NULL, probe_body);
  int all = number_in("/proc/self/status", "Threads:") > n;
  for (long i = 0; i < n; i++) sem_post(&probe_end);
  join_all(t, n);
  return all;
}

// Returns memory for the handles of n threads that are alive together. Ends the process if the platform cannot have so many.
static pthread_t* room_for(long n) {
  if (n > 10000 && n > kernel_threads_room() - kLeftToOthers && kernel_threads())
    cannot(kernel_threads_room(), "each is a kernel thread; see pid_max, threads-max and max_map_count");
  if (number_in("/proc/meminfo", "MemAvailable:") < n * 14) cannot(0, "not even 14 kB are free for each");
  pthread_t* t = malloc(n * sizeof *t);
  if (!t) fail("malloc", errno);
  memset(t, 1, n * sizeof *t);  // touch the pages now, so that they do not count for the threads
  return t;
}

// Calls batch(n) until 0.3 s are over, after one call to warm up, and prints the mean of an operation.
static void measure(void (*batch)(long), long n) {
  batch(n);
  uint64_t start = now_ns(), end, done = 0;
  do {
    batch(n);
    done += n;
    end = now_ns();
  } while (end - start < 300000000);
  printf("ns=%.2f\n", (double)(end - start) / done);
}

// Runs body in `size` threads. Each counts its operations until `stop`. Prints the time divided by the sum of the counts.
static atomic_int stop;
static _Atomic uint64_t sum;
static void measure_crowd(void* (*body)(void*)) {
  pthread_t* t = room_for(size);
  uint64_t start = now_ns();
  create_all(t, size, NULL, body);
  sleep_ms(400);
  stop = 1;
  join_all(t, size);
  printf("ns=%.2f\n", (double)(now_ns() - start) / sum);
}

static void* nothing(void* p) { return p; }

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

// A tree of threads with `size` leaves. Each inner thread makes ten threads, and adds up their results.
struct node {
  long first, leaves, result;
};
static long alive_limit;           // 0: the threads are not kernel threads
static void look_at_limit(void) {  // one caller at a time: otherwise creators would go far beyond the limit meanwhile
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

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
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

// ---- crowds ----

static void* yield_body(void* p) {
  uint64_t n = 0;
  for (; !atomic_load_explicit(&stop, memory_order_relaxed); n++) sched_yield();
  sum += n;
  return p;
}
static void yield(void) { measure_crowd(yield_body); }

static uint64_t guarded;
static void* mutex_body(void* p) {
  uint64_t n = 0;
  for (; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
    pthread_mutex_lock(&mutex);
    guarded++;
    pthread_mutex_unlock(&mutex);
  }
  sum += n;
  return p;
}
static void mutex_crowd(void) {
  measure_crowd(mutex_body);
  if (guarded != sum) fail("the mutex let two in at once", 0);
}

static void* sleeper(void* p) {
  pause();
  return p;
}
static void uncontended_batch(long n) {
  for (long i = 0; i < n; i++) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  }
}
static void mutex_uncontended(void) {
  pthread_t t;  // in a process with a single thread, libc would leave out the atomic instructions
  create(&t, NULL, sleeper, NULL, 0);
  measure(uncontended_batch, 1000000);
}

static pthread_cond_t go = PTHREAD_COND_INITIALIZER, all_done = PTHREAD_COND_INITIALIZER;
static long waiting, woken, generation;
static void* broadcast_body(void* p) {
  pthread_mutex_lock(&mutex);
  for (;;) {
    long seen = generation;
    if (++waiting == size) pthread_cond_signal(&all_done);
    while (generation == seen) pthread_cond_wait(&go, &mutex);
    if (++woken == size) pthread_cond_signal(&all_done);
  }
  return p;
}
static void broadcast(void) {  // measures from the broadcast until all waiting threads have run
  create_all(room_for(size), size, NULL, broadcast_body);
  uint64_t total = 0;
  const int rounds = 20;
  for (int round = -1; round < rounds; round++) {
    pthread_mutex_lock(&mutex);
    while (waiting < size) pthread_cond_wait(&all_done, &mutex);
    waiting = woken = 0;
    uint64_t start = now_ns();
    generation++;
    pthread_cond_broadcast(&go);
    while (woken < size) pthread_cond_wait(&all_done, &mutex);
    if (round >= 0) total += now_ns() - start;  // the first one warms up
    pthread_mutex_unlock(&mutex);
  }
  printf("ns=%.2f\n", (double)total / rounds / size);
}

static void* sleep_body(void* p) {
  sleep_ms(100);
  return p;
}
static void sleepers(void) {
  pthread_t* t = room_for(size);
  uint64_t start = now_ns();
  create_all(t, size, NULL, sleep_body);
  join_all(t, size);
  double s = seconds_since(start);
  if (s < 0.1) fail("the sleepers woke too early", 0);
  printf("s=%.4f\n", s);
}

// ---- late threads: the 99th percentile ----

static int earlier(const void* a, const void* b) {
  uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}
static void print_p99(uint64_t* late, long n) {
  qsort(late, n, sizeof *late, earlier);
  printf("ns=%.2f max_ns=%.2f\n", (double)late[n * 99 / 100], (double)late[n - 1]);
}

static void* hog_body(void* p) {
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
  }
  return p;
}
static void* short_body(void* p) {
  uint64_t* created = p;
  *created = now_ns() - *created;
  return p;
}
// The time from the creation of a short thread until it runs, while there is a computing thread for each CPU.
static void beside_hogs(void) {
  pthread_t hogs[2], *t = room_for(size);
  uint64_t* late = malloc(size * sizeof *late);
  for (int i = 0; i < 2; i++) create(&hogs[i], NULL, hog_body, NULL, 0);
  sleep_ms(100);
  for (long i = 0; i < size; i++) {
    late[i] = now_ns();
    create(&t[i], NULL, short_body, &late[i], i);
    if (i % 10 == 9) sleep_ms(10);
  }
  join_all(t, size);
  stop = 1;
  join_all(hogs, 2);
  print_p99(late, size);
}

// How late a sleep of 2 ms ends, beside threads that are always in a read that libc makes by itself and no library can intercept.
static void* reader_body(void* p) {
  FILE* f = p;
  char line[8];
  while (fgets(line, sizeof line, f)) {
  }
  return p;
}
static void beside_reads(void) {
  enum { kReaders = 8 };
  int ends_of[kReaders][2];
  pthread_t t;
  uint64_t* late = malloc(size * sizeof *late);
  for (int i = 0; i < kReaders; i++) CHECK(pipe(ends_of[i]));
  pid_t writer = fork();
  if (writer == 0) {
    for (;;)
      for (int i = 0; i < kReaders; i++) {
        if (write(ends_of[i][1], "x\n", 2) != 2) _exit(1);
        sleep_ms(3);
      }
  }
  if (writer < 0) fail("fork", errno);
  for (int i = 0; i < kReaders; i++) create(&t, NULL, reader_body, fdopen(ends_of[i][0], "r"), i);
  for (long i = 0; i < size; i++) {
    uint64_t start = now_ns();
    sleep_ms(2);
    late[i] = now_ns() - start - 2000000;
  }
  kill(writer, SIGKILL);
  waitpid(writer, NULL, 0);
  print_p99(late, size);
}

// ---- memory ----

static sem_t all_blocked, end_blocked;
static atomic_long blocked_now;
static void* blocked_body(void* p) {
  if (++blocked_now == size) sem_post(&all_blocked);
  while (sem_wait(&end_blocked)) {
  }
  return p;
}
static void blocked_with(const pthread_attr_t* attributes) {
  pthread_t* t = room_for(size);
  sem_init(&all_blocked, 0, 0);
  sem_init(&end_blocked, 0, 0);
  struct memory before = memory_now();
  uint64_t start = now_ns();
  create_all(t, size, attributes, blocked_body);
  while (sem_wait(&all_blocked)) {
  }
  double s = seconds_since(start);
  struct memory full = memory_now();
  start = now_ns();
  for (long i = 0; i < size; i++) sem_post(&end_blocked);
  join_all(t, size);
  double end = seconds_since(start);
  sleep_ms(1000);  // gives libraries time to give memory back
  struct memory after = memory_now();
  double own = full.own - before.own, kernel = kernel_growth(before, full);
  printf("s=%.4f kb=%.2f own_kb=%.2f available_kb=%.2f end_s=%.4f left_mb=%.1f\n", s, (own + kernel) / size, own / size,
         (double)(before.available - full.available) / size, end, (after.own - before.own) / 1024.0);
}
static void blocked(void) { blocked_with(NULL); }
static void blocked_256k(void) {
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes));
  CHECK(pthread_attr_setstacksize(&attributes, 256 * 1024));
  blocked_with(&attributes);
}

// ---- the same work by any number of threads ----

// The work is 200,000 pieces of some 4 µs. Each thread does half of its share and adds up under a lock, waits for all threads at a barrier,
// and does the other half.
enum { kPieces = 200000 };
static pthread_barrier_t half_time;
static uint64_t work_result, measuring_ns;
static atomic_long arrived;
static struct memory at_half_time;
static void work_pieces(long n) {
  for (long i = 0; i < n; i++) {
    uint64_t x = 88172645463325252u;
    for (int k = 0; k < 2000; k++) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
    }
    pthread_mutex_lock(&mutex);
    work_result += x;
    pthread_mutex_unlock(&mutex);
  }
}
static void* work_body(void* p) {
  work_pieces(kPieces / 2 / size);
  if (++arrived == size) {  // now all threads exist, and the memory is at its peak
    uint64_t start = now_ns();
    at_half_time = memory_now();
    measuring_ns = now_ns() - start;
  }
  pthread_barrier_wait(&half_time);
  work_pieces(kPieces / 2 / size);
  return p;
}
static void work(void) {
  if (kPieces / 2 % size) fail("work: the size must divide 100,000", 0);
  pthread_t first_thread;
  struct memory before = memory_now();
  uint64_t start = now_ns();
  create(&first_thread, NULL, nothing, NULL, 0);  // the runtime does its one-time work now
  CHECK(pthread_join(first_thread, NULL));
  double first = (now_ns() - start) / 1000.0;
  pthread_t* t = room_for(size);
  CHECK(pthread_barrier_init(&half_time, NULL, size));
  start = now_ns();
  create_all(t, size, NULL, work_body);
  join_all(t, size);
  double s = seconds_since(start) - measuring_ns / 1e9;
  printf("s=%.4f first_us=%.1f mb=%.2f own_mb=%.2f result=%.0f\n", s, first,
         (at_half_time.own + kernel_growth(before, at_half_time)) / 1024.0, at_half_time.own / 1024.0, (double)(work_result & 0xffffffff));
}

// ---- starting a process ----

static void start_true(void) {  // micro start-true LIBRARY: the median time to start and end `true` with LIBRARY preloaded
  enum { kStarts = 1000, kWarm = 10 };
  static uint64_t times[kStarts];
  char preload[4096];
  snprintf(preload, sizeof preload, "LD_PRELOAD=%s", word ? word : "");
  char *arguments[] = {"true", NULL}, *environment[] = {preload, NULL};
  for (int i = -kWarm; i < kStarts; i++) {
    pid_t pid;
    int status;
    uint64_t start = now_ns();
    CHECK(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment));
    if (waitpid(pid, &status, 0) != pid || status != 0) fail("true failed", 0);
    if (i >= 0) times[i] = now_ns() - start;
  }
  qsort(times, kStarts, sizeof times[0], earlier);
  printf("ns=%.2f\n", (double)times[kStarts / 2]);
}

// ---- the list of cases ----

static const struct {
  const char* name;
  void (*run)(void);
  long size;
} cases[] = {
    {"create-join", create_join, 1},
    {"create", create_many, 500},
    {"sem-ping-pong", sem_ping_pong, 2},
    {"cond-ping-pong", cond_ping_pong, 2},
    {"halves", halves, 100},
    {"yield", yield, 16},
    {"mutex-uncontended", mutex_uncontended, 1},
    {"mutex", mutex_crowd, 8},
    {"broadcast", broadcast, 1000},
    {"socketpair-ping-pong", socketpair_ping_pong, 2},
    {"sleepers", sleepers, 100000},
    {"blocked", blocked, 1000000},
    {"blocked-256k", blocked_256k, 1000000},
    {"skynet", skynet, 1000000},
    {"beside-hogs", beside_hogs, 1000},
    {"beside-reads", beside_reads, 1000},
    {"work", work, 1},
    {"start-true", start_true, 1},
};
enum { kCases = sizeof cases / sizeof cases[0] };

int main(int argc, char** argv) {
  char name[64] = "";
  if (argc > 1) snprintf(name, sizeof name, "%s", argv[1]);
  word = argc > 2 ? argv[2] : NULL;
  long wanted = word ? atol(word) : 0;
  for (int attempt = 0; attempt < 2; attempt++) {
    for (int i = 0; i < kCases; i++)
      if (!strcmp(name, cases[i].name)) {
        size = wanted > 0 ? wanted : cases[i].size;
        // If memory runs out, the kernel shall kill this process, and nothing else on the machine.
        int fd = open("/proc/self/oom_score_adj", O_WRONLY);
        if (fd >= 0 && write(fd, "1000", 4) == 4) close(fd);
        cases[i].run();
        fflush(stdout);
        _exit(0);  // other threads may still wait
      }
    char* number = strrchr(name, '-');  // `name` is not a case, but may end with the size
    if (!number || !(wanted = atol(number + 1))) break;
    *number = 0;
  }
  fprintf(stderr, "usage: micro CASE [SIZE]\ncases:");
  for (int i = 0; i < kCases; i++) fprintf(stderr, cases[i].size > 2 ? " %s-%ld" : " %s", cases[i].name, cases[i].size);
  fprintf(stderr, "\n");
  return 2;
}
