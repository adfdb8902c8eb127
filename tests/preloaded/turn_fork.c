// SPDX-License-Identifier: MIT
// Once in a while, a read lets other fibers run before it waits. A handler that runs then may fork, and the child's read still gets its
// data.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int awaited[2], result[2];
static atomic_int about_to_read;
static volatile pid_t child;
static pthread_t thread;

static void forks(int sig) {
  (void)sig;
  child = fork();
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void* reads(void* p) {
  int ends[2];
  char c = 'x';
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  for (int k = 0; k < 15 + *(int*)p; k++) {
    if (write(ends[1], &c, 1) != 1 || read(ends[0], &c, 1) != 1) puts("cannot");
  }
  for (double begin = now(); now() - begin < 0.0005;) {
  }
  atomic_store(&about_to_read, 1);
  ssize_t r = read(awaited[0], &c, 1);
  if (child == 0) {
    c = r == 1 ? 'y' : 'n';
    _exit(write(result[1], &c, 1) != 1);
  }
  printf("%zd ", r);
  return NULL;
}

static void* signals(void* p) {
  while (!atomic_load(&about_to_read)) sched_yield();
  pthread_kill(thread, SIGUSR1);
  return p;
}

int main(void) {
  struct sigaction act = {.sa_handler = forks, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &act, NULL);
  for (int more = 0; more < 8; more++) {
    pthread_t other;
    char c = '?';
    atomic_store(&about_to_read, 0);
    child = -1;
    if (pipe(awaited) || pipe(result)) return 1;
    pthread_create(&thread, NULL, reads, &more);
    pthread_create(&other, NULL, signals, NULL);
    pthread_join(other, NULL);
    while (child == -1) usleep(1000);
    usleep(10000);
    if (write(awaited[1], "12", 2) != 2) return 1;
    pthread_join(thread, NULL);
    if (read(result[0], &c, 1) != 1) c = '!';
    int status;
    waitpid(child, &status, 0);
    printf("child: %c, status %d\n", c, status);
    for (int i = 0; i < 2; i++) close(awaited[i]), close(result[i]);
  }
  return 0;
}
