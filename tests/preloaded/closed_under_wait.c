// SPDX-License-Identifier: MIT
// A descriptor is closed, or given to another file, while a thread waits for it. As on Linux, the thread goes on with the file, which lasts
// as long as the wait.
#include "waiting.h"

#include <dirent.h>

static char buffer[100];

static long do_read(struct job* j) { return read(j->fd, j->buffer, j->size); }
static long do_readv(struct job* j) {
  struct iovec v[2] = {{j->buffer, 2}, {j->buffer + 2, j->size - 2}};
  return readv(j->fd, v, 2);
}
static long do_recv(struct job* j) { return recv(j->fd, j->buffer, j->size, j->flags); }
static long do_recvmsg(struct job* j) {
  struct iovec v = {j->buffer, j->size};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  return recvmsg(j->fd, &m, j->flags);
}
static long do_write(struct job* j) { return write(j->fd, j->buffer, j->size); }
static long do_splice(struct job* j) { return splice(j->fd, NULL, j->other[1], NULL, j->size, 0); }
static long do_recvmmsg(struct job* j) {
  struct iovec v[2] = {{j->buffer, 5}, {j->buffer + 5, 5}};
  struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &v[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &v[1], .msg_iovlen = 1}}};
  return recvmmsg(j->fd, m, 2, 0, NULL);
}
static long do_accept(struct job* j) { return accept(j->fd, NULL, NULL); }
static long do_epoll(struct job* j) {
  struct epoll_event e;
  return epoll_wait(j->fd, &e, 1, -1);
}
static long do_poll(struct job* j) {
  struct pollfd p[2] = {{j->fd, POLLIN, 0}, {j->other[0], POLLIN, 0}};
  long r = poll(p, 2, j->flags ? j->flags : -1);
  if (r > 0) j->flags = p[0].revents << 8 | p[1].revents;
  return r;
}
static long do_select(struct job* j) {
  fd_set s;
  FD_ZERO(&s);
  FD_SET(j->fd, &s);
  FD_SET(j->other[0], &s);
  int n = j->fd > j->other[0] ? j->fd : j->other[0];
  long r = select(n + 1, &s, NULL, NULL, NULL);
  if (r > 0) j->flags = FD_ISSET(j->fd, &s) << 1 | FD_ISSET(j->other[0], &s);
  return r;
}

enum how { CLOSE, REPLACE, RANGE, kHows };
static int quiet[2];  // a pipe in which nothing ever comes
static void end_life(int fd, enum how how) {
  int r = how == CLOSE ? close(fd) : how == REPLACE ? dup2(quiet[0], fd) : close_range(fd, fd, 0);
  assert(r >= 0);
}
// After this the number belongs to nobody.
static void free_number(int fd, enum how how) {
  if (how == REPLACE) close(fd);
}

// Returns when the job's thread sleeps, but after 200 ms at the latest: the library does not tell of all sleeps.
static void await_sleep(struct job* j) {
  char path[64], line[1000];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", j->tid);
  for (int n = 0; n < 200; n++) {
    FILE* f = fopen(path, "r");
    const char* rest = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f) fclose(f);
    if (rest && rest[2] == 'S') return;
    pause_ms(1);
  }
}

static void begin_wait(struct job* j, int fd, long (*call)(struct job*), size_t size) {
  j->fd = fd, j->call = call, j->size = size;
  if (!j->buffer) j->buffer = buffer;
  start_job(j);
  await_sleep(j);  // a call that comes later finds the descriptor closed
}
static void report(const char* what, enum how how, struct job* j) {
  static const char* names[] = {"closed", "replaced", "closed in a range"};
  char out[100];
  end_job(j, out);
  printf("%s, %s: %s\n", what, names[how], out);
}

// Returns how the peer sees the end of a file that was kept: within 20 seconds, or not at all.
static const char* let_go(int peer) {
  struct pollfd p = {peer, 0, 0};
  return poll(&p, 1, 20000) == 1 && p.revents & (POLLHUP | POLLERR) ? "let go" : "still there";
}

