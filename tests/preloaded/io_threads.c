// SPDX-License-Identifier: MIT
// A thread that waits for a descriptor costs no kernel thread. 300 threads wait in each of the calls in which servers wait.
#include "waiting.h"

#include <dirent.h>
#include <netinet/tcp.h>

enum { kThreads = 300 };
static int fd[kThreads][2], eps[kThreads], kind;
static atomic_int waiting, interrupted;
static struct sockaddr_in full;  // its backlog is full

// Each thread connects to the full socket, and is interrupted, since no connection will ever be accepted.
static void nothing(int sig) {}
static void* connect_here(void* p) {
  int s = socket(AF_INET, SOCK_STREAM, 0);
  waiting++;
  int r = connect(s, (struct sockaddr*)&full, sizeof full), e = errno;
  close(s);
  interrupted++;
  return (void*)(long)(r == -1 && e == EINTR);
}

static void* wait_here(void* p) {
  long i = (long)p;
  char c;
  struct pollfd f = {fd[i][0], POLLIN};
  struct epoll_event e;
  fd_set s;
  FD_ZERO(&s);
  if (fd[i][0] < FD_SETSIZE) FD_SET(fd[i][0], &s);
  waiting++;
  switch (kind) {
    case 1: poll(&f, 1, -1); break;
    case 2: epoll_wait(eps[i], &e, 1, -1); break;
    case 3: recv(fd[i][0], &c, 1, MSG_PEEK); break;
    case 4:
      if (fd[i][0] < FD_SETSIZE) select(fd[i][0] + 1, &s, NULL, NULL, NULL);
      break;
    case 7:
    case 8: {
      sigset_t blocked, none;
      sigemptyset(&none);
      sigemptyset(&blocked);
      sigaddset(&blocked, SIGUSR2);
      pthread_sigmask(SIG_BLOCK, &blocked, NULL);
      if (kind == 7) ppoll(&f, 1, NULL, &none);
      else epoll_pwait(eps[i], &e, 1, -1, &none);
      break;
    }
    case 5: {
      struct timeval t = {1000, 0};
      setsockopt(fd[i][0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    }
  }
  return (void*)(long)(read(fd[i][0], &c, 1) == 1);
}

static int kernel_threads(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/task");
  for (struct dirent* e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

// Returns true if more connections wait to be accepted than may wait.
static int is_full(int listener) {
  struct tcp_info info;
  socklen_t n = sizeof info;
  assert(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &n) == 0);
  return info.tcpi_unacked > info.tcpi_sacked;
}

int main(void) {
  const int preloaded = getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "fiberthread");
  // The kernel's table of descriptors grows now. Once there are threads, all that open something sleep in the kernel meanwhile.
  close(fcntl(0, F_DUPFD, 5 * kThreads));
  for (int i = 0; i < kThreads; i++) {
    struct epoll_event e = {.events = EPOLLIN};
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]) == 0 && (eps[i] = epoll_create1(0)) >= 0);
    assert(epoll_ctl(eps[i], EPOLL_CTL_ADD, fd[i][0], &e) == 0);
  }
  int listener = loopback(SOCK_STREAM, &full);
  assert(listen(listener, 0) == 0);
  for (; !is_full(listener); pause_ms(10)) {
    int s = loopback(SOCK_STREAM, NULL);
    set_nonblocking(s, 1);
    connect(s, (struct sockaddr*)&full, sizeof full);
  }
  signal(SIGUSR1, nothing);
  siginterrupt(SIGUSR1, 1);
  const char* names[] = {
      "read", "poll", "epoll_wait", "recv", "select", "read with SO_RCVTIMEO", "connect", "ppoll with a mask", "epoll_pwait with a mask"};
  for (kind = 0; kind < 9; kind++) {
    pthread_t t[kThreads];
    long sum = 0;
    waiting = 0;
    for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, kind == 6 ? connect_here : wait_here, (void*)i) == 0);
    while (waiting < kThreads) pause_ms(1);
    pause_ms(20);
    int n = kernel_threads();
    if (preloaded ? n > 60 : n <= kThreads) printf("%d kernel threads\n", n);
    if (kind != 6)
      for (int i = 0; i < kThreads; i++) assert(write(fd[i][1], "x", 1) == 1);
    else  // repeated until each thread was in its call when the signal came
      for (; interrupted < kThreads; pause_ms(1))
        for (int i = 0; i < kThreads; i++) pthread_kill(t[i], SIGUSR1);
    for (int i = 0; i < kThreads; i++) {
      void* r;
      pthread_join(t[i], &r);
      sum += (long)r;
    }
    printf("%s: %ld\n", names[kind], sum);
  }
  return 0;
}
