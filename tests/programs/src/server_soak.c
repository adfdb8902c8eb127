// SPDX-License-Identifier: MIT
// A server with a thread for each connection, and the clients that try to break it.
//
// server_soak server           prints its port. It may have few descriptors (ulimit -n): then accept() fails now and then.
// server_soak clients PORT SECONDS SEED
//     starts processes that open and close connections, and end them by a reset, by closing one direction, or in the middle of a message.
//     They are killed at random. Now and then they open more connections at once than the server has descriptors for. The answers are
//     compared. At the end the server must not have more threads, descriptors or memory than before.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "server_soak: line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
      exit(2); \
    } \
  } while (0)

enum { kMost = 60000, kClients = 8, kEach = 16, kCrowd = 500 };
struct statistics {
  int32_t live, descriptors, kb;
  int32_t refused, served;
};

static void pause_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t)) {
  }
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
// Reads n bytes, or as many as there are. Returns their number, or -1.
static ssize_t get(int fd, void* to, size_t n) {
  size_t done = 0;
  while (done < n) {
    ssize_t r = read(fd, (char*)to + done, n - done);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0) return r < 0 ? r : (ssize_t)done;
    done += r;
  }
  return done;
}
static int put(int fd, const void* from, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t r = write(fd, (const char*)from + done, n - done);
    if (r < 0) return -1;
    done += r;
  }
  return 0;
}

// ---- the server ----

static atomic_int live, refused, served;

static int descriptors(void) {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  if (!d) return -1;
  for (struct dirent* e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n - 1;
}
static int resident_kb(void) {
  long pages = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (!f) return -1;
  if (fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
  fclose(f);
  return (int)(pages * (sysconf(_SC_PAGESIZE) / 1024));
}
static void* serve(void* p) {
  int fd = (int)(long)p;
  char* room = malloc(kMost);
  uint32_t n;
  while (get(fd, &n, sizeof n) == sizeof n && n <= kMost) {
    if (n == 0) {
      struct statistics s = {live, descriptors(), resident_kb(), refused, served};
      if (put(fd, &s, sizeof s)) break;
      continue;
    }
    if (get(fd, room, n) != (ssize_t)n || put(fd, &n, sizeof n) || put(fd, room, n)) break;
    served++;
  }
  free(room);
  close(fd);
  live--;
  return NULL;
}
static int server(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  pthread_attr_t detached;
  signal(SIGPIPE, SIG_IGN);
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&at, size) == 0 && listen(fd, 4096) == 0 &&
        getsockname(fd, (struct sockaddr*)&at, &size) == 0);
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  for (;;) {
    pthread_t t;
    int c = accept(fd, NULL, NULL);
    if (c < 0) {
      CHECK(errno == EMFILE || errno == ECONNABORTED || errno == EINTR);
      if (errno == EMFILE) refused++, pause_ms(1);
      continue;
    }
    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    live++;
    CHECK(pthread_create(&t, &detached, serve, (void*)(long)c) == 0);
  }
}

// ---- the clients ----

static struct sockaddr_in to;
static unsigned seed;
static unsigned random_below(unsigned n) { return (unsigned)rand_r(&seed) % n; }

