// SPDX-License-Identifier: MIT
// A program whose own __register_atfork() collects what libraries give to pthread_atfork(), and runs it around its own clone(), as Firefox
// does. Also what the child of a clone() is: before there were threads, and after it has left by a jump.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
  void (*prepare)(void), (*parent)(void), (*child)(void);
} handlers[64];
static int count;
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void* object) {
  handlers[count].prepare = prepare, handlers[count].parent = parent, handlers[count].child = child;
  count++;
  (void)object;
  return 0;
}

static int own_prepared, own_in_parent, own_in_child;
static void prepare(void) { own_prepared++; }
static void in_parent(void) { own_in_parent++; }
static void in_child(void) { own_in_child++; }

static int jump(void* p) { longjmp(*(jmp_buf*)p, 1); }
static __attribute__((noinline)) pid_t clone_on(char* low, size_t size, jmp_buf* back) {
  return clone(jump, (void*)(((unsigned long)low + size) & ~15ul), SIGCHLD, back);
}
// Does what fork() does, but by clone().
static __attribute__((noinline)) pid_t forks(void) {
  char small[4096 + 16];
  jmp_buf back;
  for (int i = count; i--;)
    if (handlers[i].prepare) handlers[i].prepare();
  pid_t pid = setjmp(back) == 0 ? clone_on(small, sizeof small, &back) : 0;
  for (int i = 0; i < count; i++) {
    void (*f)(void) = pid == 0 ? handlers[i].child : handlers[i].parent;
    if (f) f();
  }
  return pid;
}

static void* nothing(void* p) { return p; }
static void* waits(void* p) {
  while (!*(volatile int*)p) usleep(1000);
  return p;
}
static void child_and_wait(const char* what) {
  fflush(stdout);
  pid_t pid = forks();
  if (pid == 0) {
    pthread_t t;
    void* r = NULL;
    pthread_create(&t, NULL, nothing, &count);
    pthread_join(t, &r);
    printf("%s: handlers %d, threads %d, itself %d\n", what, own_in_child, r == &count,
           getpid() == gettid() && syscall(SYS_gettid) == getpid());
    fflush(stdout);
    _exit(7);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  printf("%s: status %x, handlers %d %d\n", what, status, own_prepared, own_in_parent);
}

int main() {
  static volatile int over;
  pthread_t t;
  pthread_atfork(prepare, in_parent, in_child);
  child_and_wait("before any thread");
  pthread_create(&t, NULL, waits, (void*)&over);
  for (int i = 0; i < 20; i++) child_and_wait("beside a thread");
  // libc's fork does not know these handlers. The library does its own part all the same.
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t mine;
    pthread_create(&mine, NULL, nothing, NULL);
    _exit(pthread_join(mine, NULL) == 0 ? 5 : 6);
  }
  int status;
  waitpid(pid, &status, 0);
  printf("fork: status %x, handlers %d\n", status, own_prepared);
  over = 1;
  pthread_join(t, NULL);
  return 0;
}
