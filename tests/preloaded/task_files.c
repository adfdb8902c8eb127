// SPDX-License-Identifier: MIT
// A thread's files in /proc/self/task, as OpenJDK reads them by fopen(), and its clock of user time.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static sem_t ready, end;
static int tid;

static double seconds(clockid_t clock) {
  struct timespec t;
  return clock_gettime(clock, &t) == 0 ? t.tv_sec + t.tv_nsec / 1e9 : -1;
}

static void* computes(void* p) {
  pthread_setname_np(pthread_self(), "a ) name");
  tid = (int)syscall(SYS_gettid);
  while (seconds(CLOCK_THREAD_CPUTIME_ID) < 0.15) {
  }
  sem_post(&ready);
  sem_wait(&end);
  return p;
}

// Prints what is the same in each run.
static void look(const char* who, int id) {
  char path[64], line[2000] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
  FILE* f = fopen(path, "r");
  if (!f) {
    printf("%s: %s\n", who, strerrorname_np(errno));
    return;
  }
  size_t n = fread(line, 1, sizeof line - 1, f);
  assert(n > 0 && line[n - 1] == '\n' && fclose(f) == 0);
  char *name = strchr(line, '('), *rest = strrchr(line, ')'), state;
  assert(name && rest);
  int number;
  long user, system;
  assert(sscanf(line, "%d", &number) == 1 && number == id);
  assert(sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &state, &user, &system) == 3);
  double all = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
  int fields = 2;
  for (char* c = rest; *c; c++) fields += *c == ' ';
  printf("%s: %.*s, state %s, time %s, %d fields\n", who, (int)(rest - name + 1), name, strchr("RS", state) ? "R or S" : "?",
         all >= 0.1 ? "right" : "wrong", fields);
  snprintf(path, sizeof path, "/proc/%d/task/%d/comm", getpid(), id);
  f = fopen64(path, "re");
  assert(f && fgets(line, sizeof line, f) && !fgets(path, sizeof path, f) && fclose(f) == 0);
  printf("%s: %s", who, line);
}

int main(void) {
  pthread_t t;
  sem_init(&ready, 0, 0), sem_init(&end, 0, 0);
  pthread_create(&t, NULL, computes, NULL);
  sem_wait(&ready);
  look("thread", tid);
  clockid_t clock;
  assert(pthread_getcpuclockid(t, &clock) == 0);
  double user = seconds((clock & ~7) | 5), both = seconds((clock & ~7) | 4);
  printf("clocks: %s, %s\n", user >= 0 && user <= both + 0.1 ? "right" : "wrong", both >= 0.1 ? "right" : "wrong");
  while (seconds(CLOCK_THREAD_CPUTIME_ID) < 0.15) {
  }
  look("main", getpid());
  look("nobody", 0x3fffffff);
  FILE* f = fopen("/proc/self/task/0/stat", "r");
  printf("%s\n", f ? "open" : strerrorname_np(errno));
  sem_post(&end);
  pthread_join(t, NULL);
  return 0;
}
