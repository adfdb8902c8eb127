// SPDX-License-Identifier: MIT
// Programs that build on epoll: many threads on one, level and edge triggered, one epoll in another, changes during a wait, and events that
// come together with a timeout. No event is lost, and no thread is left asleep.
#include "waiting.h"

enum { kThreads = 16, kFds = 32, kRounds = 3000 };
static int ep, outer, fds[kFds], mode;
static atomic_long taken, ends;
static atomic_int stop;
enum { LEVEL, EDGE, ONESHOT, EXCLUSIVE };
static const char* const mode_names[] = {"level", "edge", "oneshot", "exclusive"};

static uint32_t events_of(int m) {
  return EPOLLIN | (m == EDGE ? EPOLLET : m == ONESHOT ? EPOLLONESHOT : m == EXCLUSIVE ? EPOLLEXCLUSIVE : 0);
}

// Takes whatever events any of the threads gets.
static void* take_events(void* p) {
  struct epoll_event e[4];
  long most = (long)p % 4 + 1;
  while (!stop) {
    int n = epoll_wait(ep, e, most, (long)p % 3 == 0 ? -1 : 1000);
    for (int i = 0; i < n; i++) {
      uint64_t v;
      if (e[i].data.u32 == kFds) continue;  // the event that ends the test
      if (read(fds[e[i].data.u32], &v, 8) == 8) taken += v;
      if (mode == ONESHOT) {
        struct epoll_event again = {.events = events_of(mode), .data.u32 = e[i].data.u32};
        assert(epoll_ctl(ep, EPOLL_CTL_MOD, fds[e[i].data.u32], &again) == 0);
      }
    }
  }
  return NULL;
}
// The same, with a wait for another epoll that has this one.
static void* take_outer(void* p) {
  struct epoll_event o, e[4];
  while (!stop) {
    if (epoll_wait(outer, &o, 1, -1) < 1) continue;
    int n = epoll_wait(ep, e, 4, 0);
    for (int i = 0; i < n; i++) {
      uint64_t v;
      if (e[i].data.u32 != kFds && read(fds[e[i].data.u32], &v, 8) == 8) taken += v;
    }
  }
  return NULL;
}

static void crowd(int m, void* (*body)(void*), const char* name) {
  pthread_t t[kThreads];
  mode = m;
  stop = 0;
  taken = 0;
  ep = epoll_create1(EPOLL_CLOEXEC);
  outer = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN};
  assert(epoll_ctl(outer, EPOLL_CTL_ADD, ep, &e) == 0);
  for (int i = 0; i < kFds; i++) {
    fds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    e.events = events_of(m), e.data.u32 = i;
    assert(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e) == 0);
  }
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, body, (void*)i);
  long put = 0;
  for (int n = 0; n < kRounds; n++) {
    uint64_t one = 1;
    assert(write(fds[n * 7 % kFds], &one, 8) == 8);
    put++;
    if (n % 100 == 0) pause_ms(1);
    if (n % 500 == 0)  // everything is taken before there is more
      while (taken != put) pause_ms(1);
  }
  while (taken != put) pause_ms(1);
  stop = 1;
  int end = eventfd(1, EFD_CLOEXEC);  // ready for all threads, and stays ready
  e.events = EPOLLIN, e.data.u32 = kFds;
  assert(epoll_ctl(ep, EPOLL_CTL_ADD, end, &e) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%s, %s: %ld\n", name, mode_names[m], put);
  for (int i = 0; i < kFds; i++) close(fds[i]);
  close(end), close(ep), close(outer);
}

static void* wait_once(void* p) {
  struct epoll_event e;
  if (epoll_wait(ep, &e, 1, -1) == 1) ends++;
  return NULL;
}
// A level triggered event that no thread takes ends all waits.
static void all_told(void) {
  pthread_t t[kThreads];
  int fd = eventfd(0, EFD_CLOEXEC);
  uint64_t one = 1;
  struct epoll_event e = {.events = EPOLLIN};
  ep = epoll_create1(EPOLL_CLOEXEC);
  ends = 0;
  assert(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0);
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, wait_once, NULL);
  pause_ms(5);
  assert(write(fd, &one, 8) == 8);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("one event for all: %ld\n", ends);
  close(fd), close(ep);
}
// An edge triggered event ends one wait, and the next event ends the next wait.
static void one_told(void) {
  pthread_t t[kThreads];
  int fd = eventfd(0, EFD_CLOEXEC), early = 0;
  uint64_t one = 1;
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  ep = epoll_create1(EPOLL_CLOEXEC);
  ends = 0;
  assert(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0);
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, wait_once, NULL);
  pause_ms(5);
  for (int i = 1; i <= kThreads; i++) {
    assert(write(fd, &one, 8) == 8);
    while (ends < i) pause_ms(1);
    early += ends > i;
  }
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("an event for each: %ld, too early: %d\n", ends, early);
  close(fd), close(ep);
}

