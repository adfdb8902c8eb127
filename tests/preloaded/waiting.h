// SPDX-License-Identifier: MIT
// What the tests of calls that wait for descriptors share: descriptors of every kind, a thread that waits, and what may happen to it
// meanwhile. The cases run side by side, and print one line each, in their order.
//
// A case prints the same whether its thread waits already when something happens, or comes to its call later. The pauses only make the
// first likely. An argument on the command line chooses the cases whose lines contain it.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { kInterrupts = 10 /* SIGUSR1 */, kRestarts = 12 /* SIGUSR2 */ };  // without and with SA_RESTART
#define kForSignalfd (SIGRTMIN + 2)

// ---- descriptors ----

enum kind { PIPE, FIFO, STREAM, DGRAM, SEQPACKET, TCP, UDP, PTY, EVENTFD, TIMERFD, INOTIFY, SIGNALFD, kKinds };
static const char* const kind_names[] = {"pipe", "fifo", "stream",  "dgram",   "seqpacket", "tcp",
                                         "udp",  "pty",  "eventfd", "timerfd", "inotify",   "signalfd"};
#define BIT(kind) (1u << (kind))
#define STREAMS (BIT(STREAM) | BIT(TCP))
#define CONNECTED (STREAMS | BIT(SEQPACKET))
#define SOCKETS (CONNECTED | BIT(DGRAM) | BIT(UDP))
#define PIPES (BIT(PIPE) | BIT(FIFO))
#define BYTES (PIPES | STREAMS | BIT(PTY))
#define ALL (BIT(kKinds) - 1)

// The job waits on `a`, and what is done to `b` ends the wait. They are equal where there is only one descriptor.
struct ends {
  enum kind kind;
  int a, b;
  char path[32];
};

static inline void pause_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t)) {
  }
}

static inline int loopback(int type, struct sockaddr_in* address) {
  int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), small = 16384, one = 1;
  assert(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (address) {
    socklen_t size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert(bind(fd, (struct sockaddr*)address, size) == 0 && getsockname(fd, (struct sockaddr*)address, &size) == 0);
  }
  return fd;
}

// Any signalfd can take a signal for the process, so only one case at a time may have one.
static pthread_mutex_t one_signalfd = PTHREAD_MUTEX_INITIALIZER;

