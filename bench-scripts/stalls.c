// SPDX-License-Identifier: MIT
// usage: stalls fgets|read|fault [SAMPLES]
//
// Measures how long a thread that is asleep in the kernel, in a call that no library can intercept, keeps others waiting. The calls are
// fgets on a pipe (libc calls its own read), a read by a system call instruction, and a page fault that userfaultfd holds back. Each sample
// is a new thread: it wakes another one and at once falls asleep for 10 ms, until a child of the process ends that. Prints one line of
// NAME=NUMBER: the 99th percentile and the most of the time from the wake-up until the woken thread ran, and the same of how late sleeps of
// 1 ms ended meanwhile.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "stalls: %s: %s\n", #what, strerror(errno)); \
      exit(1); \
    } \
  } while (0)

enum { kHeld = 10 * 1000 * 1000, kMost = 100000 };
static int pipe_of[2], ask[2], faults;
static char* pages;
static long page_size;
static FILE* stream;
static const char* kind;
static sem_t woken;
static atomic_int stop;
static uint64_t posted, wake_delay[kMost], late[kMost];
static long late_count;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void sleep_ns(long ns) {
  struct timespec t = {0, ns};
  while (nanosleep(&t, &t)) {
  }
}

// Reads by a system call instruction, which no library can intercept.
static long raw_read(int fd, void* to, size_t n) {
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_read), "D"(fd), "S"(to), "d"(n) : "rcx", "r11", "memory");
  return r;
#else
  register long x0 __asm__("x0") = fd, x1 __asm__("x1") = (long)to, x2 __asm__("x2") = n, x8 __asm__("x8") = SYS_read;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
  return x0;
#endif
}

// The child's loop: it ends the calls in which its parent's threads sleep.
static void wake_them(void) {
  char c;
  struct uffd_msg m;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!strcmp(kind, "fault")) {
    while (read(faults, &m, sizeof m) == sizeof m) {
      struct uffdio_zeropage z = {.range = {m.arg.pagefault.address & ~(uint64_t)(page_size - 1), (uint64_t)page_size}};
      sleep_ns(kHeld);
      if (ioctl(faults, UFFDIO_ZEROPAGE, &z) != 0) break;
    }
  } else {
    while (read(ask[0], &c, 1) == 1) {
      sleep_ns(kHeld);
      if (write(pipe_of[1], "x\n", 2) != 2) break;
    }
  }
  _exit(0);
}

static void* sleeper(void* p) {
  while (!stop && late_count < kMost) {
    uint64_t start = now_ns();
    sleep_ns(1000000);
    late[late_count++] = now_ns() - start - 1000000;
  }
  return p;
}
static void* falls_asleep(void* p) {
  long i = (long)p;
  char line[8];
  if (strcmp(kind, "fault")) CHECK(write(ask[1], "x", 1) == 1);
  posted = now_ns();
  sem_post(&woken);
  if (!strcmp(kind, "fgets")) CHECK(fgets(line, sizeof line, stream));
  else if (!strcmp(kind, "read")) CHECK(raw_read(pipe_of[0], line, 2) == 2);
  else ((volatile char*)pages)[i * page_size] = 1;
  return p;
}
static int earlier(const void* a, const void* b) {
  return (*(const uint64_t*)a > *(const uint64_t*)b) - (*(const uint64_t*)a < *(const uint64_t*)b);
}

int main(int argc, char** argv) {
  kind = argc > 1 ? argv[1] : "fgets";
  long samples = argc > 2 ? atol(argv[2]) : 200;
  CHECK(samples > 0 && samples <= kMost);
  page_size = sysconf(_SC_PAGESIZE);
  CHECK(pipe(pipe_of) == 0 && pipe(ask) == 0 && (stream = fdopen(pipe_of[0], "r")));
  if (!strcmp(kind, "fault")) {
    struct uffdio_api api = {.api = UFFD_API};
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (faults < 0) {
      printf("cannot\n");
      return 3;
    }
    pages = mmap(NULL, samples * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register r = {.range = {(uint64_t)pages, (uint64_t)(samples * page_size)}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(pages != MAP_FAILED && ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &r) == 0);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) wake_them();
  sem_init(&woken, 0, 0);
  pthread_t t, s;
  CHECK(pthread_create(&s, NULL, sleeper, NULL) == 0);
  for (long i = 0; i < samples; i++) {
    CHECK(pthread_create(&t, NULL, falls_asleep, (void*)i) == 0);
    while (sem_wait(&woken)) {
    }
    wake_delay[i] = now_ns() - posted;
    CHECK(pthread_join(t, NULL) == 0);
  }
  stop = 1;
  CHECK(pthread_join(s, NULL) == 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  qsort(wake_delay, samples, sizeof *wake_delay, earlier);
  qsort(late, late_count, sizeof *late, earlier);
  printf("wake_us=%.0f wake_max_us=%.0f late_us=%.0f late_max_us=%.0f\n", wake_delay[samples * 99 / 100] / 1e3,
         wake_delay[samples - 1] / 1e3, late[late_count * 99 / 100] / 1e3, late[late_count - 1] / 1e3);
  return 0;
}
