// SPDX-License-Identifier: MIT
// Event loops whose peer is another process sleep in the kernel, in their own epoll_wait. Meanwhile other threads run as always, timers are
// in time, and signals, cancellation, jumps and forks find the sleeper.
#include "waiting.h"

#include <dirent.h>
#include <setjmp.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { kLoops = 4, kRounds = 50 };
static int peers[kLoops][2], go[2];
static atomic_int interrupted, timed_out, jumped, handled;
static _Thread_local sigjmp_buf back;

static void* loop(void* p) {
  int fd = peers[(long)p][0], ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN};
  assert(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0);
  if (sigsetjmp(back, 1)) jumped++;
  for (;;) {
    int n = epoll_wait(ep, &e, 1, (long)p == 1 ? 100 : -1);
    char c;
    if (n < 0) {
      assert(errno == EINTR);
      interrupted++;
    } else if (n == 0) {
      assert((long)p == 1);
      timed_out++;
    } else {
      ssize_t got = read(fd, &c, 1);
      if (got == 0) break;
      assert(got == 1 && write(fd, &c, 1) == 1);
    }
  }
  close(ep);
  return NULL;
}

// Another process: a request to each loop, every 2 ms, and their answers.
static void client(void) {
  close(go[0]);
  for (int i = 0; i < kLoops; i++) close(peers[i][0]);
  for (int part = 0; part < 2; part++) {
    for (int r = 0; r < kRounds; r++) {
      for (int i = 0; i < kLoops; i++) {
        char c = (char)r, back_again;
        if (part == 1 && i == 3) continue;  // it was cancelled
        if (write(peers[i][1], &c, 1) != 1 || read(peers[i][1], &back_again, 1) != 1 || back_again != c) _exit(1);
      }
      usleep(2000);
    }
    char c;
    if (part == 0 && (write(go[1], "x", 1) != 1 || read(go[1], &c, 1) != 1)) _exit(2);
  }
  _exit(0);
}

static int asleep_in(long number) {
  DIR* d = opendir("/proc/self/task");
  int found = 0;
  for (struct dirent* t; d && (t = readdir(d));) {
    char path[300], text[64];
    snprintf(path, sizeof path, "/proc/self/task/%s/syscall", t->d_name);
    FILE* f = fopen(path, "r");
    if (!f) continue;
    if (fgets(text, sizeof text, f) && text[0] != 'r' && atol(text) == number) found++;
    fclose(f);
  }
  if (d) closedir(d);
  return found;
}

static void on_signal(int sig) {
  (void)sig;
  handled++;
}
static void on_jump(int sig) {
  (void)sig;
  siglongjmp(back, 1);
}

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;
static int turn;
static void* take_turns(void* p) {
  for (int r = 0; r < 100; r++) {
    pthread_mutex_lock(&m);
    while (turn % 16 != (int)(long)p) pthread_cond_wait(&turn_over, &m);
    turn++;
    pthread_cond_broadcast(&turn_over);
    pthread_mutex_unlock(&m);
    if (r % 25 == 0) usleep(1000);
  }
  return NULL;
}
static void others(void) {
  pthread_t t[16];
  turn = 0;
  for (long i = 0; i < 16; i++) assert(pthread_create(&t[i], NULL, take_turns, (void*)i) == 0);
  for (int i = 0; i < 16; i++) assert(pthread_join(t[i], NULL) == 0);
  assert(turn == 1600);
}

int main(void) {
  assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, go) == 0);
  for (int i = 0; i < kLoops; i++) assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, peers[i]) == 0);
  pid_t child = fork();
  if (child == 0) client();
  close(go[1]);
  for (int i = 0; i < kLoops; i++) close(peers[i][1]);
  signal(SIGUSR1, on_signal);
  signal(SIGUSR2, on_jump);
  pthread_t t[kLoops];
  for (long i = 0; i < kLoops; i++) assert(pthread_create(&t[i], NULL, loop, (void*)i) == 0);
  char c;
  assert(read(go[0], &c, 1) == 1);  // the client waits now, and so do the loops
#ifdef SYS_epoll_wait
  if (access("/proc/self/syscall", R_OK) == 0 && getenv("LD_PRELOAD")) {
    int own = 0;
    for (int i = 0; i < 2000 && !own; i++) {
      own = asleep_in(SYS_epoll_wait);
      usleep(1000);
    }
    assert(own > 0);
  }
#endif
  others();
  for (int i = 0; i < 100; i++) {
    int before = interrupted;
    do {  // until one has come while the thread was in its call
      assert(pthread_kill(t[i % 3], SIGUSR1) == 0);
      usleep(200);
    } while (interrupted == before);
  }
  assert(handled >= interrupted);
  for (int before = timed_out; timed_out == before;) usleep(1000);
  assert(pthread_kill(t[2], SIGUSR2) == 0);
  while (!jumped) usleep(100);
  void* r;
  assert(pthread_cancel(t[3]) == 0 && pthread_join(t[3], &r) == 0 && r == PTHREAD_CANCELED);
  pid_t grandchild = fork();
  if (grandchild == 0) {
    others();
    _exit(7);
  }
  int status;
  assert(waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  others();
  assert(write(go[0], "x", 1) == 1);
  assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (int i = 0; i < 3; i++) assert(pthread_join(t[i], NULL) == 0);
  return 0;
}