static int open_connection(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct timeval hang = {60, 0};
  CHECK(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof hang);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &hang, sizeof hang);
  CHECK(connect(fd, (struct sockaddr*)&to, sizeof to) == 0);
  return fd;
}
static void send_message(int fd, char* message, uint32_t n) {
  for (uint32_t i = 0; i < n; i += 4) memcpy(message + i, &(uint32_t){seed + i}, 4);
  CHECK(put(fd, &n, sizeof n) == 0 && put(fd, message, n) == 0);
}
static void check_answer(int fd, const char* message, uint32_t n) {
  static char room[kMost + 4];
  uint32_t size;
  CHECK(get(fd, &size, sizeof size) == sizeof size && size == n);
  CHECK(get(fd, room, n) == (ssize_t)n && memcmp(room, message, n) == 0);
}
static void client(void) {
  static char message[kMost + 4];
  int fd[kEach];
  char c;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < kEach; i++) fd[i] = -1;
  for (;;) {
    int i = (int)random_below(kEach);
    if (fd[i] < 0) fd[i] = open_connection();
    uint32_t n = 1 + random_below(random_below(4) ? 100 : kMost);
    switch (random_below(10)) {
      case 0:  // at once
        close(fd[i]);
        fd[i] = -1;
        break;
      case 1: {  // by a reset
        struct linger l = {1, 0};
        setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(fd[i]);
        fd[i] = -1;
        break;
      }
      case 2:  // in the middle of a message
        put(fd[i], &n, sizeof n);
        close(fd[i]);
        fd[i] = -1;
        break;
      case 3:  // one direction first: the answer comes all the same
        send_message(fd[i], message, n);
        shutdown(fd[i], SHUT_WR);
        check_answer(fd[i], message, n);
        CHECK(read(fd[i], &c, 1) == 0);
        close(fd[i]);
        fd[i] = -1;
        break;
      case 4:  // without waiting for the answer
        send_message(fd[i], message, n < 1000 ? n : 1000);
        close(fd[i]);
        fd[i] = -1;
        break;
      default: send_message(fd[i], message, n); check_answer(fd[i], message, n);
    }
  }
}
static struct statistics ask(void) {
  struct statistics s;
  uint32_t none = 0;
  int fd = open_connection();
  CHECK(put(fd, &none, sizeof none) == 0 && get(fd, &s, sizeof s) == sizeof s);
  close(fd);
  return s;
}
// Opens more connections than the server has descriptors for. Some of them send a message.
static void crowd(void) {
  int fd[kCrowd];
  char message[100];
  for (int i = 0; i < kCrowd; i++) {
    fd[i] = open_connection();
    if (i % 10 == 0) send_message(fd[i], message, 50);
  }
  pause_ms(50);
  for (int i = 0; i < kCrowd; i++) close(fd[i]);
}
// Waits until all threads of connections have ended, and at most `descriptors` descriptors are open. A connection that is about to be
// served, or a descriptor with which the library looks at its threads, is open only for a short time.
static struct statistics settle(int descriptors) {
  struct statistics s;
  for (int i = 0; i < 3000; i++) {
    s = ask();
    if (s.live == 1 && s.descriptors <= descriptors) return s;
    pause_ms(10);
  }
  fprintf(stderr, "server_soak: %d threads have not ended, %d descriptors are open, not %d\n", s.live - 1, s.descriptors, descriptors);
  exit(2);
}

static pid_t start_client(void) {
  pid_t p = fork();
  CHECK(p >= 0);
  if (p == 0) client();
  return p;
}
static void end_client(pid_t p) {
  int status;
  kill(p, SIGKILL);
  CHECK(waitpid(p, &status, 0) == p);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    fprintf(stderr, "server_soak: a client ended with %#x\n", status);
    exit(2);
  }
}

int main(int argc, char** argv) {
  if (argc == 2) return server();
  if (argc != 5) return 1;
  double end = now() + atof(argv[3]), begin = now();
  pid_t clients[kClients];
  struct rlimit l;
  signal(SIGPIPE, SIG_IGN);
  getrlimit(RLIMIT_NOFILE, &l);
  l.rlim_cur = l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l);
  to = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(atoi(argv[2]))};
  seed = (unsigned)atoi(argv[4]);
  // A first connection makes the library open the descriptors that it needs for waits.
  int idle = open_connection();
  pause_ms(100);
  close(idle);
  struct statistics s = settle(kMost), early = s;
  int descriptors = s.descriptors;
  for (int i = 0; i < 20; i++) {
    s = settle(kMost);
    if (s.descriptors < descriptors) descriptors = s.descriptors;
  }
  int kills = 0, rounds = 0;
  // Go on until the server has had too few descriptors at least once. A slow server may not see a crowd before that has gone.
  while (now() < end || rounds < 2 || (!s.refused && rounds < 30)) {
    for (int i = 0; i < kClients; i++) seed++, clients[i] = start_client();
    double next = now() + 1;
    for (int quick = 0; now() < next; quick++) {
      int k = (int)random_below(kClients);
      pause_ms(20 + (int)random_below(50));
      end_client(clients[k]);
      seed++, kills++;
      clients[k] = start_client();
      if (quick == 5) crowd();
    }
    for (int i = 0; i < kClients; i++) end_client(clients[i]);
    s = settle(descriptors);
    rounds++;
    // Each worker keeps some free blocks, and on a loaded machine it takes a while until all workers have some.
    if ((now() - begin < (end - begin) * 0.6 || rounds == 1) && s.kb > early.kb) early = s;
  }
  printf("rounds=%d kills=%d served=%d refused=%d kb_early=%d kb=%d\n", rounds, kills, s.served, s.refused, early.kb, s.kb);
  // Allocators and workers keep some memory, and not always the same amount.
  if (s.kb > early.kb + early.kb / 5 + 8192) {
    fprintf(stderr, "server_soak: from %d to %d kB\n", early.kb, s.kb);
    return 2;
  }
  return s.refused ? 0 : 3;
}
