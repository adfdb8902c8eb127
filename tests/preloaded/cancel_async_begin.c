// SPDX-License-Identifier: MIT
// A request for asynchronous cancellation comes just when the thread begins to wait. It ends the thread wherever it comes: before the call, in
// the call's first instructions, or in the kernel. A request that was lost would leave the thread waiting.
#define _GNU_SOURCE
#include <assert.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 300, kByNumber = 3000 };  // calls by number take longest until they are in libc
static atomic_bool ready;
static int ends[2], epoll, word, queue;

static void waits_for_child(void) { waitpid(-1, &(int){0}, 0); }
static void waits_by_number(void) { syscall(SYS_waitid, P_ALL, 0, NULL, WEXITED, NULL); }
static void reads(void) { (void)!read(ends[0], &(char){0}, 1); }
static void reads_by_number(void) { syscall(SYS_read, ends[0], &(char){0}, 1); }
static void waits_on_futex(void) { syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); }
static void waits_on_private_futex(void) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); }
static void polls(void) { poll(&(struct pollfd){ends[0], POLLIN, 0}, 1, -1); }
static void polls_by_number(void) { syscall(SYS_ppoll, NULL, 0, NULL, NULL, 8L); }
static void waits_for_epoll(void) { epoll_wait(epoll, &(struct epoll_event){0}, 1, -1); }
static void sleeps(void) { nanosleep(&(struct timespec){1000, 0}, NULL); }
static void pauses(void) { pause(); }
static void receives(void) {
  struct {
    long type;
    char text[1];
  } message;
  msgrcv(queue, &message, 1, 0, 0);
}

#define CALL(name, rounds) {#name, name, rounds}
static const struct {
  const char* name;
  void (*call)(void);
  int rounds;
} calls[] = {CALL(waits_for_child, kRounds), CALL(waits_by_number, kByNumber),
             CALL(reads, kRounds),           CALL(reads_by_number, kRounds),
             CALL(waits_on_futex, kRounds),  CALL(waits_on_private_futex, kRounds),
             CALL(polls, kRounds),           CALL(polls_by_number, kRounds),
             CALL(waits_for_epoll, kRounds), CALL(sleeps, kRounds),
             CALL(pauses, kRounds),          CALL(receives, kRounds)};
enum { kCalls = sizeof calls / sizeof *calls };

static void* waits(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  ready = 1;
  ((void (*)(void))p)();
  return NULL;
}

int main(void) {
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) pause();
    _exit(0);
  }
  assert(pipe(ends) == 0);
  epoll = epoll_create1(0);
  queue = msgget(IPC_PRIVATE, 0600);
  unsigned seed = 1;
  for (int i = 0; i < kCalls; i++) {
    int cancelled = 0;
    for (int round = 0; round < calls[i].rounds; round++) {
      ready = 0;
      pthread_t t;
      assert(pthread_create(&t, NULL, waits, calls[i].call) == 0);
      while (!ready) sched_yield();
      seed = seed * 1103515245 + 12345;
      for (unsigned n = (seed >> 16) % 3000; n--;) atomic_signal_fence(memory_order_seq_cst);
      pthread_cancel(t);
      struct timespec bound;
      clock_gettime(CLOCK_REALTIME, &bound);
      bound.tv_sec += 60;
      void* result = NULL;
      int e = pthread_timedjoin_np(t, &result, &bound);
      if (e) {
        printf("%s, round %d: %s\n", calls[i].name, round, strerror(e));
        fflush(stdout);
        _exit(1);
      }
      cancelled += result == PTHREAD_CANCELED;
    }
    printf("%s: %d cancelled\n", calls[i].name, cancelled);
  }
  msgctl(queue, IPC_RMID, NULL);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return 0;
}
