// SPDX-License-Identifier: MIT
// workers: 1
// expect: preloaded only
// Hundreds of threads, each with a connection, and a peer that sends the next request as soon as it has an answer. Each thread has its turn:
// none waits while others are served again and again. With more than one worker, the kernel takes the CPU from some for long, as on NPTL.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 400, kRequests = 200 * kThreads, kMost = 6 * kThreads };
static int pairs[kThreads][2];

static void* serve(void* p) {
  int fd = pairs[(long)p][0];
  char c;
  while (read(fd, &c, 1) == 1 && write(fd, &c, 1) == 1) {
  }
  return NULL;
}

// Returns how many requests of others were answered, at most, before one was.
static int load(void) {
  static int sent_at[kThreads];
  int ep = epoll_create1(0), longest = 0;
  for (int i = 0; i < kThreads; i++) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
    assert(epoll_ctl(ep, EPOLL_CTL_ADD, pairs[i][1], &e) == 0);
    assert(write(pairs[i][1], "x", 1) == 1);
  }
  for (int answers = 0; answers < kRequests;) {
    struct epoll_event ready[64];
    int n = epoll_wait(ep, ready, 64, -1);
    for (int k = 0; k < n; k++) {
      int i = ready[k].data.u32;
      char c;
      assert(read(pairs[i][1], &c, 1) == 1);
      int waited = ++answers - sent_at[i];
      if (waited > longest) longest = waited;
      sent_at[i] = answers;
      assert(write(pairs[i][1], "x", 1) == 1);
    }
  }
  for (int i = 0; i < kThreads; i++)
    if (kRequests - sent_at[i] > longest) longest = kRequests - sent_at[i];
  return longest;
}

int main(void) {
  pthread_t t[kThreads];
  int status;
  signal(SIGPIPE, SIG_IGN);  // the peer ends first
  for (int i = 0; i < kThreads; i++) assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
  pid_t peer = fork();
  if (peer == 0) {
    for (int i = 0; i < kThreads; i++) close(pairs[i][0]);
    _exit(load() > kMost);
  }
  for (int i = 0; i < kThreads; i++) close(pairs[i][1]);
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, serve, (void*)i) == 0);
  assert(waitpid(peer, &status, 0) == peer);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL), close(pairs[i][0]);
  puts(status ? "some waited for too long" : "all had their turns");
  return 0;
}
