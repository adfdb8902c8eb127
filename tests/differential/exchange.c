// SPDX-License-Identifier: MIT
// Several threads pass bytes, and cancel, fork and wait at once.
#include "differential.h"
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/un.h>

struct shared {
  int fds[kThreads][2];
  int listener;
  struct sockaddr_un address;
  socklen_t length;
  atomic_int word, done, cancelled;
  sem_t sem, all_wait;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  int waiting, tokens, taken;
  pthread_t handles[kThreads];
};
static struct shared* of(struct operation* o) { return shared_of(o); }

static void prepare(struct operation* o) {
  struct shared* s = of(o);
  static_assert(sizeof *s + sizeof(pthread_barrier_t) < kShared, "");
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->cond, NULL);
  sem_init(&s->sem, 0, 0);
  sem_init(&s->all_wait, 0, 0);
}
static void open_pipes(struct operation* o) {
  struct shared* s = of(o);
  if (rank_in(o) == 0)
    for (int i = 0; i < members(o); i++) {
      if (o->a[0] == 0) assert(pipe2(s->fds[i], O_CLOEXEC) == 0);
      if (o->a[0] == 1) assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s->fds[i]) == 0);
      if (o->a[0] == 2) assert(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, s->fds[i]) == 0);
    }
  meet(o);
}
static void close_pipes(struct operation* o) {
  meet(o);
  if (rank_in(o) == 0)
    for (int i = 0; i < members(o); i++) close(of(o)->fds[i][0]), close(of(o)->fds[i][1]);
}

// A number goes around the circle, and each adds one.
static void ring(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o), value = 0;
  open_pipes(o);
  for (int i = 0; i <= o->a[1]; i++) {
    if (rank || i) {
      if (o->a[2]) poll(&(struct pollfd){s->fds[rank][0], POLLIN, 0}, 1, -1);
      if (read(s->fds[rank][0], &value, sizeof value) != sizeof value) say(" short");
    }
    value++;
    if (write(s->fds[(rank + 1) % n][1], &value, sizeof value) != sizeof value) say(" short");
  }
  say(" %d", value);
  close_pipes(o);
}

// The first member reads what all others write.
static void fan_in(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o), each = 1 + o->a[1];
  open_pipes(o);
  if (rank) {
    for (int i = 0; i < each; i++)
      if (write(s->fds[rank][1], &i, sizeof i) != sizeof i) say(" short");
  } else {
    int e = epoll_create1(EPOLL_CLOEXEC), left = each * (n - 1);
    long sum = 0;
    for (int i = 1; i < n; i++)
      epoll_ctl(e, EPOLL_CTL_ADD, s->fds[i][0], &(struct epoll_event){.events = EPOLLIN | (o->a[2] ? EPOLLONESHOT : 0), .data.u32 = i});
    while (left > 0) {
      struct epoll_event got[4];
      int count = epoll_wait(e, got, 4, -1);
      for (int i = 0; i < count; i++) {
        int from = got[i].data.u32, value;
        if (read(s->fds[from][0], &value, sizeof value) == sizeof value) sum += value, left--;
        got[i].events = EPOLLIN | EPOLLONESHOT;
        if (o->a[2]) epoll_ctl(e, EPOLL_CTL_MOD, s->fds[from][0], &got[i]);
      }
    }
    close(e);
    say(" sum %ld", sum);
  }
  close_pipes(o);
}

// The first member answers the others.
static void server(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o);
  if (rank == 0) {
    s->address.sun_family = AF_UNIX;
    s->length = sizeof s->address;
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(bind(s->listener, (void*)&s->address, sizeof s->address.sun_family) == 0);
    assert(listen(s->listener, kThreads) == 0);
    getsockname(s->listener, (void*)&s->address, &s->length);
  }
  meet(o);
  for (int i = 0; i <= o->a[1] / 8; i++) {
    int value = rank;
    if (rank == 0) {
      for (int k = 1; k < n; k++) {
        int fd = accept(s->listener, NULL, NULL);
        if (read(fd, &value, sizeof value) == sizeof value) value *= 2;
        if (write(fd, &value, sizeof value) != sizeof value) say(" short");
        close(fd);
      }
    } else {
      int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      SAY_ERRNO("connect", connect(fd, (void*)&s->address, s->length));
      if (write(fd, &value, sizeof value) != sizeof value) say(" short");
      if (recv(fd, &value, sizeof value, 0) != sizeof value) say(" short");
      say(" %d", value);
      close(fd);
    }
  }
  meet(o);
  if (rank == 0) close(s->listener);
}

static void futexes(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o);
  for (int i = 0; i <= o->a[1]; i++) {
    int seen;
    while ((seen = s->word) != i * n + rank) syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    s->word++;
    syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  }
  meet(o);
  say(" %d", s->word);
}