static void reads(enum how how) {
  struct {
    const char* name;
    long (*call)(struct job*);
    int socket, flags;
  } all[] = {{"read of a pipe", do_read, 0, 0},        {"readv of a pipe", do_readv, 0, 0},
             {"read of a socket", do_read, 1, 0},      {"recv", do_recv, 1, 0},
             {"recv to look", do_recv, 1, MSG_PEEK},   {"recvmsg", do_recvmsg, 1, 0},
             {"recv of all", do_recv, 1, MSG_WAITALL}, {"recvmsg of all", do_recvmsg, 1, MSG_WAITALL},
             {"recv after a time", do_recv, 1, -1}};
  unsigned count = how == CLOSE ? sizeof all / sizeof *all : 3;
  for (unsigned n = 0; n < count; n++) {
    struct job j = {0};
    int fd[2], r = all[n].socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, fd) : pipe(fd);
    assert(r == 0);
    memset(buffer, 0, sizeof buffer);
    if (all[n].flags != -1) j.flags = all[n].flags;
    begin_wait(&j, fd[0], all[n].call, 10);
    if (j.flags & MSG_WAITALL) assert(write(fd[1], "half ", 5) == 5);
    pause_ms(5);
    end_life(fd[0], how);
    pause_ms(all[n].flags == -1 ? 60 : 5);
    assert(write(fd[1], "hello", 5) == 5);
    report(all[n].name, how, &j);
    printf("  %s, %s\n", buffer, let_go(fd[1]));
    free_number(fd[0], how);
    close(fd[1]);
  }
}

static void writes(enum how how) {
  static char much[300000];
  for (int socket = 0; socket < 2; socket++) {
    struct job j = {.buffer = much};
    int fd[2], r = socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, fd) : pipe(fd);
    assert(r == 0);
    if (socket) shutdown(fd[0], SHUT_WR);
    begin_wait(&j, fd[1], do_write, sizeof much);
    end_life(fd[1], how);
    static char room[65536];
    long sum = 0;
    for (ssize_t n; (n = read(fd[0], room, sizeof room)) > 0; sum += n) {
    }
    report(socket ? "write to a socket" : "write to a pipe", how, &j);
    printf("  %ld read\n", sum);
    free_number(fd[1], how);
    close(fd[0]);
  }
}

static void others(enum how how) {
  struct job j = {0};
  uint64_t one = 1;
  int fd = eventfd(0, 0), copy = dup(fd);
  begin_wait(&j, fd, do_read, 8);
  end_life(fd, how);
  assert(write(copy, &one, 8) == 8);
  report("eventfd", how, &j);
  free_number(fd, how), close(copy);

  int ep = epoll_create1(0), p[2];
  struct epoll_event e = {.events = EPOLLIN};
  assert(pipe(p) == 0 && epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e) == 0);
  j = (struct job){0};
  begin_wait(&j, ep, do_epoll, 0);
  end_life(ep, how);
  assert(write(p[1], "x", 1) == 1);
  report("epoll_wait", how, &j);
  free_number(ep, how), close(p[0]), close(p[1]);

  struct sockaddr_un a = {AF_UNIX, ""};
  int l = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0);
  socklen_t size = sizeof(sa_family_t);
  assert(bind(l, (struct sockaddr*)&a, size) == 0 && listen(l, 5) == 0);  // the kernel chooses a name
  size = sizeof a;
  assert(getsockname(l, (struct sockaddr*)&a, &size) == 0);
  j = (struct job){0};
  begin_wait(&j, l, do_accept, 0);
  end_life(l, how);
  int r = connect(c, (struct sockaddr*)&a, size);
  pthread_join(j.thread, NULL);
  printf("accept: %d, %s", r, j.result >= 0 ? "accepted" : error_name(j.error));
  if (j.result >= 0) close((int)j.result);
  close(c), c = socket(AF_UNIX, SOCK_STREAM, 0);
  do {
    r = connect(c, (struct sockaddr*)&a, size);
  } while (r == 0 && (close(c), c = socket(AF_UNIX, SOCK_STREAM, 0), pause_ms(1), 1));  // it is let go when the thread has ended
  printf(", then %s\n", error_name(errno));
  free_number(l, how), close(c);
}

static void several(enum how how) {
  // A wait for many goes on; what has the number by then counts at the next look.
  for (int n = 0; n < 2; n++) {
    int a[2], b[2];
    struct job j = {0};
    assert(pipe(a) == 0 && pipe(b) == 0);
    j.other[0] = b[0];
    begin_wait(&j, a[0], n ? do_select : do_poll, 0);
    end_life(a[0], how);
    pause_ms(20);
    printf("%s ", j.done ? "ended at once" : "waits");
    assert(write(b[1], "x", 1) == 1);
    // From Linux 5.17 on, a number that is closed is ready for select().
    if (n) pthread_join(j.thread, NULL), printf("select: %d", j.flags & 1);
    else report("poll", how, &j), printf("  %#x", (unsigned)j.flags);
    printf(", %s\n", let_go(a[1]));
    free_number(a[0], how), close(a[1]), close(b[0]), close(b[1]);
  }
  struct job j[3];
  char room[3][4] = {{0}};
  int fd[2];
  assert(pipe(fd) == 0);
  memset(j, 0, sizeof j);
  for (int i = 0; i < 3; i++) {
    j[i].buffer = room[i];
    begin_wait(&j[i], fd[0], do_read, 1);
  }
  end_life(fd[0], how);
  assert(write(fd[1], "abc", 3) == 3);
  int sum = 0;
  for (int i = 0; i < 3; i++) report("one of three", how, &j[i]), sum += room[i][0];
  printf("  %d, %s\n", sum, let_go(fd[1]));
  free_number(fd[0], how), close(fd[1]);
}

