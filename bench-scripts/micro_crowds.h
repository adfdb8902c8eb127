// SPDX-License-Identifier: MIT
// Cases of micro.c: many threads at once, and how late a thread runs beside threads that compute or block.
#pragma once
#include "micro.h"

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
static void mutex_alone(void) { measure(uncontended_batch, 1000000); }
static void mutex_uncontended(void) {
  pthread_t t;  // with a single thread the lock needs no atomic instructions
  create(&t, NULL, sleeper, NULL, 0);
  measure(uncontended_batch, 1000000);
}

static void mask_batch(long n) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  for (long i = 0; i < n; i++) {
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  }
}
static void mask_of_main(void) {
  pthread_t t;
  create(&t, NULL, sleeper, NULL, 0);
  measure(mask_batch, 10000);
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
static void broadcast(void) {  // from the broadcast until all of them have run
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
    if (round >= 0) total += now_ns() - start;  // the first round warms up
    pthread_mutex_unlock(&mutex);
  }
  printf("ns=%.2f\n", (double)total / rounds / size);
}

// At most `size` detached threads live at a time.
static sem_t may_live;
static void* detached_body(void* p) {
  sem_post(&may_live);
  return p;
}
static void take_all(long n) {
  while (n > 0)
    if (!sem_wait(&may_live)) n--;
}
static void detached_batch(long n) {
  pthread_t t;
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes));
  CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED));
  for (long i = 0; i < n; i++) {
    take_all(1);
    create(&t, &attributes, detached_body, NULL, size);
  }
  take_all(size);
  for (long i = 0; i < size; i++) sem_post(&may_live);
}
static void detached(void) {
  sem_init(&may_live, 0, size);
  measure(detached_batch, 100000);
}

// They spin until the thread that was made last has run.
static atomic_int set;
static void* spinner_body(void* p) {
  while (!atomic_load_explicit(&set, memory_order_relaxed)) {
  }
  return p;
}
static void* setter_body(void* p) {
  atomic_store(&set, 1);
  return p;
}
static void spinners(void) {
  pthread_t *t = room_for(size), setter;
  uint64_t start = now_ns();
  create_all(t, size, NULL, spinner_body);
  create(&setter, NULL, setter_body, NULL, size);
  CHECK(pthread_join(setter, NULL));
  join_all(t, size);
  printf("s=%.4f\n", seconds_since(start));
}

// A thread with a set of CPUs of its own sleeps for a microsecond.
static void* sleep_bound_body(void* p) {
  enum { kSleeps = 2000 };
  cpu_set_t cpus;
  CHECK(pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus));
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &cpus)) {
      CPU_ZERO(&cpus);
      CPU_SET(i, &cpus);
    }
  CHECK(pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus));
  uint64_t start = now_ns();
  for (int i = 0; i < kSleeps; i++) usleep(1);
  printf("ns=%.0f\n", (double)(now_ns() - start) / kSleeps);
  return p;
}
static void sleep_bound(void) {
  pthread_t t;
  create(&t, NULL, sleep_bound_body, NULL, 0);
  CHECK(pthread_join(t, NULL));
}

// A thread reads `size` bytes of a file that is in memory.
static void read_batch(long n) {
  static char buffer[1 << 20];
  int fd = open("/proc/self/exe", O_RDONLY);
  if (fd < 0 || size > (long)sizeof buffer) fail("open", errno);
  for (long i = 0; i < n; i++)
    if (read(fd, buffer, size) < size && lseek(fd, 0, SEEK_SET)) fail("lseek", errno);
  close(fd);
}
static void* read_body(void* p) {
  measure(read_batch, 100000);
  return p;
}
static void read_file(void) {
  pthread_t t;
  create(&t, NULL, read_body, NULL, 0);
  CHECK(pthread_join(t, NULL));
}

// Reads that wait for the disk: past the kernel's memory, as O_DIRECT has it.
enum { kDiskPage = 4096, kDiskPages = 1024 };
static int disk_file;
static void* disk_body(void* p) {
  void* page = aligned_alloc(kDiskPage, kDiskPage);
  uint64_t n = 0;
  for (uint64_t place = (uintptr_t)page / kDiskPage; !stop; n++, place = place * 6364136223846793005 + 1442695040888963407)
    if (pread(disk_file, page, kDiskPage, (off_t)(place >> 54) * kDiskPage) != kDiskPage) fail("pread", errno);
  free(page);
  sum += n;
  return p;
}
static void disk(void) {
  disk_file = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  if (disk_file < 0) cannot(0, "the directory's file system has no O_TMPFILE or no O_DIRECT");
  void* page = aligned_alloc(kDiskPage, kDiskPage);
  memset(page, 1, kDiskPage);
  for (int i = 0; i < kDiskPages; i++)
    if (pwrite(disk_file, page, kDiskPage, (off_t)i * kDiskPage) != kDiskPage) fail("pwrite", errno);
  free(page);
  measure_crowd(disk_body);
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

// ---- how late a thread runs: the 99th percentile ----

static void print_p99(uint64_t* late, long n) {
  qsort(late, n, sizeof *late, earlier);
  printf("ns=%.2f p50_ns=%.2f p90_ns=%.2f max_ns=%.2f\n", (double)late[n * 99 / 100], (double)late[n / 2], (double)late[n * 9 / 10],
         (double)late[n - 1]);
}

// Measures from the creation of a thread, or the wake-up of one, until it runs, where its maker goes on and a CPU is idle. The maker
// computes, or makes short system calls, until then; there are two milliseconds between one and the next.
static atomic_long ran;
static void* note_body(void* p) {
  uint64_t* since = p;
  *since = now_ns() - *since;
  ran++;
  return p;
}
static sem_t told;
static uint64_t* told_late;
static void* told_body(void* p) {
  for (long i = 0; i < size; i++) {
    while (sem_wait(&told)) {
    }
    told_late[i] = now_ns() - told_late[i];
    ran++;
  }
  return p;
}
static void go_on_until(long n, int calls) {
  while (ran < n)
    if (calls) CHECK(access("/", F_OK));
}
static void start_late(void) {
  pthread_t t;
  uint64_t* late = malloc(size * sizeof *late);
  for (long i = 0; i < size; i++) {
    late[i] = now_ns();
    create(&t, NULL, note_body, &late[i], i);
    go_on_until(i + 1, i % 2);
    CHECK(pthread_join(t, NULL));
    sleep_ms(2);
  }
  print_p99(late, size);
}
static void woken_late(void) {
  pthread_t t;
  told_late = malloc(size * sizeof *told_late);
  sem_init(&told, 0, 0);
  create(&t, NULL, told_body, NULL, 0);
  for (long i = 0; i < size; i++) {
    sleep_ms(2);
    told_late[i] = now_ns();
    sem_post(&told);
    go_on_until(i + 1, i % 2);
  }
  CHECK(pthread_join(t, NULL));
  print_p99(told_late, size);
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
// Measures from the creation of a short thread until it runs, beside two threads that only compute.
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

// Measures how late a sleep of 2 ms ends, beside threads that are always in a read of libc's own, which no library can intercept.
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
