// SPDX-License-Identifier: MIT
// An echo server in the simplest form: a thread for each connection. Prints its port, and serves until it is killed.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void* serve(void* p) {
  int fd = (int)(long)p;
  char buffer[4096];
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0) {
    for (ssize_t sent = 0, r; sent < n; sent += r)
      if ((r = write(fd, buffer + sent, n - sent)) < 0) {
        close(fd);
        return NULL;
      }
  }
  close(fd);
  return NULL;
}

int main(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  signal(SIGPIPE, SIG_IGN);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, size) || listen(listener, 4096) ||
      getsockname(listener, (struct sockaddr*)&address, &size)) {
    perror("echo_threads");
    return 1;
  }
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      perror("accept");
      return 1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pthread_t t;
    int e = pthread_create(&t, NULL, serve, (void*)(long)fd);
    if (e) {
      fprintf(stderr, "pthread_create: error %d\n", e);
      return 1;
    }
    pthread_detach(t);
  }
}