// The first member gives as many tokens as there are other members, and more come than go.
static void tokens(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o), each = 1 + o->a[1];
  for (int i = 0; i < (rank ? each : each * (n - 1)); i++) {
    if (o->a[0] == 0) {
      if (rank == 0) sem_post(&s->sem);
      else if (sem_wait(&s->sem) == 0) s->done++;
      continue;
    }
    pthread_mutex_lock(&s->mutex);
    if (rank == 0) {
      s->tokens++;
      pthread_cond_signal(&s->cond);
    } else {
      while (s->tokens == 0) pthread_cond_wait(&s->cond, &s->mutex);
      s->tokens--;
      s->done++;
    }
    pthread_mutex_unlock(&s->mutex);
  }
  meet(o);
  say(" %d left %d", s->done, s->tokens);
}

// ---- cancellation among wake-ups: no wake-up is lost with a cancelled thread ----

static void note_cancelled(void* v) {
  struct shared* s = v;
  s->cancelled++;
}
static void unlock(void* v) { pthread_mutex_unlock(&((struct shared*)v)->mutex); }
static void* takes_a_token(void* v) {
  struct shared* s = v;
  pthread_cleanup_push(note_cancelled, s);
  pthread_mutex_lock(&s->mutex);
  pthread_cleanup_push(unlock, s);
  while (s->tokens == 0) pthread_cond_wait(&s->cond, &s->mutex);
  s->tokens--;
  s->taken++;
  pthread_cleanup_pop(1);
  pthread_cleanup_pop(0);
  return NULL;
}
static void* takes_a_post(void* v) {
  struct shared* s = v;
  pthread_cleanup_push(note_cancelled, s);
  while (sem_wait(&s->sem) != 0) {
  }
  pthread_cleanup_pop(0);
  s->done++;
  return NULL;
}
// Each member has two helpers that wait for a token. It cancels one of them, while as many tokens come as the rest needs.
static void cancel_crowd(struct operation* o) {
  struct shared* s = of(o);
  void* (*f)(void*) = o->a[0] ? takes_a_post : takes_a_token;
  pthread_t a = start_helper(f, s, NULL), b = start_helper(f, s, NULL);
  if (o->a[1]) meet(o);
  bool first = o->a[2] % 2;
  if (first) pthread_cancel(a);
  for (int i = 0; i < 2; i++) {  // enough for both: either may have one
    pthread_mutex_lock(&s->mutex);
    s->tokens++;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mutex);
    sem_post(&s->sem);
  }
  if (!first) pthread_cancel(a);
  long first_result = (long)join(a), second = (long)join(b);
  say(" %d %ld", first_result == 0 || first_result == (long)PTHREAD_CANCELED, second);
  meet(o);
  int left = 0;
  sem_getvalue(&s->sem, &left);
  if (o->a[0]) say(" %d", left + s->done);
  else say(" %d", s->tokens + s->taken);
  say(" %d", s->cancelled + (o->a[0] ? s->done : s->taken));
}

// ---- children of several threads at once ----

static void* thread_of_child(void* v) {
  free(malloc(5000));
  return v;
}
static void fork_crowd(struct operation* o) {
  if (!has_children) return;
  meet(o);
  for (int i = 0; i <= o->a[1]; i++) {
    free(malloc(100 + i));
    pid_t pid = fork();
    if (pid == 0) {
      free(malloc(10000));
      if (o->a[2]) elsewhere(thread_of_child, NULL);
      FILE* f = fopen("/dev/null", "w");
      fprintf(f, "%d\n", i);
      fclose(f);
      _exit(me->number + 10);
    }
    int status = -1;
    while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {
    }
    say(" %#x", status);
  }
}

// All make and join threads, detach some, and count them.
static void* counted(void* v) {
  ((struct shared*)v)->done++;
  return (void*)1L;
}
static void* counted_detached(void* v) {
  struct shared* s = v;
  s->done++;
  sem_post(&s->all_wait);
  return NULL;
}
static void births(struct operation* o) {
  struct shared* s = of(o);
  long sum = 0;
  for (int i = 0; i <= o->a[1]; i++) {
    pthread_t t[3];
    for (int k = 0; k < 3; k++) t[k] = start_helper(counted, s, NULL);
    for (int k = 0; k < 3; k++) sum += (long)join(t[k]);
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    start_helper(counted_detached, s, &a);
  }
  for (int i = 0; i <= o->a[1]; i++)
    while (sem_wait(&s->all_wait) != 0) {
    }
  meet(o);
  say(" %ld %d", sum, s->done);
}

const struct kind exchange_kinds[] = {{"ring", ring, 25, 2, {3, 15, 2}, prepare},
                                      {"fan-in", fan_in, 20, 2, {3, 20, 2}, prepare},
                                      {"server", server, 15, 2, {1, 24}, prepare},
                                      {"futexes", futexes, 15, 2, {1, 15}, prepare},
                                      {"tokens", tokens, 20, 2, {2, 30}, prepare},
                                      {"cancel.crowd", cancel_crowd, 25, 2, {2, 2, 2}, prepare},
                                      {"fork.crowd", fork_crowd, 8, 2, {1, 3, 2}, prepare},
                                      {"births", births, 12, 2, {1, 4}, prepare},
                                      {0}};
