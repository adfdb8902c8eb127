// SPDX-License-Identifier: MIT
// A thread keeps others waiting for a fifth of a second. Argument: the case.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long sink;

static long ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static long long_ms = 200;  // or the value of LONG_MS
static long stop_ms = -1;   // or the value of STOP_MS: after so long the process stops, and lacks the CPU for two seconds
__attribute__((noinline)) static void computes_for_long(void) {
  long begin = ms(), end = begin + long_ms;
  while (ms() < end) {
    for (int i = 0; i < 10000; i++) sink += i;
    if (stop_ms >= 0 && ms() >= begin + stop_ms) stop_ms = -1, kill(getpid(), SIGSTOP);
  }
}

// A child that lets its parent go on after its stop.
static void start_waker(void) {
  pid_t parent = getpid();
  if (fork() != 0) return;
  char file[64], state = 0;
  snprintf(file, sizeof file, "/proc/%d/stat", parent);
  while (state != 'T') {
    FILE* f = fopen(file, "r");
    if (!f || fscanf(f, "%*d %*s %c", &state) != 1) _exit(1);
    fclose(f);
    usleep(1000);
  }
  usleep(2000000);
  kill(parent, SIGCONT);
  _exit(0);
}
__attribute__((noinline)) static void sleeps_for_long(void) {
  usleep(long_ms * 1000);
  sink++;
}
static void* computes(void* p) {
  computes_for_long();
  return p;
}
static void* keeps_lock_and_sleeps(void* p) {
  pthread_mutex_lock(&m);
  sleeps_for_long();
  pthread_mutex_unlock(&m);
  return p;
}
static void* keeps_lock_and_computes(void* p) {
  pthread_mutex_lock(&m);
  computes_for_long();
  pthread_mutex_unlock(&m);
  return p;
}
static void* needs_lock(void* p) {
  usleep(2000);
  pthread_mutex_lock(&m);
  pthread_mutex_unlock(&m);
  return p;
}
static void* does_little(void* p) {
  usleep(1000);
  for (int i = 0; i < 300; i++) {
    pthread_mutex_lock(&m);
    sink++;
    pthread_mutex_unlock(&m);
    usleep(1000);
  }
  return p;
}
static void* waits_for_child(void* p) {
  pid_t pid = fork();
  if (pid == 0) {
    usleep(300000);
    _exit(0);
  }
  waitpid(pid, 0, 0);
  return p;
}

// The library does not know this call.
static void* waits_raw(void* p) {
#ifdef __x86_64__
  struct timespec t = {0, 300000000};
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(35 /* nanosleep */), "D"(&t), "S"(0) : "rcx", "r11", "memory");
  return p;
#else
  return waits_for_child(p);
#endif
}

static const struct {
  const char* name;
  void* (*one)(void*);
  void* (*other)(void*);
} cases[] = {{"stuck", computes, does_little},
             {"lock-sleeps", keeps_lock_and_sleeps, needs_lock},
             {"lock-computes", keeps_lock_and_computes, needs_lock},
             {"little", does_little, does_little},
             {"waits", waits_for_child, does_little},
             {"raw", waits_raw, does_little}};

static int stderr_has(const char* text) {
  static char all[1 << 16];
  int fd = text ? open("/proc/self/fd/2", O_RDONLY) : -1;
  if (fd < 0) return 1;
  long n = read(fd, all, sizeof all - 1);
  close(fd);
  all[n > 0 ? n : 0] = 0;
  return strstr(all, text) != 0;
}

int main(int argc, char** argv) {
  if (getenv("LONG_MS")) long_ms = atol(getenv("LONG_MS"));
  if (getenv("STOP_MS")) stop_ms = atol(getenv("STOP_MS")), start_waker();
  pthread_t t[2];
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc < 2 || strcmp(argv[1], cases[i].name)) continue;
    pthread_create(&t[0], 0, cases[i].one, 0);
    pthread_setname_np(t[0], "one");
    pthread_create(&t[1], 0, cases[i].other, 0);
    pthread_setname_np(t[1], "other");
    pthread_join(t[0], 0);
    pthread_join(t[1], 0);
    // A dump takes its time, and the process must be there for it.
    for (int i = 0; i < 600 && !stderr_has(getenv("WAIT_FOR")); i++) usleep(50000);
    return 0;
  }
  return 2;
}
