// SPDX-License-Identifier: MIT
// The life of descriptors while threads wait for them: numbers reused at once, both ends closed in any order, shutdown, dup2, fork,
// programs that close descriptors which they do not know, high numbers.
// args: 40
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned next_random(unsigned* s) { return *s = *s * 1664525 + 1013904223, *s >> 8; }

static void read_all(int fd, char* p, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t r = read(fd, p + done, n - done);
    assert(r > 0);
    done += (size_t)r;
  }
}

// ---- a storm of pairs ----

enum { kThreads = 32, kMost = 70000 };
static int rounds;
static atomic_long bytes;

struct end {
  int in, out;
  unsigned seed, messages;
  int closes_first;
};

static void open_pair(unsigned kind, struct end* a, struct end* b) {
  int p[2], q[2];
  if (kind % 3 == 0) {
    assert(pipe(p) == 0 && pipe(q) == 0);
    *a = (struct end){p[0], q[1]}, *b = (struct end){q[0], p[1]};
  } else if (kind % 3 == 1) {
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    *a = (struct end){p[0], p[0]}, *b = (struct end){p[1], p[1]};
  } else {
    struct sockaddr_in at = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    assert(l >= 0 && bind(l, (struct sockaddr*)&at, size) == 0 && listen(l, 1) == 0 && getsockname(l, (struct sockaddr*)&at, &size) == 0);
    p[0] = socket(AF_INET, SOCK_STREAM, 0);
    assert(p[0] >= 0 && connect(p[0], (struct sockaddr*)&at, size) == 0);
    p[1] = accept(l, NULL, NULL);
    assert(p[1] >= 0);
    close(l);
    *a = (struct end){p[0], p[0]}, *b = (struct end){p[1], p[1]};
  }
}

static void close_end(struct end* e) {
  assert(close(e->in) == 0);
  if (e->out != e->in) assert(close(e->out) == 0);
}

// A message is its length and as many bytes, which follow from the length.
static void send_message(struct end* e, uint32_t n, char* room) {
  memcpy(room, &n, 4);
  for (uint32_t i = 0; i < n; i++) room[4 + i] = (char)(n * 31 + i);
  struct iovec v[2] = {{room, 1 + n / 2}, {room + 1 + n / 2, n + 3 - n / 2}};
  ssize_t r = n % 2 ? writev(e->out, v, 2) : write(e->out, room, n + 4);
  assert(r == (ssize_t)n + 4);
}

static void receive_message(struct end* e, char* room) {
  uint32_t n;
  read_all(e->in, (char*)&n, 4);
  assert(n <= kMost);
  read_all(e->in, room, n);
  for (uint32_t i = 0; i < n; i++) assert(room[i] == (char)(n * 31 + i));
  bytes += n + 4;
}

static void* answer(void* p) {
  struct end* e = p;
  char* room = malloc(kMost + 4);
  for (unsigned i = 0; i < e->messages; i++) {
    receive_message(e, room);
    uint32_t n = next_random(&e->seed) % 16 ? next_random(&e->seed) % 200 : kMost;
    send_message(e, n, room);
  }
  char c;
  if (!e->closes_first) assert(read(e->in, &c, 1) == 0);
  close_end(e);
  free(room);
  return NULL;
}

static void* ask(void* p) {
  unsigned seed = (unsigned)(uintptr_t)p * 7919 + 1;
  char* room = malloc(kMost + 4);
  for (int r = 0; r < rounds; r++) {
    struct end a, b;
    open_pair(next_random(&seed), &a, &b);
    b.seed = seed, b.messages = next_random(&seed) % 20, b.closes_first = next_random(&seed) % 2;
    struct end mine = a, *theirs = malloc(sizeof b);
    *theirs = b;
    pthread_t t;
    assert(pthread_create(&t, NULL, answer, theirs) == 0);
    for (unsigned i = 0; i < b.messages; i++) {
      send_message(&mine, next_random(&seed) % 300, room);
      receive_message(&mine, room);
    }
    char c;
    if (b.closes_first) assert(read(mine.in, &c, 1) == 0);
    close_end(&mine);
    pthread_join(t, NULL);
    free(theirs);
  }
  free(room);
  return NULL;
}

