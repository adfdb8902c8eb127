// SPDX-License-Identifier: MIT
// The table of descriptors while threads wait: numbers closed, replaced, passed on, inherited by fork and exec. Programs that close
// descriptors which they do not know, limits, and thousands of descriptors at once.
#include "waiting.h"

#include <dirent.h>
#include <sys/resource.h>

static long do_read(struct job* j) { return read(j->fd, j->buffer, 5); }
static long do_recv(struct job* j) { return recv(j->fd, j->buffer, 5, 0); }
static long do_poll(struct job* j) {
  struct pollfd p = {j->fd, POLLIN};
  return poll(&p, 1, -1);
}
static long do_select(struct job* j) {
  fd_set s;
  FD_ZERO(&s);
  FD_SET(j->fd, &s);
  return select(j->fd + 1, &s, NULL, NULL, NULL);
}
static long do_epoll(struct job* j) {
  struct epoll_event e;
  return epoll_wait(j->fd, &e, 1, -1);
}
static void start_on(struct job* j, int fd, long (*call)(struct job*), char* buffer) {
  memset(j, 0, sizeof *j);
  j->fd = fd, j->call = call, j->buffer = buffer;
  start_job(j);
}
// The kernel goes on with the file that the number stood for, or says that the number is bad to a call that comes later.
static const char* ended(struct job* j, long like) {
  pthread_join(j->thread, NULL);
  return j->result == like || (j->result < 0 && j->error == EBADF) ? "ended" : "went wrong";
}

static void threads_still_wait(const char* when) {
  char buffer[3][8];
  struct job j[3];
  int fd[3][2];
  long sum = 0;
  for (int i = 0; i < 3; i++) {
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]) == 0);
    start_on(&j[i], fd[i][0], i == 1 ? do_poll : do_read, buffer[i]);
  }
  for (int i = 0; i < 3; i++) assert(write(fd[i][1], "hello", 5) == 5);
  for (int i = 0; i < 3; i++) {
    pthread_join(j[i].thread, NULL);
    sum += j[i].result;
    close(fd[i][0]), close(fd[i][1]);
  }
  printf("%s: %ld\n", when, sum);
}

// Runs in a child, since the body changes things for the whole process.
static void in_child(void (*body)(void)) {
  fflush(stdout);
  pid_t p = fork();
  if (p == 0) {
    body();
    fflush(stdout);
    _exit(0);
  }
  int status;
  assert(waitpid(p, &status, 0) == p);
  if (status) printf("status %#x\n", status);
}

static void replaced(void) {
  long (*calls[])(struct job*) = {do_read, do_poll, do_select};
  const char *names[] = {"read", "poll", "select"}, *hows[] = {"dup2", "dup3", "close", "close_range"};
  for (int n = 0; n < 3; n++)
    for (int how = 0; how < 4; how++) {
      char buffer[8], got[8];
      struct job j;
      int old[2], new[2];
      assert(pipe(old) == 0 && pipe(new) == 0);
      start_on(&j, old[0], calls[n], buffer);
      if (how == 0) assert(dup2(new[0], old[0]) == old[0]);
      if (how == 1) assert(dup3(new[0], old[0], O_CLOEXEC) == old[0]);
      if (how >= 2) {
        assert(how == 2 ? close(old[0]) == 0 : close_range(old[0], old[0], 0) == 0);
        assert(fcntl(new[0], F_DUPFD, old[0]) == old[0]);
      }
      assert(write(new[1], "new!!", 5) == 5);
      assert(write(old[1], "hello", 5) == 5 || errno == EPIPE);  // no thread may read it any more
      const char* e = ended(&j, n == 0 ? 5 : 1);
      if (n == 0 && j.result == 5 && memcmp(buffer, "hello", 5)) e = "took from another file";
      ssize_t r = read(old[0], got, 5);
      printf("%s, %s: %s, the new one has %zd %.5s\n", names[n], hows[how], e, r, got);
      for (int i = 0; i < 2; i++) close(old[i]), close(new[i]);
    }
}

static void epoll_closed(void) {
  struct job j;
  int ep = epoll_create1(0), fd[2];
  struct epoll_event e = {.events = EPOLLIN};
  assert(pipe(fd) == 0 && epoll_ctl(ep, EPOLL_CTL_ADD, fd[0], &e) == 0);
  start_on(&j, ep, do_epoll, NULL);
  int copy = dup(ep);
  close(ep);
  assert(write(fd[1], "x", 1) == 1);
  const char* how = ended(&j, 1);
  printf("epoll closed: %s, its copy: %d\n", how, epoll_wait(copy, &e, 1, -1));
  close(copy), close(fd[0]), close(fd[1]);
}

