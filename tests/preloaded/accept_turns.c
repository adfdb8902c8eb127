// SPDX-License-Identifier: MIT
// Event loops that watch one listening socket all get connections. (With each, all of them are ready. The library must not let the same one be
// the first each time.)
// expect: preloaded only
// workers: 1
#include "waiting.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { kLoops = 4, kConnections = 40 };
static int listener, accepted[kLoops];
static atomic_int in_all;

// Its waits have a mask, so that they are the library's own, never the kernel's.
static void* loop(void* p) {
  sigset_t none;
  sigemptyset(&none);
  struct epoll_event e = {.events = EPOLLIN};
  int ep = epoll_create1(EPOLL_CLOEXEC);
  assert(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e) == 0);
  while (in_all < kConnections) {
    int n = epoll_pwait(ep, &e, 1, 20, &none);
    assert(n >= 0);
    int fd = n ? accept4(listener, NULL, NULL, SOCK_NONBLOCK) : -1;
    if (fd < 0) continue;
    close(fd);
    accepted[(long)p]++;
    in_all++;
  }
  close(ep);
  return NULL;
}

int main(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof to;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  assert(bind(listener, (struct sockaddr*)&to, size) == 0 && listen(listener, 16) == 0 &&
         getsockname(listener, (struct sockaddr*)&to, &size) == 0);
  pthread_t t[kLoops];
  for (long i = 0; i < kLoops; i++) assert(pthread_create(&t[i], NULL, loop, (void*)i) == 0);
  usleep(20000);
  for (int i = 0; i < kConnections; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert(connect(fd, (struct sockaddr*)&to, size) == 0);
    while (in_all <= i) usleep(1000);
    usleep(1000);
    close(fd);
  }
  int idle = 0;
  for (int i = 0; i < kLoops; i++) {
    pthread_join(t[i], NULL);
    idle += accepted[i] == 0;
  }
  printf("connections %d, loops that got none: %d\n", (int)in_all, idle);
}
