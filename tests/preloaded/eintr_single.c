// SPDX-License-Identifier: MIT
// Handlers end the waits of a program without threads, of the child of a vfork and of a fork, and of main once there were threads. In some of
// these the kernel calls the handlers without the library.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void handler(int sig) {}

#define ENDS(call, ...) printf("%s: " #call " %s\n", who, call(__VA_ARGS__) < 0 ? strerrorname_np(errno) : "did not wait")

static void all_waits(const char* who) {
  int ends[2], pipes[2], epoll = epoll_create1(0);
  char c;
  struct epoll_event event;
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  struct timespec t = {60, 0};
  sigset_t none;
  sigemptyset(&none);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || pipe(pipes) != 0) return;
  // A signal every 20 ms: one that comes before the call has no effect, and the next one ends it.
  setitimer(ITIMER_REAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
  ENDS(read, pipes[0], &c, 1);
  ENDS(readv, pipes[0], &v, 1);
  ENDS(recv, ends[0], &c, 1, 0);
  ENDS(recv, ends[0], &c, 1, MSG_WAITALL);
  ENDS(recvfrom, ends[0], &c, 1, 0, NULL, NULL);
  ENDS(recvmsg, ends[0], &m, 0);
  ENDS(poll, NULL, 0, -1);
  ENDS(ppoll, NULL, 0, NULL, &none);
  ENDS(select, 0, NULL, NULL, NULL, NULL);
  ENDS(pselect, 0, NULL, NULL, NULL, NULL, &none);
  ENDS(epoll_wait, epoll, &event, 1, -1);
  ENDS(epoll_pwait, epoll, &event, 1, -1, &none);
  ENDS(nanosleep, &t, NULL);
  ENDS(pause);
  int word = 0;
  ENDS(syscall, SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, &t, NULL, 0);
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  close(epoll);
  for (int i = 0; i < 2; i++) close(ends[i]), close(pipes[i]);
  fflush(stdout);
}

static void waits_for_child(const char* who) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  setitimer(ITIMER_REAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
  ENDS(waitpid, child, NULL, 0);
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

static void in_vfork(const char* who) {
  fflush(stdout);
  int pipes[2];
  if (pipe(pipes) != 0) return;
  volatile int result = 0, error = 0;
  pid_t child = vfork();
  if (child == 0) {
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
    char c;
    result = (int)read(pipes[0], &c, 1);
    error = errno;
    _exit(0);
  }
  waitpid(child, NULL, 0);
  printf("%s: read in the child of a vfork %d %s\n", who, result, strerrorname_np(error));
  close(pipes[0]);
  close(pipes[1]);
}

static void* nothing(void* p) { return p; }

int main(void) {
  sigaction(SIGALRM, &(struct sigaction){.sa_handler = handler}, NULL);
  all_waits("no thread");
  waits_for_child("no thread");
  in_vfork("no thread");
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
  all_waits("main");
  waits_for_child("main");
  in_vfork("main");
  pid_t child = fork();
  if (child == 0) {
    all_waits("child");
    waits_for_child("child");
    return 0;
  }
  waitpid(child, NULL, 0);
  return 0;
}
