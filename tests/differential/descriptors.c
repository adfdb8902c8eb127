// SPDX-License-Identifier: MIT
// Pipes, sockets, files and what waits for them, of one thread. A helper is at the other end where a call has to wait.
#include "differential.h"
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static void say_poll(int fd) {
  struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
  int n = poll(&p, 1, 0);
  say(" poll %d %#x", n, p.revents);
}

static void pipes(struct operation* o) {
  int fds[2];
  char block[5000] = "block";
  SAY_ERRNO("pipe", pipe2(fds, O_CLOEXEC | (o->a[0] ? O_NONBLOCK : 0)));
  say_poll(fds[0]);
  say_poll(fds[1]);
  say(" write %zd", write(fds[1], block, 1 + o->a[1] * 50));
  say_poll(fds[0]);
  say(" read %zd %.3s", read(fds[0], block, 100), block);
  if (o->a[0]) {
    while (read(fds[0], block, sizeof block) > 0) {
    }
    SAY_ERRNO("empty", read(fds[0], block, 1));
    long sum = 0;
    for (ssize_t n; (n = write(fds[1], block, 4096)) > 0;) sum += n;
    say(" full %ld %s", sum, error_name(errno));
    say_poll(fds[1]);
  }
  if (has_children) {
    close(fds[0]);
    close(fds[1]);
  } else if (o->a[2]) {
    close(fds[1]);
    ssize_t n;
    while ((n = read(fds[0], block, sizeof block)) > 0) {
    }
    say(" end %zd", n);
    say_poll(fds[0]);
    close(fds[0]);
  } else {
    close(fds[0]);
    SAY_ERRNO("broken", write(fds[1], block, 1));
    say_poll(fds[1]);
    close(fds[1]);
  }
  SAY_ERRNO("bad", read(-1, block, 1));
  SAY_ERRNO("bad", write(-1, block, 1));
}

static void sockets(struct operation* o) {
  static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
  int fds[2], type = types[o->a[0]];
  char block[3000] = "block";
  SAY_ERRNO("pair", socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds));
  setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 1000}, sizeof(struct timeval));
  if (o->a[1] == 0) SAY_ERRNO("timeout", recv(fds[0], block, 10, 0));
  SAY_ERRNO("dontwait", recv(fds[0], block, 10, MSG_DONTWAIT));
  for (int i = 0; i < 3; i++) say(" send %zd", send(fds[1], block, 10 + i + o->a[2] * 100, MSG_NOSIGNAL));
  say(" peek %zd", recv(fds[0], block, 5, MSG_PEEK));
  say(" read %zd", read(fds[0], block, 12));
  struct iovec v[2] = {{block, 4}, {block + 4, 1000}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
  say(" recvmsg %zd %#x", recvmsg(fds[0], &m, 0), m.msg_flags);
  say_poll(fds[0]);
  SAY_ERRNO("shutdown", shutdown(fds[o->a[1] % 2], SHUT_WR));
  say_poll(fds[0]);
  SAY_ERRNO("send", send(fds[o->a[1] % 2], block, 1, MSG_NOSIGNAL));
  if (type == SOCK_STREAM && o->a[1] % 2) {
    ssize_t n;
    while ((n = recv(fds[0], block, sizeof block, 0)) > 0) {
    }
    say(" end %zd", n);
  }
  if (o->a[1] == 3 && !has_children) SAY_ERRNO("closed", (close(fds[1]), send(fds[0], block, 1, MSG_NOSIGNAL)));
  else close(fds[1]);
  if (!has_children) say_poll(fds[0]);
  close(fds[0]);
  SAY_ERRNO("bad", recv(-1, block, 1, 0));
}