static void passed_on(void) {
  char buffer[8], byte, control[CMSG_SPACE(sizeof(int))] = {0};
  int fd[2], way[2], got;
  struct job j, k;
  assert(pipe(fd) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, way) == 0);
  struct iovec v = {"x", 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  *CMSG_FIRSTHDR(&m) = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd[0], sizeof(int));
  start_on(&j, fd[0], do_poll, buffer);  // a thread waits for the first number
  assert(sendmsg(way[0], &m, 0) == 1);
  v = (struct iovec){&byte, 1};
  assert(recvmsg(way[1], &m, MSG_CMSG_CLOEXEC) == 1);
  memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof got);
  start_on(&k, got, do_read, buffer);
  assert(write(fd[1], "hello", 5) == 5);
  pthread_join(k.thread, NULL);
  close(fd[0]);
  assert(write(fd[1], "hello", 5) == 5);
  printf("passed on: %ld, %zd, who waited for the first: %s\n", k.result, read(got, buffer, 5), ended(&j, 1));
  close(got), close(fd[1]), close(way[0]), close(way[1]);
}

// A child has the same files. It checks that they were not made non-blocking, and waits for them itself.
static void inherited(void) {
  char buffer[4][8];
  int fd[2][2], p[2], status;
  struct job j[4];
  long sum = 0;
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, fd[0]) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, fd[1]) == 0 && pipe(p) == 0);
  for (int i = 0; i < 2; i++) start_on(&j[i], fd[i][0], i ? do_recv : do_read, buffer[i]);
  start_on(&j[2], p[0], do_read, buffer[2]);
  pid_t child = fork();
  if (child == 0) {
    int changed = 0;
    for (int n = 0; n < 50; n++) {
      for (int i = 0; i < 2; i++) changed |= (fcntl(fd[i][0], F_GETFL) | fcntl(fd[i][1], F_GETFL) | fcntl(p[i], F_GETFL)) & O_NONBLOCK;
      if (n % 10 == 0) pause_ms(1);
    }
    if (changed) _exit(1);
    struct job k[2];
    for (int i = 0; i < 2; i++) start_on(&k[i], fd[i][1], do_read, buffer[i]);
    for (int i = 0; i < 2; i++) assert(write(fd[i][0], "hello", 5) == 5);
    for (int i = 0; i < 2; i++) pthread_join(k[i].thread, NULL);
    if (k[0].result != 5 || k[1].result != 5) _exit(2);
    for (int i = 0; i < 2; i++) assert(write(fd[i][1], "hello", 5) == 5);  // this data is for the parent
    assert(write(p[1], "hello", 5) == 5);
    _exit(0);
  }
  assert(waitpid(child, &status, 0) == child);
  for (int i = 0; i < 3; i++) {
    pthread_join(j[i].thread, NULL);
    sum += j[i].result;
  }
  printf("inherited: %#x %ld\n", status, sum);
  for (int i = 0; i < 2; i++) close(fd[0][i]), close(fd[1][i]), close(p[i]);
}

static void list_descriptors(void) {
  DIR* d = opendir("/proc/self/fd");
  int n = 0;
  for (struct dirent* e; (e = readdir(d));) n += e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d);
  closedir(d);
  printf("%d descriptors\n", n);
}
static char* self;
static void executed(void) {
  char buffer[8];
  int fd[2], status;
  struct job j;
  list_descriptors();
  assert(pipe2(fd, O_CLOEXEC) == 0);
  start_on(&j, fd[0], do_read, buffer);
  for (int i = 0; i < 2; i++) {
    fflush(stdout);
    pid_t child = i ? fork() : vfork();
    if (child == 0) {
      execl(self, self, "list", (char*)NULL);
      _exit(127);
    }
    assert(waitpid(child, &status, 0) == child);
  }
  assert(write(fd[1], "hello", 5) == 5);
  pthread_join(j.thread, NULL);
  printf("the thread: %ld\n", j.result);
  close(fd[0]), close(fd[1]);
}