// Two calls that wait in several steps.
static void steps(enum how how) {
  struct job j = {0};
  int in[2], out[2];
  assert(pipe(in) == 0 && pipe(out) == 0);
  memset(buffer, 0, sizeof buffer);
  j.other[1] = out[1];
  begin_wait(&j, in[0], do_splice, 10);
  end_life(in[0], how);
  assert(write(in[1], "hello", 5) == 5);
  report("splice", how, &j);
  printf("  %zd, %s\n", read(out[0], buffer, 10), let_go(in[1]));
  free_number(in[0], how), close(in[1]), close(out[0]), close(out[1]);

  j = (struct job){0};
  assert(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, in) == 0);
  begin_wait(&j, in[0], do_recvmmsg, 0);
  end_life(in[0], how);
  assert(write(in[1], "one", 3) == 3);
  pause_ms(20);
  assert(write(in[1], "two", 3) == 3);
  report("recvmmsg", how, &j);
  printf("  %s, %s, %s\n", buffer, buffer + 5, let_go(in[1]));
  free_number(in[0], how), close(in[1]);
}

static void ended_otherwise(enum how how) {
  int fd[2];
  struct job j = {0};
  struct timeval limit = {0, 100000};
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0 && setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  begin_wait(&j, fd[0], do_read, 1);
  end_life(fd[0], how);
  report("limit", how, &j);
  printf("  %s\n", let_go(fd[1]));
  free_number(fd[0], how), close(fd[1]);

  for (int n = 0; n < 2; n++) {
    j = (struct job){0};
    assert(pipe(fd) == 0);
    begin_wait(&j, fd[0], do_read, 1);
    end_life(fd[0], how);
    if (n == 0) pthread_cancel(j.thread);
    else interrupt_job(&j, kInterrupts);
    report(n ? "signal" : "cancel", how, &j);
    printf("  %s\n", let_go(fd[1]));
    free_number(fd[0], how), close(fd[1]);
  }

  // The child of a fork has no such thread, and no such file.
  j = (struct job){0};
  assert(pipe(fd) == 0);
  begin_wait(&j, fd[0], do_read, 1);
  end_life(fd[0], how);
  fflush(stdout);
  pid_t p = fork();
  if (p == 0) {
    for (;;) pause();
  }
  pthread_cancel(j.thread);
  report("fork", how, &j);
  printf("  %s\n", let_go(fd[1]));
  kill(p, SIGKILL);
  waitpid(p, NULL, 0);
  free_number(fd[0], how), close(fd[1]);
}

// Data comes and the descriptor is closed at once: the thread that waited gets it.
static void race(enum how how) {
  int right = 0;
  enum { kRounds = 24 };
  for (int i = 0; i < kRounds; i++) {
    struct job j = {.buffer = buffer};
    int fd[2];
    assert(pipe(fd) == 0);
    j.fd = fd[0], j.call = do_read, j.size = 1;
    start_job(&j);
    await_sleep(&j);
    assert(write(fd[1], "x", 1) == 1);
    for (int n = 0; n < i % 4; n++) sched_yield();
    if (i % 8 == 7) pause_ms(1);
    end_life(fd[0], how);
    close(fd[1]);
    pthread_join(j.thread, NULL);
    right += j.result == 1;
    free_number(fd[0], how);
  }
  printf("raced: %d\n", right);
}

static int count_descriptors(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

int main(void) {
  struct sigaction a = {.sa_handler = count_signal};
  sigaction(kInterrupts, &a, NULL);
  signal(SIGPIPE, SIG_IGN);
  assert(pipe(quiet) == 0);
  reads(CLOSE);
  int before = count_descriptors();
  for (enum how how = 0; how < kHows; how++) {
    reads(how);
    writes(how);
    others(how);
    several(how);
    steps(how);
    ended_otherwise(how);
    race(how);
  }
  printf("descriptors: %+d\n", count_descriptors() - before);
  return 0;
}
