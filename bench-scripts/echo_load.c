// SPDX-License-Identifier: MIT
// usage: echo_load PORT CONNECTIONS SECONDS [REQUEST ANSWER]
//
// Sends 64 bytes on each connection, and the next 64 when they have come back. With a REQUEST, sends that, and its answer must always be
// ANSWER (each has up to 1,000 bytes, and may be written as a shell's $'…'). It has one epoll loop. The first fifth of the time is a
// warm-up. Prints one line of NAME=NUMBER: requests per second, and percentiles of the time from request to answer in µs.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kMessage = 64, kMost = 1000, kBuckets = 2000000 };  // a bucket is 1 µs wide

static struct connection {
  int fd, got;
  uint64_t sent_at;
  char message[kMessage];
}* connections;
static const char *fixed, *answer;
static size_t fixed_size, answer_size = kMessage;
static uint32_t* buckets;

static _Noreturn void fail(const char* what) {
  fprintf(stderr, "echo_load: %s: %s\n", what, strerror(errno));
  exit(1);
}
static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void request(struct connection* c, uint64_t now) {
  c->got = 0;
  c->sent_at = now;
  if (fixed) {
    if (write(c->fd, fixed, fixed_size) != (ssize_t)fixed_size) fail("write");
    return;
  }
  uint64_t stamp = now ^ (uint64_t)c->fd << 48;
  for (int i = 0; i < kMessage; i += 8) memcpy(c->message + i, &stamp, 8);
  if (write(c->fd, c->message, kMessage) != kMessage) fail("write");
}
static double percentile(uint64_t all, double p) {
  uint64_t seen = 0, wanted = all * p;
  for (int i = 0; i < kBuckets; i++)
    if ((seen += buckets[i]) > wanted) return i + 0.5;
  return kBuckets;
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  int n = atoi(argv[2]), ep = epoll_create1(0), one = 1;
  double seconds = atof(argv[3]);
  if (argc == 6) {
    fixed = argv[4], fixed_size = strlen(fixed);
    answer = argv[5], answer_size = strlen(answer);
    if (!answer_size || answer_size > kMost) return 2;
  }
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  connections = calloc(n, sizeof *connections);
  buckets = calloc(kBuckets, sizeof *buckets);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(atoi(argv[1]))};
  uint64_t begin = now_ns();
  for (int i = 0; i < n; i++) {
    struct connection* c = &connections[i];
    struct linger at_once = {1, 0};  // a reset: no port stays in TIME_WAIT
    if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(c->fd, (struct sockaddr*)&to, sizeof to)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e)) fail("epoll_ctl");
  }
  uint64_t start = now_ns(), warm = start + seconds * 0.2e9, end = start + seconds * 1e9, now = start, count = 0, all = 0, sum = 0,
           most = 0;
  double connected = (start - begin) / 1e9;
  for (int i = 0; i < n; i++) request(&connections[i], now_ns());
  while (now < end) {
    struct epoll_event ready[256];
    int r = epoll_wait(ep, ready, 256, 5000);
    if (r == 0) {
      fprintf(stderr, "echo_load: no answer for 5 s\n");
      return 1;
    }
    for (int i = 0; i < r; i++) {
      struct connection* c = ready[i].data.ptr;
      char got[kMost];
      ssize_t k = read(c->fd, got, answer_size - c->got);
      if (k <= 0) {
        if (k < 0 && errno == EAGAIN) continue;
        fail("read");
      }
      if (memcmp(got, (answer ? answer : c->message) + c->got, k)) {
        fprintf(stderr, "echo_load: another answer than expected\n");
        return 1;
      }
      if ((size_t)(c->got += k) < answer_size) continue;
      now = now_ns();
      all++;
      if (now >= warm && now < end) {
        uint64_t us = (now - c->sent_at) / 1000;
        buckets[us < kBuckets ? us : kBuckets - 1]++;
        if (us > most) most = us;
        sum += us;
        count++;
      }
      request(c, now);
    }
  }
  if (!count) return 1;
  printf("rate=%.1f p50_us=%.1f p99_us=%.1f p999_us=%.1f max_us=%.1f mean_us=%.1f connect_s=%.3f requests=%.0f\n", count / (seconds * 0.8),
         percentile(count, 0.5), percentile(count, 0.99), percentile(count, 0.999), (double)most, (double)sum / count, connected,
         (double)all);
  return 0;
}