static void events(struct operation* o) {
  uint64_t n = 1 + o->a[0];
  int e = eventfd(o->a[1], EFD_CLOEXEC | EFD_NONBLOCK | (o->a[2] ? EFD_SEMAPHORE : 0));
  say(" write %zd", write(e, &n, 8));
  for (int i = 0; i < 3; i++) {
    n = 0;
    ssize_t r = read(e, &n, 8);
    say(" read %zd %ld", r, (long)n);
  }
  n = UINT64_MAX - 1;
  say(" write %zd", write(e, &n, 8));
  SAY_ERRNO("full", write(e, &n, 8));
  SAY_ERRNO("short", read(e, &n, 4));
  say_poll(e);
  close(e);
  int t = timerfd_create(clock_of(o->a[1] % 2), TFD_CLOEXEC | (o->a[2] ? TFD_NONBLOCK : 0));
  if (o->a[2]) SAY_ERRNO("unarmed", read(t, &n, 8));
  SAY_ERRNO("settime", timerfd_settime(t, 0, &(struct itimerspec){{0, 0}, {0, 100000}}, NULL));
  if (o->a[2]) {
    struct pollfd p = {t, POLLIN, 0};
    say(" poll %d", poll(&p, 1, -1));
  }
  say(" read %zd", read(t, &n, 8));
  say(" %ld", (long)n);
  close(t);
}

