// SPDX-License-Identifier: MIT
// The same server as echo_threads.c, without threads: one process with an epoll loop, or as many processes as the argument says.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static _Noreturn void fail(const char* what) {
  perror(what);
  exit(1);
}

int main(int argc, char** argv) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  signal(SIGPIPE, SIG_IGN);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, size) || listen(listener, 4096) ||
      getsockname(listener, (struct sockaddr*)&address, &size))
    fail("echo_epoll");
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (int i = argc > 1 ? atoi(argv[1]) : 1; i > 1; i--)
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      break;
    }
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = listener}, ready[256];
  if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e)) fail("epoll");
  for (;;) {
    int n = epoll_wait(ep, ready, 256, -1);
    for (int i = 0; i < n; i++) {
      int fd = ready[i].data.fd;
      if (fd == listener) {
        if ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        e.events = EPOLLIN, e.data.fd = fd;
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl");
        continue;
      }
      char buffer[4096];
      ssize_t r = read(fd, buffer, sizeof buffer);
      if (r <= 0 ? r == 0 || errno != EAGAIN : write(fd, buffer, r) != r) close(fd);
    }
  }
}
