// SPDX-License-Identifier: MIT
// Processes from threads: fork and threads in the child, system, popen, posix_spawn, vfork, exec; how a process ends.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static int shell(const char* command) {
  pid_t pid;
  char* argv[] = {"sh", "-c", (char*)command, NULL};
  int status;
  assert(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0 && waitpid(pid, &status, 0) == pid);
  return WEXITSTATUS(status);
}

static void* count_up(void* p) {
  for (int i = 0; i < 100; i++) {
    __atomic_fetch_add((int*)p, 1, __ATOMIC_SEQ_CST);
    if (i % 10 == 0) sched_yield();
  }
  return NULL;
}

static void* work(void* p) {
  for (int i = 0; i < 3; i++) {
    int status;
    char line[16];
    assert(WEXITSTATUS(system("exit 3")) == 3);
    FILE* f = popen("echo hi", "r");
    assert(f && fgets(line, sizeof line, f) && strcmp(line, "hi\n") == 0 && pclose(f) == 0);
    assert(shell("exit 4") == 4);
    pid_t pid = vfork();
    if (pid == 0) {
      // The child may set signals before it calls exec. The parent's must stay unchanged.
      signal(SIGUSR1, SIG_DFL);
      sigset_t all;
      sigfillset(&all);
      sigprocmask(SIG_BLOCK, &all, NULL);
      execl("/bin/sh", "sh", "-c", "exit 5", (char*)NULL);
      _exit(1);
    }
    assert(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert(!sigismember(&now, SIGTERM));
    struct sigaction sa;
    sigaction(SIGUSR1, NULL, &sa);
    assert(sa.sa_handler == SIG_IGN);
    pid = fork();
    if (pid == 0) {
      assert(getpid() == gettid());
      int n = 0;
      pthread_t t[4];
      for (int k = 0; k < 4; k++) pthread_create(&t[k], NULL, count_up, &n);
      for (int k = 0; k < 4; k++) pthread_join(t[k], NULL);
      pid_t grandchild = fork();
      if (grandchild == 0) {
        pthread_create(&t[0], NULL, count_up, &n);
        pthread_join(t[0], NULL);
        _exit(n == 500 ? 7 : 1);
      }
      assert(waitpid(grandchild, &status, 0) == grandchild && WEXITSTATUS(status) == 7);
      _exit(n == 400 ? 6 : 1);
    }
    assert(waitpid(pid, &status, 0) == pid);
    assert(WEXITSTATUS(status) == 6);
  }
  return p;
}

static void* yields(void* p) {
  for (int i = 0; i < 50; i++) sched_yield();
  return p;
}
static void* spins(void* p) {
  for (;;) {
  }
  return p;
}
static void* execs(void* p) {
  execl("/bin/echo", "echo", "exec from a thread", (char*)NULL);
  return p;
}
static void* exits(void* p) {
  usleep(1000);
  exit(9);
  return p;
}
static void at_exit(void) {
  puts("at exit");
  fflush(stdout);
}

static void ends(int how) {
  pthread_t t[8];
  atexit(at_exit);
  switch (how) {
    case 0:  // main's end waits for the others, and the last one ends the process
      for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, yields, NULL);
      pthread_exit(NULL);
    case 1:
      for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, spins, NULL);
      usleep(5000);
      exit(7);
    case 2:
      pthread_create(&t[0], NULL, spins, NULL);
      pthread_create(&t[1], NULL, execs, NULL);
      for (;;) pause();
    case 3:
      pthread_create(&t[0], NULL, spins, NULL);
      usleep(1000);
      abort();
    case 4:
      pthread_create(&t[0], NULL, exits, NULL);
      pthread_join(t[0], NULL);
      break;
    case 5:
      pthread_create(&t[0], NULL, spins, NULL);
      alarm(1);
      for (;;) pause();
    case 6:
      pthread_create(&t[0], NULL, spins, NULL);
      syscall(SYS_exit_group, 11);
      break;
    case 7: {
      struct sigaction sa;
      memset(&sa, 0, sizeof sa);
      pthread_create(&t[0], NULL, spins, NULL);
      int* volatile nowhere = (int*)8;
      *nowhere = 1;
    }
  }
}

int main() {
  signal(SIGUSR1, SIG_IGN);
  for (int how = 0; how < 8; how++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) ends(how);
    int status;
    assert(waitpid(pid, &status, 0) == pid);
    printf("end %d: %#x\n", how, status & ~0x80);  // without the bit for a core file
  }
  pthread_t t[8];
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, work, NULL);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  // The same with threads in this process, which its children do not have.
  for (int how = 0; how < 2; how++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) ends(how);
    int status;
    assert(waitpid(pid, &status, 0) == pid);
    printf("end %d: %#x\n", how, status);
  }
  puts("ok");
  return 0;
}