// Programs close descriptors which they do not know, after the library has begun to use its own.
static void close_all(void) {
  int n = 0, fd[2];
  threads_still_wait("before");
  for (int fd = 3; fd < 3000; fd++) n += close(fd) == 0;
  printf("closed %d\n", n);
  threads_still_wait("after close of all");
  closefrom(3);
  threads_still_wait("after closefrom");
  assert(close_range(3, ~0u, 0) == 0);
  threads_still_wait("after close_range");
  assert(pipe(fd) == 0 && close_range(3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */) == 0);
  printf("kept: %d\n", fcntl(fd[0], F_GETFD));
  threads_still_wait("after close_range for exec");
}
static void over_all(void) {
  threads_still_wait("before");
  int fd = open("/dev/null", O_RDONLY);
  for (int to = 400; to < 1000; to++) assert(dup2(fd, to) == to);
  threads_still_wait("after dup2 over all");
  for (int to = 400; to < 1000; to++) assert(close(to) == 0);
  threads_still_wait("and again");
}

static void limit(unsigned long n) {
  struct rlimit l;
  assert(getrlimit(RLIMIT_NOFILE, &l) == 0);
  l.rlim_cur = n;
  assert(setrlimit(RLIMIT_NOFILE, &l) == 0);
}
static void no_more(void) {  // no descriptor is left before the first wait
  int fd[3][2];
  char buffer[3][8];
  struct job j[3];
  long sum = 0;
  for (int i = 0; i < 3; i++) assert(pipe(fd[i]) == 0);
  int first = dup(0);
  close(first);
  limit(first);
  for (int i = 0; i < 3; i++) start_on(&j[i], fd[i][0], i ? do_poll : do_read, buffer[i]);
  errno = 0;
  int r = dup(0);
  printf("no more: %d %s\n", r, error_name(errno));
  for (int i = 0; i < 3; i++) assert(write(fd[i][1], "hello", 5) == 5);
  for (int i = 0; i < 3; i++) {
    pthread_join(j[i].thread, NULL);
    sum += j[i].result;
  }
  printf("they waited: %ld\n", sum);
  limit(200);
  threads_still_wait("with more again");
}
static void lowered(void) {
  int fd[40], n = 0;
  threads_still_wait("before");
  for (int i = 0; i < 40; i++) fd[i] = dup(0);
  limit(20);  // below the number of open descriptors
  errno = 0;
  int r = open("/dev/null", O_RDONLY);
  printf("lowered: %d %s\n", r, error_name(errno));
  for (int i = 0; i < 40; i++) n += close(fd[i]) == 0;
  printf("closed %d\n", n);
  limit(512);
  threads_still_wait("raised");
}

// Many descriptors at once. Each thread serves some of them, by poll or one after the other.
enum { kThreads = 250, kEach = 20, kAll = kThreads * kEach };
static int pairs[kAll][2];
static void* serve(void* p) {
  long first = (long)p * kEach, served = 0;
  struct pollfd f[kEach];
  char c;
  for (int i = 0; i < kEach; i++) f[i] = (struct pollfd){pairs[first + i][0], POLLIN};
  if ((long)p % 2) {
    for (int i = 0; i < kEach; i++) served += read(f[i].fd, &c, 1) == 1 && write(f[i].fd, &c, 1) == 1;
  } else {
    while (served < kEach) {
      assert(poll(f, kEach, -1) > 0);
      for (int i = 0; i < kEach; i++)
        if (f[i].fd >= 0 && f[i].revents && read(f[i].fd, &c, 1) == 1 && write(f[i].fd, &c, 1) == 1) f[i].fd = -1, served++;
    }
  }
  return (void*)served;
}
static void thousands(void) {
  struct rlimit l;
  getrlimit(RLIMIT_NOFILE, &l);
  if (l.rlim_max < 2 * kAll + 200) {
    printf("thousands: %d %d\n", kAll, kAll);  // the limit does not allow it here
    return;
  }
  limit(2 * kAll + 200);
  pthread_t t[kThreads];
  long served = 0, answers = 0;
  for (int i = 0; i < kAll; i++) assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, serve, (void*)i) == 0);
  pause_ms(20);
  for (int i = 0; i < kAll; i++) assert(write(pairs[i][1], "x", 1) == 1);
  for (int i = 0; i < kAll; i++) {
    char c;
    answers += read(pairs[i][1], &c, 1);
  }
  for (int i = 0; i < kThreads; i++) {
    void* r;
    pthread_join(t[i], &r);
    served += (long)r;
  }
  printf("thousands: %ld %ld\n", served, answers);
}

int main(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "list")) {
    list_descriptors();
    return 0;
  }
  begin(1, argv);
  self = argv[0];
  executed();
  in_child(no_more);
  threads_still_wait("at first");
  replaced();
  epoll_closed();
  passed_on();
  inherited();
  in_child(close_all);
  in_child(over_all);
  in_child(no_more);
  in_child(lowered);
  in_child(thousands);
  threads_still_wait("at last");
  return 0;
}