static void epolls(struct operation* o) {
  int e = epoll_create1(EPOLL_CLOEXEC), fds[2];
  char c[8];
  assert(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
  struct epoll_event event = {.events = EPOLLIN | (o->a[0] == 1 ? EPOLLET : o->a[0] == 2 ? EPOLLONESHOT : 0), .data = {.u32 = 7}}, got[3];
  SAY_ERRNO("add", epoll_ctl(e, EPOLL_CTL_ADD, fds[0], &event));
  SAY_ERRNO("again", epoll_ctl(e, EPOLL_CTL_ADD, fds[0], &event));
  SAY_ERRNO("absent", epoll_ctl(e, EPOLL_CTL_MOD, fds[1], &event));
  SAY_ERRNO("itself", epoll_ctl(e, EPOLL_CTL_ADD, e, &event));
  SAY_ERRNO("none", epoll_wait(e, got, 0, 0));
  say(" nothing %d", epoll_wait(e, got, 3, o->a[1]));
  say(" write %zd", write(fds[1], "abc", 3));
  for (int i = 0; i < 3; i++) {
    int n = epoll_wait(e, got, 3, i == 0 ? -1 : 0);
    say(" %d %#x", n, n > 0 ? got[0].events : 0);
    if (i == 1) say(" write %zd", write(fds[1], "d", 1));
  }
  if (o->a[0] == 2) SAY_ERRNO("mod", epoll_ctl(e, EPOLL_CTL_MOD, fds[0], &event));
  if (o->a[2] == 0) say(" read %zd", read(fds[0], c, 8));
  bool closes = o->a[2] == 1 && !has_children;
  if (closes) close(fds[1]);
  if (o->a[2] == 2) SAY_ERRNO("del", epoll_ctl(e, EPOLL_CTL_DEL, fds[0], NULL));
  int n = epoll_pwait(e, got, 3, 0, NULL);
  say(" last %d %#x", n, n > 0 ? got[0].events : 0);
  if (!closes) close(fds[1]);
  close(fds[0]);
  if (!has_children) say(" closed %d", epoll_wait(e, got, 3, 0));
  close(e);
  SAY_ERRNO("bad", epoll_wait(-1, got, 3, 0));
}

// ---- a helper at the other end ----

struct peer {
  int fd, bytes, chunk;
  bool reads;
  long sum;
};
static void* peer_main(void* v) {
  struct peer* p = v;
  char block[4096];
  if (p->reads) {
    for (ssize_t n; (n = read(p->fd, block, p->chunk)) > 0;)
      for (ssize_t i = 0; i < n; i++) p->sum += (unsigned char)block[i];
  } else {
    for (int sent = 0; sent < p->bytes;) {
      int n = p->bytes - sent < p->chunk ? p->bytes - sent : p->chunk;
      for (int i = 0; i < n; i++) block[i] = sent + i;
      ssize_t done = write(p->fd, block, n);
      if (done == -1 && errno == EAGAIN) {
        struct pollfd f = {p->fd, POLLOUT, 0};
        poll(&f, 1, -1);
      } else if (done == -1) {
        break;
      } else {
        sent += done;
      }
    }
    close(p->fd);
  }
  return NULL;
}
static bool tcp_pair(int* fds) {
  int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof a;
  bool ok = bind(l, (void*)&a, n) == 0 && listen(l, 1) == 0 && getsockname(l, (void*)&a, &n) == 0;
  fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ok = ok && connect(fds[1], (void*)&a, n) == 0;
  fds[0] = ok ? accept4(l, NULL, NULL, SOCK_CLOEXEC) : -1;
  close(l);
  return fds[0] >= 0;
}
static void transfer(struct operation* o) {
  int fds[2] = {-1, -1}, kind = o->a[0];
  if (kind == 0) assert(pipe2(fds, O_CLOEXEC) == 0);
  if (kind == 1) assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  if (kind == 2 && !tcp_pair(fds)) say(" no pair"), abort();
  struct peer writer = {.fd = fds[1], .bytes = 100 + 6000 * o->a[1], .chunk = 1 + o->a[2] * 70},
              reader = {.fd = fds[0], .chunk = 1000, .reads = true};
  if (o->a[3] % 2) fcntl(fds[1], F_SETFL, O_NONBLOCK);
  if (o->a[3] / 2) {
    pthread_t t = start_helper(peer_main, &reader, NULL);
    peer_main(&writer);
    join(t);
  } else {
    pthread_t t = start_helper(peer_main, &writer, NULL);
    peer_main(&reader);
    join(t);
  }
  close(fds[0]);
  say(" sum %ld", reader.sum);
}

static void* fill_request(void* v) {
  int* fds = v;
  char c[4] = {0};
  for (int i = 0; i < 10; i++) {
    if (read(fds[0], c, 4) != 4) break;
    c[3] ^= 1;
    if (write(fds[0], c, 4) != 4) break;
  }
  return NULL;
}
static void requests(struct operation* o) {
  int fds[2], answers = 0;
  assert(socketpair(AF_UNIX, o->a[0] ? SOCK_SEQPACKET : SOCK_STREAM, 0, fds) == 0);
  pthread_t t = start_helper(fill_request, fds, NULL);
  for (int i = 0; i < 10; i++) {
    char c[4] = {i, 1, 2, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fds[1], &set);
    say(write(fds[1], c, 4) == 4 ? "" : " short");
    struct pollfd p = {fds[1], POLLIN, 0};
    if (o->a[1] == 1) poll(&p, 1, -1);
    if (o->a[1] == 2) select(fds[1] + 1, &set, NULL, NULL, NULL);
    answers += recv(fds[1], c, 4, MSG_WAITALL) == 4 && c[0] == i && c[3] == 1;
  }
  join(t);
  say(" answers %d", answers);
  close(fds[0]);
  close(fds[1]);
}

static void files(struct operation* o) {
  char block[200] = "0123456789";
  int fd = memfd_create("differential", MFD_CLOEXEC);
  say(" write %zd", write(fd, block, 100 + o->a[0]));
  say(" pread %zd", pread(fd, block, 200, 5));
  say(" %.5s %ld", block, (long)lseek(fd, 0, SEEK_CUR));
  SAY_ERRNO("truncate", ftruncate(fd, 10));
  say(" read %zd", (lseek(fd, 3, SEEK_SET), read(fd, block, 200)));
  struct iovec v = {block, 50};
  say(" writev %zd", writev(fd, &v, 1));
  int d = dup(fd);
  SAY_ERRNO("dup2", dup2(fd, d) == d ? 0 : -1);
  say(" flags %d %d", fcntl(fd, F_GETFD), fcntl(d, F_GETFD));
  FILE* f = fdopen(d, "r+");
  setvbuf(f, NULL, _IONBF, 0);  // another thread's child that exits would give back what is read, and write what is not written
  rewind(f);
  int c = getc(f);
  say(" getc %d puts %d flush %d size %ld", c, fputs("text", f) >= 0, fflush(f), (long)lseek(fd, 0, SEEK_END));
  fclose(f);
  SAY_ERRNO("sync", fdatasync(fd));
  close(fd);
}

const struct kind descriptor_kinds[] = {{"pipe", pipes, 25, 1, {2, 90, 2}, NULL},
                                        {"socket", sockets, 25, 1, {3, 4, 10}, NULL},
                                        {"event", events, 15, 1, {5, 4, 2}, NULL},
                                        {"epoll", epolls, 25, 1, {3, 2, 3}, NULL},
                                        {"transfer", transfer, 15, 1, {3, 12, 50, 4}, NULL},
                                        {"request", requests, 15, 1, {2, 3}, NULL},
                                        {"file", files, 8, 1, {100}, NULL},
                                        {0}};