// `writes`: the job writes to `a`.
static inline struct ends open_ends(enum kind kind, int writes) {
  struct ends e = {.kind = kind, .a = -1, .b = -1};
  int fd[2];
  strcpy(e.path, "waitingXXXXXX");
  switch (kind) {
    case PIPE:
      assert(pipe2(fd, O_CLOEXEC) == 0);
      e.a = fd[writes], e.b = fd[!writes];
      break;
    case FIFO:
      assert(mkdtemp(e.path));
      strcat(e.path, "/f");
      assert(mkfifo(e.path, 0600) == 0);
      fd[0] = open(e.path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
      fd[1] = open(e.path, O_WRONLY | O_CLOEXEC);
      assert(fd[0] >= 0 && fd[1] >= 0 && fcntl(fd[0], F_SETFL, O_RDONLY) == 0);
      unlink(e.path);
      *strrchr(e.path, '/') = 0;
      rmdir(e.path);
      e.a = fd[writes], e.b = fd[!writes];
      break;
    case STREAM:
    case DGRAM:
    case SEQPACKET:
      assert(socketpair(AF_UNIX, (kind == STREAM ? SOCK_STREAM : kind == DGRAM ? SOCK_DGRAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, fd) == 0);
      e.a = fd[0], e.b = fd[1];
      break;
    case TCP: {
      struct sockaddr_in to;
      int listener = loopback(SOCK_STREAM, &to);
      assert(listen(listener, 1) == 0);
      e.a = loopback(SOCK_STREAM, NULL);
      assert(connect(e.a, (struct sockaddr*)&to, sizeof to) == 0);
      assert((e.b = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
      close(listener);
      break;
    }
    case UDP: {
      struct sockaddr_in at_a, at_b;
      e.a = loopback(SOCK_DGRAM, &at_a), e.b = loopback(SOCK_DGRAM, &at_b);
      assert(connect(e.a, (struct sockaddr*)&at_b, sizeof at_b) == 0 && connect(e.b, (struct sockaddr*)&at_a, sizeof at_a) == 0);
      break;
    }
    case PTY: {
      char name[64];
      struct termios raw;
      e.b = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      assert(e.b >= 0 && grantpt(e.b) == 0 && unlockpt(e.b) == 0 && ptsname_r(e.b, name, sizeof name) == 0);
      e.a = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
      assert(e.a >= 0 && tcgetattr(e.a, &raw) == 0);
      cfmakeraw(&raw);
      assert(tcsetattr(e.a, TCSANOW, &raw) == 0);
      break;
    }
    case EVENTFD: e.a = e.b = eventfd(0, EFD_CLOEXEC); break;
    case TIMERFD: e.a = e.b = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC); break;
    case INOTIFY:
      e.a = e.b = inotify_init1(IN_CLOEXEC);
      assert(mkdtemp(e.path) && inotify_add_watch(e.a, e.path, IN_CREATE) >= 0);
      break;
    case SIGNALFD: {
      sigset_t s;
      pthread_mutex_lock(&one_signalfd);
      sigemptyset(&s);
      sigaddset(&s, kForSignalfd);
      e.a = e.b = signalfd(-1, &s, SFD_CLOEXEC);
      break;
    }
    default: assert(0);
  }
  assert(e.a >= 0 && e.b >= 0);
  return e;
}

static inline void set_nonblocking(int fd, int on) {
  int flags = fcntl(fd, F_GETFL);
  assert(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

static inline void close_ends(struct ends* e) {
  if (e->kind == SIGNALFD) {
    struct signalfd_siginfo s;
    set_nonblocking(e->a, 1);
    while (read(e->a, &s, sizeof s) > 0) {
    }
    pthread_mutex_unlock(&one_signalfd);
  }
  if (e->a >= 0) close(e->a);
  if (e->b >= 0 && e->b != e->a) close(e->b);
  if (e->kind == INOTIFY) {
    char file[64];
    snprintf(file, sizeof file, "%s/x", e->path);
    unlink(file);
    rmdir(e->path);
  }
}

static inline void close_peer(struct ends* e) {
  close(e->b);
  e->b = -1;
}

// Makes `a` readable: with five bytes, where bytes are read.
static inline void send_data(struct ends* e) {
  uint64_t five = 5;
  switch (e->kind) {
    case EVENTFD: assert(write(e->b, &five, 8) == 8); break;
    case TIMERFD: {
      struct itimerspec soon = {{0, 0}, {0, 1}};
      assert(timerfd_settime(e->b, 0, &soon, NULL) == 0);
      break;
    }
    case INOTIFY: {
      char file[64];
      snprintf(file, sizeof file, "%s/x", e->path);
      int fd = open(file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
      assert(fd >= 0);
      close(fd);
      break;
    }
    case SIGNALFD: assert(kill(getpid(), kForSignalfd) == 0); break;
    default: assert(write(e->b, "hello", 5) == 5);
  }
}

static inline void set_timeout(int fd, int option, int ms) {
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  assert(setsockopt(fd, SOL_SOCKET, option, &t, sizeof t) == 0);
}

// Writes to `a` until it takes no more. Its packets have 2000 bytes, so that a smaller one has no room either.
static inline void fill(struct ends* e) {
  static const char zeros[2000];
  if (e->kind == EVENTFD) {
    uint64_t most = UINT64_MAX - 1;
    assert(write(e->a, &most, 8) == 8);
    return;
  }
  set_nonblocking(e->a, 1);
  // Data may arrive late, and then there is room again: TCP sends a last small piece after 200 ms, a terminal by a kernel thread.
  for (int quiet = 0; quiet < (e->kind == TCP || e->kind == PTY ? 150 : 2);) {
    ssize_t r = write(e->a, zeros, sizeof zeros);
    if (r < 0 && e->kind != DGRAM && e->kind != SEQPACKET) r = write(e->a, zeros, 1);
    assert(r > 0 || errno == EAGAIN);
    quiet = r > 0 ? 0 : quiet + 1;
    if (quiet) pause_ms(2);
  }
  set_nonblocking(e->a, 0);
}

// Reads all that is in `b` now, and returns its length.
static inline long drain(struct ends* e) {
  static __thread char room[65536];
  long n = 0;
  ssize_t r;
  set_nonblocking(e->b, 1);
  while ((r = read(e->b, room, sizeof room)) > 0) n += r;
  set_nonblocking(e->b, 0);
  return n;
}

// ---- the thread that waits ----

struct job {
  long (*call)(struct job*);
  struct ends e;
  int fd;       // e.a, mostly
  int flags;    // of recv and send
  size_t size;  // asked for
  char* buffer;
  int other[2];  // a pipe for splice and tee, a file for sendfile
  const void* more;
  atomic_int started, handled, done;
  int tid;  // before `started`
  long result;
  int error;
  pthread_t thread;
};

static __thread struct job* mine;
static inline void count_signal(int sig) {
  if (mine) mine->handled++;
}

static inline void* wait_in_call(void* p) {
  struct job* j = p;
  mine = j;
  j->tid = (int)syscall(SYS_gettid);
  j->started = 1;
  errno = 0;
  j->result = j->call(j);
  j->error = errno;
  j->done = 1;
  return NULL;
}

static inline void start_job(struct job* j) {
  int e = pthread_create(&j->thread, NULL, wait_in_call, j);
  assert(e == 0);
  while (!j->started) pause_ms(1);
  pause_ms(3);
}

// Sends signals until the call has ended. The first ones may come before the call.
static inline void interrupt_job(struct job* j, int sig) {
  while (!j->done) {
    pthread_kill(j->thread, sig);
    pause_ms(2);
  }
}
// Sends one signal, after which the call goes on.
static inline void signal_job(struct job* j, int sig) {
  int before = j->handled;
  pthread_kill(j->thread, sig);
  while (j->handled == before && !j->done) pause_ms(1);
  pause_ms(2);
}

static inline const char* error_name(int e) {
  const char* s = strerrorname_np(e);
  return s ? s : "0";
}

// Joins the job's thread, and writes its result to `out`. Returns the length.
static inline int end_job(struct job* j, char* out) {
  void* r;
  int e = pthread_join(j->thread, &r);
  assert(e == 0);
  if (r == PTHREAD_CANCELED) return sprintf(out, "cancelled");
  if (j->result < 0) return sprintf(out, "%s", error_name(j->error));
  return sprintf(out, "%ld", j->result);
}

// ---- cases ----

struct item {
  char name[80];
  void (*run)(const struct item*, char* out);
  const void* call;
  enum kind kind;
  int event;
  char out[200];
  atomic_int state;  // 1 begun, 2 done
};
enum { kMostItems = 6000, kAtOnce = 24 };
static struct item items[kMostItems];
static int item_count;
static atomic_int next_item;
static const char* wanted;

static inline struct item* add_item(void (*run)(const struct item*, char*), const char* call, const char* kind, const char* event) {
  struct item* i = &items[item_count];
  snprintf(i->name, sizeof i->name, "%s%s%s%s%s", call, *kind ? " " : "", kind, *event ? ": " : "", event);
  if (wanted && !strstr(i->name, wanted)) {
    static struct item dropped;
    return &dropped;
  }
  assert(item_count < kMostItems);
  item_count++;
  i->run = run;
  return i;
}

static inline void* run_some(void* p) {
  for (int n; (n = next_item++) < item_count;) {
    items[n].state = 1;
    items[n].run(&items[n], items[n].out);
    items[n].state = 2;
  }
  return p;
}

// Ends the process when no case has ended for a minute, and prints the cases that hang.
static inline void* watch(void* p) {
  for (int before = -1, done, quiet = 0; quiet < 60; before = done) {
    pause_ms(1000);
    done = 0;
    for (int i = 0; i < item_count; i++) done += items[i].state == 2;
    quiet = done == before ? quiet + 1 : 0;
  }
  for (int i = 0; i < item_count; i++)
    if (items[i].state == 1) fprintf(stderr, "not done: %s\n", items[i].name);
  _exit(1);
}

static inline void begin(int argc, char** argv) {
  struct sigaction sa = {.sa_handler = count_signal};
  sigset_t s;
  wanted = argc > 1 ? argv[1] : NULL;
  signal(SIGPIPE, SIG_IGN);
  sigaction(kInterrupts, &sa, NULL);
  sa.sa_flags = SA_RESTART;
  sigaction(kRestarts, &sa, NULL);
  sigemptyset(&s);
  sigaddset(&s, kForSignalfd);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
}

static inline int run_items(void) {
  pthread_t t, all[kAtOnce];
  pthread_create(&t, NULL, watch, NULL);
  for (int i = 0; i < kAtOnce; i++) pthread_create(&all[i], NULL, run_some, NULL);
  for (int i = 0; i < kAtOnce; i++) pthread_join(all[i], NULL);
  for (int i = 0; i < item_count; i++) printf("%s: %s\n", items[i].name, items[i].out);
  fflush(stdout);
  _exit(0);  // the watching thread still runs
}