static void storm(void) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, ask, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("storm: %ld bytes\n", bytes);
}

// ---- single cases ----

static atomic_int begun;

static void* read_one(void* p) {
  char c = 0;
  begun++;
  ssize_t r = read((int)(intptr_t)p, &c, 1);
  return (void*)(intptr_t)(r == 1 ? c : r == 0 ? 0 : -errno);
}

static pthread_t start_reader(int fd) {
  pthread_t t;
  int before = begun;
  assert(pthread_create(&t, NULL, read_one, (void*)(intptr_t)fd) == 0);
  while (begun == before) usleep(100);
  usleep(2000);
  return t;
}

static long result(pthread_t t) {
  void* r;
  pthread_join(t, &r);
  return (long)r;
}

static void shut_down(void) {
  int s[2];
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0);
  pthread_t t = start_reader(s[0]), u = start_reader(s[0]);
  shutdown(s[0], SHUT_RD);
  printf("shutdown: %ld %ld\n", result(t), result(u));
  close(s[0]), close(s[1]);
}

// The flags stay unchanged, also for processes that share the file.
static void flags(void) {
  int p[2];
  assert(pipe(p) == 0);
  pthread_t t = start_reader(p[0]);
  pid_t child = fork();
  if (child == 0) _exit(fcntl(p[0], F_GETFL) & O_NONBLOCK || fcntl(p[1], F_GETFL) & O_NONBLOCK ? 1 : 0);
  int status;
  assert(waitpid(child, &status, 0) == child);
  int here = fcntl(p[0], F_GETFL) & O_NONBLOCK;
  assert(write(p[1], "f", 1) == 1);
  printf("flags: %d %d, %ld\n", status, here, result(t));
  close(p[0]), close(p[1]);
}

// Programs that close all descriptors that they do not know.
static void close_others(void) {
  int p[2];
  assert(pipe(p) == 0);
  pthread_t t = start_reader(p[0]);
  int low = p[1] > p[0] ? p[1] + 1 : p[0] + 1;
  for (int fd = low; fd < 2000; fd++) close(fd);
  closefrom(low);
  assert(close_range((unsigned)low, ~0u, 0) == 0);
  for (int fd = 500; fd < 530; fd++) assert(dup2(p[0], fd) == fd);
  assert(write(p[1], "c", 1) == 1);
  printf("close others: %ld", result(t));
  t = start_reader(515);
  assert(write(p[1], "d", 1) == 1);
  printf(" %ld\n", result(t));
  closefrom(low);
  close(p[0]), close(p[1]);
}

// The child begins anew. What it does to its descriptors does not concern its parent.
static void forked(void) {
  int p[2], q[2];
  assert(pipe(p) == 0 && pipe(q) == 0);
  pthread_t t = start_reader(p[0]);
  pid_t child = fork();
  if (child == 0) {
    pthread_t u = start_reader(q[0]);
    assert(write(q[1], "x", 1) == 1);
    long r = result(u);
    close(p[0]);
    closefrom(3);
    _exit(r == 'x' ? 0 : 1);
  }
  int status;
  assert(waitpid(child, &status, 0) == child);
  assert(write(p[1], "g", 1) == 1);
  printf("fork: %d, %ld\n", status, result(t));
  close(p[0]), close(p[1]), close(q[0]), close(q[1]);
}

// The child shares this process's memory, but not its descriptors.
static void vforked(void) {
  int p[2];
  assert(pipe(p) == 0);
  pthread_t t = start_reader(p[0]);
  pid_t child = vfork();
  if (child == 0) {
    close(p[0]);
    dup2(p[1], p[0]);
    execl("/bin/true", "true", NULL);
    _exit(1);
  }
  int status;
  assert(waitpid(child, &status, 0) == child);
  usleep(2000);
  assert(write(p[1], "v", 1) == 1);
  printf("vfork: %d, %ld\n", status, result(t));
  close(p[0]), close(p[1]);
}

