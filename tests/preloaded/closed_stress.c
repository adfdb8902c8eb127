// SPDX-License-Identifier: MIT
// Threads wait for descriptors in many ways, with limits and signals, while others close these and give their numbers to other files. All
// threads end, no other error than those of closed descriptors comes, and no file stays open.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { kSockets = 24, kWaiting = 40, kClosing = 3, kFirst = 100, kSignals = 500 };
static struct {
  int peer;
  pthread_mutex_t lock;
} sockets[kSockets];
static atomic_int stop, wrong;

static int number(unsigned* seed) { return kFirst + rand_r(seed) % kSockets; }

static void* waits(void* p) {
  unsigned seed = (unsigned)(long)p;
  char room[8];
  while (!stop) {
    int how = rand_r(&seed) % 5;
    if (how < 2) {
      ssize_t r = how ? read(number(&seed), room, 1 + rand_r(&seed) % 3)
                      : recv(number(&seed), room, 3, rand_r(&seed) % 2 ? MSG_WAITALL : 0);
      if (r < 0 && errno != EBADF && errno != EAGAIN && errno != EINTR) wrong = errno;
    } else if (how < 4) {
      struct pollfd all[5];
      for (int i = 0; i < 5; i++) all[i] = (struct pollfd){number(&seed), POLLIN, 0};
      poll(all, 1 + rand_r(&seed) % 5, rand_r(&seed) % 4);
    } else {
      fd_set set;
      struct timeval limit = {0, rand_r(&seed) % 3000};
      FD_ZERO(&set);
      for (int i = 0; i < 4; i++) FD_SET(number(&seed), &set);
      select(kFirst + kSockets, &set, NULL, NULL, &limit);
    }
  }
  return NULL;
}

static void renew(int k) {
  int fd[2];
  struct timeval limit = {0, 3000};
  assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
  setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  assert(dup2(fd[0], kFirst + k) == kFirst + k);
  fcntl(fd[1], F_SETFL, O_NONBLOCK);
  close(fd[0]);
  if (sockets[k].peer) close(sockets[k].peer);
  sockets[k].peer = fd[1];
}

static void* closes(void* p) {
  unsigned seed = (unsigned)(long)p;
  while (!stop) {
    int k = rand_r(&seed) % kSockets;
    pthread_mutex_lock(&sockets[k].lock);
    if (write(sockets[k].peer, "abc", 1 + rand_r(&seed) % 3) < 0) assert(errno == EAGAIN);
    int how = rand_r(&seed) % 3;
    if (how == 0) close(kFirst + k);
    if (how == 0 && rand_r(&seed) % 2) usleep(rand_r(&seed) % 200);
    if (how < 2) renew(k);
    pthread_mutex_unlock(&sockets[k].lock);
    if (rand_r(&seed) % 4 == 0) usleep(rand_r(&seed) % 300);
  }
  return NULL;
}

static int open_sockets(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  for (struct dirent* e; (e = readdir(d));) {
    char file[300] = "";
    n += readlinkat(dirfd(d), e->d_name, file, sizeof file) > 0 && !strncmp(file, "socket:", 7);
  }
  closedir(d);
  return n;
}

static void on_signal(int sig) {}

int main(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &a, NULL);
  for (int k = 0; k < kSockets; k++) {
    renew(k);
    pthread_mutex_init(&sockets[k].lock, NULL);
  }
  int before = open_sockets();
  pthread_t t[kWaiting + kClosing];
  for (long i = 0; i < kWaiting + kClosing; i++) assert(pthread_create(&t[i], NULL, i < kWaiting ? waits : closes, (void*)(i + 1)) == 0);
  for (int i = 0; i < kSignals; i++) {
    usleep(2000);
    pthread_kill(t[i * 7 % kWaiting], SIGUSR1);
  }
  stop = 1;
  for (int i = 0; i < kWaiting + kClosing; i++) pthread_join(t[i], NULL);
  printf("error: %d, sockets: %+d\n", wrong, open_sockets() - before);
  return 0;
}
