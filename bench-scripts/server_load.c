// SPDX-License-Identifier: MIT
// usage: server_load PORT CONNECTIONS SECONDS REQUEST ANSWER [SETUP-REQUEST SETUP-ANSWER]
//
// Each argument from REQUEST on is a file. Sends the request on each connection, and sends it again when the whole answer has come, which
// must be the contents of ANSWER. The setup is exchanged once before. "######" in the files stands for the connection's number. The headers
// of an answer by HTTP are counted but not compared, since they have the time in them. There is one epoll loop. Prints one line of
// NAME=NUMBER as echo_load does.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kBuckets = 2000000 /* µs each */, kMark = 6, kMarks = 8 };

struct text {
  char* bytes;
  size_t size, compared;  // bytes from offset `compared` on are compared
  size_t marks[kMarks];   // offsets of the connection's number
  int marked;
};
static struct text request, answer, setup_request, setup_answer;
static struct connection {
  int fd, number, set_up;
  size_t got, sent;
  uint64_t sent_at;
}* connections;
static uint32_t* buckets;
static int ep;

static _Noreturn void fail(const char* what) {
  fprintf(stderr, "server_load: %s: %s\n", what, strerror(errno));
  exit(1);
}
static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static struct text load(const char* path) {
  struct text t = {0};
  FILE* f = fopen(path, "r");
  if (!f) fail(path);
  fseek(f, 0, SEEK_END);
  t.size = ftell(f);
  rewind(f);
  t.bytes = malloc(t.size + 1);
  if (fread(t.bytes, 1, t.size, f) != t.size) fail(path);
  fclose(f);
  for (char* m = t.bytes; t.marked < kMarks && (m = memmem(m, t.bytes + t.size - m, "######", kMark)); m += kMark)
    t.marks[t.marked++] = m - t.bytes;
  char* body = t.size > 5 && !memcmp(t.bytes, "HTTP/", 5) ? memmem(t.bytes, t.size, "\r\n\r\n", 4) : NULL;
  if (body) t.compared = body - t.bytes;
  return t;
}
// Returns the text with this connection's number in it.
static const char* text_for(const struct text* t, int number) {
  if (t->marked) {
    char digits[8];
    snprintf(digits, sizeof digits, "%06d", number % 1000000);
    for (int i = 0; i < t->marked; i++) memcpy(t->bytes + t->marks[i], digits, kMark);
  }
  return t->bytes;
}
static struct sockaddr_in to;
static long opened;
static void open_connection(struct connection* c) {
  struct linger at_once = {1, 0};  // a reset: no port stays in TIME_WAIT
  int one = 1;
  if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(c->fd, (struct sockaddr*)&to, sizeof to)) fail("connect");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e)) fail("epoll_ctl");
  opened++;
}
static const struct text* current(struct connection* c, int answers) {
  return c->set_up ? (answers ? &answer : &request) : answers ? &setup_answer : &setup_request;
}
static void go_on_sending(struct connection* c) {
  const struct text* t = current(c, 0);
  const char* bytes = text_for(t, c->number);
  while (c->sent < t->size) {
    ssize_t k = write(c->fd, bytes + c->sent, t->size - c->sent);
    if (k < 0 && errno == EAGAIN) return;                          // EPOLLOUT will come
    if (k < 0 && (errno == EPIPE || errno == ECONNRESET)) return;  // receive() will see it
    if (k < 0) fail("write");
    c->sent += k;
  }
}
static void send_request(struct connection* c, uint64_t now) {
  c->got = c->sent = 0;
  c->sent_at = now;
  go_on_sending(c);
}
static double percentile(uint64_t all, double p) {
  uint64_t seen = 0, wanted = all * p;
  for (int i = 0; i < kBuckets; i++)
    if ((seen += buckets[i]) > wanted) return i + 0.5;
  return kBuckets;
}
// Returns whether the answer is complete.
static int receive(struct connection* c) {
  static char room[1 << 16];
  const struct text* t = current(c, 1);
  while (c->got < t->size) {
    size_t want = t->size - c->got < sizeof room ? t->size - c->got : sizeof room;
    ssize_t k = read(c->fd, room, want);
    if (k < 0 && errno == EAGAIN) return 0;
    if (k <= 0) {
      // A server may close a connection between two requests.
      if (c->got || (k < 0 && errno != ECONNRESET && errno != EPIPE)) fail(k == 0 ? "closed within an answer" : "read");
      close(c->fd);
      open_connection(c);
      c->sent = 0;
      c->set_up = !setup_request.size;
      go_on_sending(c);
      return 0;
    }
    const char* expected = text_for(t, c->number);
    size_t from = c->got < t->compared ? t->compared : c->got, to = c->got + k;
    if (from < to && memcmp(room + (from - c->got), expected + from, to - from)) {
      fprintf(stderr, "server_load: another answer: %.*s\n", (int)k, room);
      exit(1);
    }
    c->got += k;
  }
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 6 && argc != 8) return 2;
  int n = atoi(argv[2]);
  double seconds = atof(argv[3]);
  request = load(argv[4]), answer = load(argv[5]);
  if (argc == 8) setup_request = load(argv[6]), setup_answer = load(argv[7]);
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  ep = epoll_create1(0);
  connections = calloc(n, sizeof *connections);
  buckets = calloc(kBuckets, sizeof *buckets);
  to = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(atoi(argv[1]))};
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < n; i++) {
    connections[i].number = i;
    connections[i].set_up = argc == 6;
    open_connection(&connections[i]);
  }
  uint64_t start = now_ns(), warm = start + seconds * 0.2e9, end = start + seconds * 1e9, now = start, count = 0, all = 0, most = 0;
  for (int i = 0; i < n; i++) send_request(&connections[i], now_ns());
  while (now < end) {
    struct epoll_event ready[256];
    int r = epoll_wait(ep, ready, 256, 10000);
    if (r == 0) {
      fprintf(stderr, "server_load: no answer for 10 s\n");
      return 1;
    }
    for (int i = 0; i < r; i++) {
      struct connection* c = ready[i].data.ptr;
      go_on_sending(c);
      if (!receive(c)) continue;
      now = now_ns();
      all++;
      if (c->set_up && now >= warm && now < end) {
        uint64_t us = (now - c->sent_at) / 1000;
        buckets[us < kBuckets ? us : kBuckets - 1]++;
        if (us > most) most = us;
        count++;
      }
      c->set_up = 1;
      send_request(c, now);
    }
  }
  if (!count) {
    fprintf(stderr, "server_load: no answer after the warm-up\n");
    return 1;
  }
  printf("rate=%.1f p50_us=%.1f p99_us=%.1f max_us=%.1f requests=%ld reopened=%ld\n", count / (seconds * 0.8), percentile(count, 0.5),
         percentile(count, 0.99), (double)most, (long)all, opened - n);
  return 0;
}