// Another thread changes the epoll while one waits.
static void changed(void) {
  int a[2], b[2];
  pthread_t t;
  struct epoll_event e = {.events = EPOLLIN};
  assert(pipe2(a, O_CLOEXEC) == 0 && pipe2(b, O_CLOEXEC) == 0 && write(a[1], "x", 1) == 1);
  for (int how = 0; how < 4; how++) {
    ep = epoll_create1(EPOLL_CLOEXEC);
    ends = 0;
    e.events = 0;
    if (how == 1) assert(epoll_ctl(ep, EPOLL_CTL_ADD, a[0], &e) == 0);
    e.events = EPOLLIN;
    if (how >= 2) assert(epoll_ctl(ep, EPOLL_CTL_ADD, b[0], &e) == 0);
    if (how == 3) assert(epoll_ctl(ep, EPOLL_CTL_DEL, b[0], &e) == 0 && write(b[1], "x", 1) == 1);
    pthread_create(&t, NULL, wait_once, NULL);
    pause_ms(3);
    if (how == 0 || how == 3) assert(epoll_ctl(ep, EPOLL_CTL_ADD, a[0], &e) == 0);  // readable already
    if (how == 1) assert(epoll_ctl(ep, EPOLL_CTL_MOD, a[0], &e) == 0);
    if (how == 2) {  // in another epoll, and added later
      int inner = epoll_create1(EPOLL_CLOEXEC);
      assert(epoll_ctl(ep, EPOLL_CTL_ADD, inner, &e) == 0);
      pause_ms(2);
      assert(epoll_ctl(inner, EPOLL_CTL_ADD, a[0], &e) == 0);
      pthread_join(t, NULL);
      close(inner);
    } else {
      pthread_join(t, NULL);
    }
    printf("changed %d: %ld\n", how, ends);
    close(ep);
  }
  for (int i = 0; i < 2; i++) close(a[i]), close(b[i]);
}

// Threads pass a byte round by pipes. Each waits in its own way, and timeouts come all the time.
static int ring[kThreads][2];
static void* hand_on(void* p) {
  long me = (long)p, next = (me + 1) % kThreads, n = 0;
  int own = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN | (me & 1 ? EPOLLET : 0)};
  assert(epoll_ctl(own, EPOLL_CTL_ADD, ring[me][0], &e) == 0);
  for (char c = 0; c != 'e';) {
    struct pollfd f = {ring[me][0], POLLIN};
    struct timeval tv = {0, 300};
    fd_set s;
    FD_ZERO(&s);
    FD_SET(ring[me][0], &s);
    int r = me % 4 == 0   ? poll(&f, 1, 1)
            : me % 4 == 1 ? epoll_wait(own, &e, 1, 1)
            : me % 4 == 2 ? select(ring[me][0] + 1, &s, NULL, NULL, &tv)
                          : epoll_wait(own, &e, 1, -1);
    if (r <= 0) continue;
    assert(read(ring[me][0], &c, 1) == 1);
    n++;
    if (me == 0 && n == 500) c = 'e';
    assert(write(ring[next][1], &c, 1) == 1);
  }
  close(own);
  return (void*)n;
}
static void round_and_round(void) {
  pthread_t t[kThreads];
  long sum = 0;
  for (int i = 0; i < kThreads; i++) assert(pipe2(ring[i], O_CLOEXEC) == 0);
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, hand_on, (void*)i);
  assert(write(ring[0][1], "x", 1) == 1);
  for (int i = 0; i < kThreads; i++) {
    void* r;
    pthread_join(t[i], &r);
    sum += (long)r;
  }
  printf("round: %ld\n", sum);
  for (int i = 0; i < kThreads; i++) close(ring[i][0]), close(ring[i][1]);
}

int main(int argc, char** argv) {
  begin(1, argv);
  for (int m = LEVEL; m <= EXCLUSIVE; m++) crowd(m, take_events, "many on one");
  crowd(LEVEL, take_outer, "one in another");
  crowd(EDGE, take_outer, "one in another");
  all_told();
  one_told();
  changed();
  round_and_round();
  return 0;
}