static void high_numbers(void) {
  struct rlimit l;
  getrlimit(RLIMIT_NOFILE, &l);
  rlim_t before = l.rlim_cur;
  l.rlim_cur = l.rlim_max < 20000 ? l.rlim_max : 20000;
  assert(setrlimit(RLIMIT_NOFILE, &l) == 0);
  int p[2];
  assert(pipe(p) == 0);
  int high = fcntl(p[0], F_DUPFD, (int)l.rlim_cur - 1);
  assert(high == (int)l.rlim_cur - 1);
  close(p[0]);
  pthread_t t = start_reader(high);
  assert(write(p[1], "h", 1) == 1);
  printf("high: %ld\n", result(t));
  close(high), close(p[1]);
  l.rlim_cur = before;
  setrlimit(RLIMIT_NOFILE, &l);
}

// Closing a stdio stream frees the descriptor's number, as close() does.
static void streams(void) {
  for (int i = 0; i < 3; i++) {
    int p[2];
    assert(pipe(p) == 0);
    pthread_t t = start_reader(p[0]);
    assert(write(p[1], "s", 1) == 1);
    long r = result(t);
    FILE* f = fdopen(p[0], "r");
    assert(f);
    fclose(f);
    printf("stream: %ld\n", r);
    close(p[1]);
  }
}

// Many threads wait in turn for a descriptor for which no thread waited before. Each byte goes to one of them.
static void* read_some(void* p) {
  char c;
  long n = 0;
  while (read((int)(intptr_t)p, &c, 1) == 1) n++;
  return (void*)n;
}
static void shared(void) {
  enum { kReaders = 20, kBytes = 20000 };
  int s[2];
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0);
  pthread_t t[kReaders];
  for (int i = 0; i < kReaders; i++) assert(pthread_create(&t[i], NULL, read_some, (void*)(intptr_t)s[0]) == 0);
  for (int i = 0; i < kBytes;) {
    ssize_t r = write(s[1], "0123456789", (size_t)(1 + i % 10));
    assert(r > 0);
    i += (int)r;
    bytes = i;
  }
  long total = bytes, got = 0;
  close(s[1]);
  for (int i = 0; i < kReaders; i++) got += result(t[i]);
  printf("shared: %s\n", got == total ? "all" : "lost");
  close(s[0]);
}

// Threads accept on one socket, and each connection is taken.
static int listener;
static void* accept_some(void* p) {
  long n = 0;
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    assert(fd >= 0);
    char c;
    ssize_t r = read(fd, &c, 1);
    close(fd);
    if (r != 1) return (void*)n;
    n++;
  }
}
static void accepting(void) {
  enum { kAcceptors = 8, kConnections = 400 };
  struct sockaddr_in at = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof at;
  listener = socket(AF_INET, SOCK_STREAM, 0);
  assert(listener >= 0 && bind(listener, (struct sockaddr*)&at, size) == 0 && listen(listener, 100) == 0);
  assert(getsockname(listener, (struct sockaddr*)&at, &size) == 0);
  pthread_t t[kAcceptors];
  for (int i = 0; i < kAcceptors; i++) assert(pthread_create(&t[i], NULL, accept_some, NULL) == 0);
  for (int i = 0; i < kConnections + kAcceptors; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert(fd >= 0 && connect(fd, (struct sockaddr*)&at, size) == 0);
    if (i < kConnections) assert(write(fd, "x", 1) == 1);
    close(fd);
  }
  long n = 0;
  for (int i = 0; i < kAcceptors; i++) n += result(t[i]);
  printf("accepting: %ld\n", n);
  close(listener);
}

int main(int argc, char** argv) {
  rounds = argc > 1 ? atoi(argv[1]) : 40;
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGPIPE, SIG_IGN);
  shut_down();
  flags();
  close_others();
  forked();
  vforked();
  high_numbers();
  streams();
  shared();
  accepting();
  storm();
  return 0;
}
