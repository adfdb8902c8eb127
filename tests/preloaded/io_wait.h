// SPDX-License-Identifier: MIT
// What io_wait_read.c and io_wait_write.c share: the form of a call, the events that may end its wait, and the begin and the end of a case.
#pragma once
#include "waiting.h"

// A call may take flags, be a cancellation point, and have a pipe or a file as its other end.
enum { kFlags = 1, kCancels = 2, kPipe = 4, kFile = 8 };
struct call {
  const char* name;
  long (*function)(struct job*);
  unsigned kinds;
  int has;
};

enum event {
  READY,
  COMES,
  CLOSES,
  CLOSED,
  SHUT,
  TIMEOUT,
  EINTR_,
  RESTARTED,
  RESTART_TIMEOUT,
  CANCEL,
  CANCEL_OFF,
  NONBLOCKING,
  READY_NONBLOCKING,
  FAR_NONBLOCKING,
  TWO_WAIT,
  NOTHING_ASKED,
  DONTWAIT,
  PEEK,
  PEEK_TWICE,
  ALL_MORE,
  ALL_CLOSES,
  ALL_SIGNAL,
  ALL_TIMEOUT,
  ALL_PEEK,
  ALL_DONTWAIT,
  LOW_WATER,
  PART_DRAINED,
  PART_SIGNAL,
  PART_RESTART,
  PART_TIMEOUT,
  PART_CLOSES,
  PART_NONBLOCKING,
  PART_DONTWAIT,
  kEvents
};
static const char* const event_names[] = {"ready",
                                          "comes",
                                          "peer closes",
                                          "peer has closed",
                                          "shutdown",
                                          "timeout",
                                          "signal",
                                          "signal, restarts",
                                          "signal, restarts, timeout",
                                          "cancel",
                                          "cancel disabled",
                                          "non-blocking",
                                          "ready, non-blocking",
                                          "peer is non-blocking",
                                          "two wait",
                                          "nothing asked",
                                          "MSG_DONTWAIT",
                                          "MSG_PEEK",
                                          "MSG_PEEK, read",
                                          "MSG_WAITALL, more",
                                          "MSG_WAITALL, peer closes",
                                          "MSG_WAITALL, signal",
                                          "MSG_WAITALL, timeout",
                                          "MSG_WAITALL and PEEK",
                                          "MSG_WAITALL and DONTWAIT",
                                          "SO_RCVLOWAT",
                                          "all, drained",
                                          "part, signal",
                                          "part, signal, restarts",
                                          "part, timeout",
                                          "part, peer closes",
                                          "part, non-blocking",
                                          "part, MSG_DONTWAIT"};

// The buffer of a job, in two pieces.
static inline struct iovec* halves(struct job* j, struct iovec* v) {
  size_t n = j->size < 3 ? 0 : 3;
  v[0] = (struct iovec){j->buffer, n};
  v[1] = (struct iovec){j->buffer + n, j->size - n};
  return v;
}

// `writes`: the call writes to the descriptor.
static inline void prepare(struct job* j, const struct item* i, int writes) {
  const struct call* c = i->call;
  memset(j, 0, sizeof *j);
  j->e = open_ends(i->kind, writes);
  j->fd = j->e.a;
  j->call = c->function;
  j->other[0] = j->other[1] = -1;
  if (c->has & kPipe) assert(pipe2(j->other, O_CLOEXEC) == 0);
}

static inline void finish(struct job* j, int flags_before, char* out) {
  if (j->e.a >= 0 && fcntl(j->e.a, F_GETFL) != flags_before) strcat(out, ", its flags changed");
  close_ends(&j->e);
  if (j->other[0] >= 0) close(j->other[0]);
  if (j->other[1] >= 0) close(j->other[1]);
  free(j->buffer);
}

// The job's own call, with cancellation disabled.
static inline long disabled_call(struct job* j) {
  const struct call* c = j->more;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  return c->function(j);
}
static inline void disable_cancel(struct job* j, const struct call* c) { j->call = disabled_call, j->more = c; }

// Sets O_NONBLOCK, and returns the flags that the descriptor must have at the end.
static inline int now_nonblocking(int fd) {
  set_nonblocking(fd, 1);
  return fcntl(fd, F_GETFL);
}

// Adds the cases of all calls: each on every kind of descriptor that it takes, with every event that fits.
static inline void add_calls(const struct call* calls, int count, void (*run)(const struct item*, char*),
                             int (*fits)(const struct call*, enum kind, enum event)) {
  for (int n = 0; n < count; n++)
    for (int k = 0; k < kKinds; k++)
      for (int e = 0; e < kEvents; e++)
        if (calls[n].kinds & BIT(k) && fits(&calls[n], k, e)) {
          struct item* i = add_item(run, calls[n].name, kind_names[k], event_names[e]);
          i->call = &calls[n], i->kind = k, i->event = e;
        }
}
