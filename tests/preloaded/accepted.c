// SPDX-License-Identifier: MIT
// An accepted socket behaves by its own options. It is blocking unless accept4() says otherwise, has the time limits that its family takes
// over from the listening one, and follows what the program sets later.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const struct timeval kLimit = {0, 20000};
static int write_after;  // µs

static struct server {
  const char* name;
  int domain, type, fd;
  struct sockaddr_storage address;
  socklen_t size;
} servers[] = {{.name = "TCP", .domain = AF_INET, .type = SOCK_STREAM},
               {.name = "Unix", .domain = AF_UNIX, .type = SOCK_STREAM},
               {.name = "Unix, packets", .domain = AF_UNIX, .type = SOCK_SEQPACKET}};

static void serve(struct server* s) {
  struct sockaddr* a = (struct sockaddr*)&s->address;
  s->address.ss_family = s->domain;
  // A Unix socket without a name gets one from the kernel.
  s->size = s->domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(sa_family_t);
  assert((s->fd = socket(s->domain, s->type | SOCK_CLOEXEC, 0)) >= 0 && bind(s->fd, a, s->size) == 0 && listen(s->fd, 64) == 0);
  s->size = sizeof s->address;
  assert(getsockname(s->fd, a, &s->size) == 0);
}

static void* connect_late(void* p) {
  struct server* s = p;
  usleep(2000);  // so that accept() waits
  int fd = socket(s->domain, s->type | SOCK_CLOEXEC, 0);
  assert(fd >= 0 && connect(fd, (struct sockaddr*)&s->address, s->size) == 0);
  return (void*)(long)fd;
}

static void* write_late(void* p) {
  usleep(write_after);
  assert(write((int)(long)p, "x", 1) == 1);
  return NULL;
}

static void tell(const char* what, ssize_t r) { printf("  %s: %s\n", what, r >= 0 ? "data" : strerror(errno)); }

// Reads, while the other end writes late.
static void tell_late(const char* what, int fd, int peer, ssize_t (*call)(int)) {
  pthread_t t;
  assert(pthread_create(&t, NULL, write_late, (void*)(long)peer) == 0);
  ssize_t r = call(fd);
  tell(what, r);
  pthread_join(t, NULL);
  char c;
  if (r < 0) assert(recv(fd, &c, 1, MSG_DONTWAIT) == 1);
}

static ssize_t by_read(int fd) {
  char c;
  return read(fd, &c, 1);
}
static ssize_t by_recv(int fd) {
  char c;
  return recv(fd, &c, 1, 0);
}

static void try_accepted(struct server* s, int flags, int limited) {
  pthread_t t;
  void* peer;
  assert(setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, limited ? &kLimit : &(struct timeval){0, 0}, sizeof kLimit) == 0);
  assert(pthread_create(&t, NULL, connect_late, s) == 0);
  int fd;
  do fd = flags ? accept4(s->fd, NULL, NULL, flags) : accept(s->fd, NULL, NULL);
  while (fd < 0 && errno == EAGAIN && limited);
  assert(fd >= 0 && pthread_join(t, &peer) == 0);
  int other = (int)(long)peer;
  struct timeval now;
  socklen_t size = sizeof now;
  assert(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &now, &size) == 0);
  printf("%s%s%s%s\n", s->name, flags & SOCK_NONBLOCK ? ", not blocking" : "", limited ? ", limited" : "",
         now.tv_usec ? ", and so is the new one" : "");

  if (flags & SOCK_NONBLOCK) {
    tell("read", by_read(fd));
    tell("recv", by_recv(fd));
    assert(fcntl(fd, F_SETFL, 0) == 0);
  } else if (now.tv_usec) {
    tell("read, limit taken over", by_read(fd));
    tell("recv, limit taken over", by_recv(fd));
    assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 0}, sizeof kLimit) == 0);
  }
  write_after = limited ? 2 * kLimit.tv_usec : 2000;  // a limit that should not be there ends the call first
  tell_late("read", fd, other, by_read);
  tell_late("recv", fd, other, by_recv);
  assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kLimit, sizeof kLimit) == 0);
  tell("read, own limit", by_read(fd));
  assert(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
  tell("recv, not blocking", by_recv(fd));
  close(other);
  close(fd);
}

static void* all(void* p) {
  for (size_t i = 0; i < sizeof servers / sizeof *servers; i++) {
    serve(&servers[i]);
    for (int round = 0; round < 3; round++) {
      try_accepted(&servers[i], 0, 0);
      try_accepted(&servers[i], SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      try_accepted(&servers[i], SOCK_CLOEXEC, 1);
    }
    close(servers[i].fd);
  }
  return p;
}

int main(void) {
  pthread_t t;
  assert(pthread_create(&t, NULL, all, NULL) == 0 && pthread_join(t, NULL) == 0);
}
