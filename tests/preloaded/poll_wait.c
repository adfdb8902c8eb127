// SPDX-License-Identifier: MIT
// Calls that wait until descriptors are ready, with everything that may end their waits: each call on every kind of descriptor and on
// several ones, with masks and timeouts, and on an epoll in another.
#include "waiting.h"
#include "old_libc.h"

extern int __poll_chk(struct pollfd*, nfds_t, int, size_t);
extern int __ppoll_chk(struct pollfd*, nfds_t, const struct timespec*, const sigset_t*, size_t);

enum { kForEver = -1, kCancelDisabled = -2 };
// What a call is asked, and what it said: bits of poll().
struct question {
  int n;
  struct {
    int fd, events, revents;
  } of[4];
  int ms;  // kForEver; kCancelDisabled: for ever, with cancellation disabled
  const sigset_t* mask;
};

// All calls answer in the same way: with the number of descriptors that are ready, and for each one with the bits of poll().
static long ask_poll(struct question* q, int how) {
  struct pollfd p[4];
  struct timespec t = {q->ms / 1000, q->ms % 1000 * 1000000}, before = t;
  for (int i = 0; i < q->n; i++) p[i] = (struct pollfd){q->of[i].fd, q->of[i].events, -1};
  int r = how == 0   ? poll(p, q->n, q->ms)
          : how == 1 ? __poll_chk(p, q->n, q->ms, sizeof p)
          : how == 2 ? ppoll(p, q->n, q->ms < 0 ? NULL : &t, q->mask)
          : how == 3 ? __ppoll_chk(p, q->n, q->ms < 0 ? NULL : &t, q->mask, sizeof p)
#ifdef SYS_poll
          : how == 4 ? syscall(SYS_poll, p, q->n, q->ms)
#else
          : how == 4 ? poll(p, q->n, q->ms)
#endif
                     : syscall(SYS_ppoll, p, q->n, q->ms < 0 ? NULL : &t, q->mask, 8L);
  // By its number, the call returns the time that is left.
  if (how == 5 && q->ms >= 0 && (t.tv_sec * 1000 + t.tv_nsec / 1000000 > q->ms || (r == 0 && (t.tv_sec || t.tv_nsec)))) return 9996;
  if (how == 5) t = before;
  int e = errno;
  if (t.tv_sec != before.tv_sec || t.tv_nsec != before.tv_nsec) return 9999;  // the call must not change it
  for (int i = 0; i < q->n; i++) q->of[i].revents = r < 0 ? 0 : p[i].revents;
  errno = e;
  return r;
}
static long ask_select(struct question* q, int how) {
  fd_set in, out, urgent;
  int most = -1;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_ZERO(&urgent);
  for (int i = 0; i < q->n; i++) {
    int fd = q->of[i].fd;
    if (fd < 0) continue;
    if (fd > most) most = fd;
    if (q->of[i].events & POLLIN) FD_SET(fd, &in);
    if (q->of[i].events & POLLOUT) FD_SET(fd, &out);
    if (q->of[i].events & POLLPRI) FD_SET(fd, &urgent);
  }
  struct timeval t = {q->ms / 1000, q->ms % 1000 * 1000};
  struct timespec pt = {t.tv_sec, t.tv_usec * 1000};
  struct {
    const sigset_t* mask;
    size_t size;
  } last = {q->mask, 8};
  int r = how == 0   ? select(most + 1, &in, &out, &urgent, q->ms < 0 ? NULL : &t)
          : how == 1 ? pselect(most + 1, &in, &out, &urgent, q->ms < 0 ? NULL : &pt, q->mask)
                     : syscall(SYS_pselect6, most + 1, &in, &out, &urgent, q->ms < 0 ? NULL : &pt, &last);
  int e = errno;
  if (how == 2 && q->ms >= 0 && (pt.tv_sec * 1000 + pt.tv_nsec / 1000000 > q->ms || (r == 0 && (pt.tv_sec || pt.tv_nsec)))) return 9996;
  if (how == 2) pt = (struct timespec){q->ms / 1000, q->ms % 1000 * 1000000};
  // Only select() returns the time that is left.
  if (q->ms >= 0 && how == 0 && r == 0 && (t.tv_sec || t.tv_usec)) return 9998;
  if (q->ms >= 0 && how == 0 && r > 0 && q->ms > 1000 && t.tv_sec * 1000 + t.tv_usec / 1000 > q->ms) return 9997;
  if (how && q->ms >= 0 && (pt.tv_sec != q->ms / 1000 || pt.tv_nsec != q->ms % 1000 * 1000000)) return 9999;
  for (int i = 0; i < q->n; i++) {
    int fd = q->of[i].fd;
    q->of[i].revents = fd < 0 || r < 0
                           ? 0
                           : (FD_ISSET(fd, &in) ? POLLIN : 0) | (FD_ISSET(fd, &out) ? POLLOUT : 0) | (FD_ISSET(fd, &urgent) ? POLLPRI : 0);
  }
  errno = e;
  return r;
}
static long ask_epoll(struct question* q, int how) {
  int ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got[4];
  struct timespec t = {q->ms / 1000, q->ms % 1000 * 1000000};
  long r = 0;
  int e = 0;
  for (int i = 0; i < q->n && r == 0; i++) {
    struct epoll_event want = {.events = q->of[i].events, .data.u32 = i};
    q->of[i].revents = 0;
    if (q->of[i].fd >= 0) r = epoll_ctl(ep, EPOLL_CTL_ADD, q->of[i].fd, &want);
  }
  if (r == 0) {
    int outer = how == 4 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (how == 4) {  // one epoll in another
      struct epoll_event want = {.events = EPOLLIN}, one;
      assert(epoll_ctl(outer, EPOLL_CTL_ADD, ep, &want) == 0);
      r = epoll_wait(outer, &one, 1, q->ms);
      e = errno;
      if (r > 0) r = epoll_wait(ep, got, 4, 0);
      close(outer);
    } else {
      r = how == 0   ? epoll_wait(ep, got, 4, q->ms)
          : how == 1 ? epoll_pwait(ep, got, 4, q->ms, q->mask)
          : how == 2 ? epoll_pwait2(ep, got, 4, q->ms < 0 ? NULL : &t, q->mask)
          : how == 3 ? syscall(SYS_epoll_pwait, ep, got, 4, q->ms, q->mask, 8L)
                     : syscall(441 /* epoll_pwait2 */, ep, got, 4, q->ms < 0 ? NULL : &t, q->mask, 8L);
      e = errno;
    }
    for (int i = 0; i < r; i++) q->of[got[i].data.u32].revents = got[i].events;
  } else {
    e = errno;
  }
  close(ep);
  errno = e;
  return r;
}

struct call {
  const char* name;
  long (*function)(struct question*, int how);
  int how, mask, cancels;
};
static const struct call calls[] = {
    {"poll", ask_poll, 0, 0, 1},
    {"__poll_chk", ask_poll, 1, 0, 1},
    {"ppoll", ask_poll, 2, 0, 1},
    {"ppoll with mask", ask_poll, 2, 1, 1},
    {"__ppoll_chk with mask", ask_poll, 3, 1, 1},
    {"syscall poll", ask_poll, 4, 0, 0},
    {"select", ask_select, 0, 0, 1},
    {"pselect", ask_select, 1, 0, 1},
    {"pselect with mask", ask_select, 1, 1, 1},
    {"epoll_wait", ask_epoll, 0, 0, 1},
    {"epoll_pwait", ask_epoll, 1, 0, 1},
    {"epoll_pwait with mask", ask_epoll, 1, 1, 1},
    {"epoll_pwait2", ask_epoll, 2, 0, kEpollPwait2Cancels},
    {"epoll_pwait2 with mask", ask_epoll, 2, 1, kEpollPwait2Cancels},
    {"syscall epoll_pwait", ask_epoll, 3, 0, 0},
    {"syscall epoll_pwait with mask", ask_epoll, 3, 1, 0},
    {"syscall epoll_pwait2", ask_epoll, 5, 0, 0},
    {"syscall epoll_pwait2 with mask", ask_epoll, 5, 1, 0},
    {"syscall ppoll", ask_poll, 5, 0, 0},
    {"syscall ppoll with mask", ask_poll, 5, 1, 0},
    {"syscall pselect6", ask_select, 2, 0, 0},
    {"syscall pselect6 with mask", ask_select, 2, 1, 0},
    {"epoll in epoll", ask_epoll, 4, 0, 1},
};

static long answer(struct job* j) {
  struct question* q = (struct question*)j->buffer;
  const struct call* c = j->more;
  if (q->ms == kCancelDisabled) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    q->ms = kForEver;
  }
  return c->function(q, c->how);
}

enum event {
  READY,
  COMES,
  CLOSES,
  CLOSED,
  SHUT,
  ROOM,
  NO_ROOM,
  BOTH,
  TIMEOUT,
  NO_TIME,
  LONG_TIMEOUT,
  EINTR_,
  RESTARTED,
  CANCEL,
  CANCEL_OFF,
  NONBLOCKING,
  TWO_WAIT,
  MIXED,
  WITH_FILE,
  TWICE,
  MASKED,
  MASKED_PENDING,
  kEvents
};
static const char* const event_names[] = {"ready",
                                          "comes",
                                          "peer closes",
                                          "peer has closed",
                                          "shutdown",
                                          "room comes",
                                          "no room, timeout",
                                          "both asked",
                                          "timeout",
                                          "no time",
                                          "comes before the timeout",
                                          "signal",
                                          "signal that restarts",
                                          "cancel",
                                          "cancel disabled",
                                          "non-blocking",
                                          "two wait",
                                          "last of four comes",
                                          "with a file",
                                          "the same twice",
                                          "signal that the mask blocks",
                                          "signal that the mask lets in"};

static int bits(char* out, const struct question* q) {
  static const struct {
    int bit;
    const char* name;
  } names[] = {{POLLIN, "in"},   {POLLOUT, "out"},   {POLLPRI, "pri"},    {POLLERR, "err"},
               {POLLHUP, "hup"}, {POLLNVAL, "nval"}, {POLLRDHUP, "rdhup"}};
  int n = 0;
  for (int i = 0; i < q->n; i++) {
    n += sprintf(out + n, " %s", q->of[i].revents ? "" : "-");
    for (int k = 0; k < 7; k++)
      if (q->of[i].revents & names[k].bit) n += sprintf(out + n, "+%s", names[k].name);
  }
  return n;
}

static int file = -1;

// A case: the job, what its call is asked, and the descriptors that it is asked about beside the job's own.
struct asking {
  struct job j;
  struct question q;
  struct ends more[3];
  sigset_t none, usr1;
  int flags;  // that j.fd must have at the end
};

static void start_asking(struct asking* a, const struct item* i, int writes) {
  const struct call* c = i->call;
  struct job* j = &a->j;
  memset(a, 0, sizeof *a);
  a->q.n = 1, a->q.ms = kForEver;
  sigemptyset(&a->none);
  sigemptyset(&a->usr1);
  sigaddset(&a->usr1, kInterrupts);
  sigaddset(&a->none, kForSignalfd);
  sigaddset(&a->usr1, kForSignalfd);
  j->e = open_ends(i->kind, writes);
  j->call = answer;
  j->more = c;
  j->buffer = (char*)&a->q;
  j->fd = j->e.a;
  if (c->mask) a->q.mask = &a->none;
  a->q.of[0].fd = j->fd;
  a->q.of[0].events = writes ? POLLOUT : POLLIN;
  a->flags = fcntl(j->fd, F_GETFL);
}

// ---- what happens while the job waits ----

static void data_or_end_comes(struct asking* a, enum event e) {
  struct job* j = &a->j;
  if (e == NONBLOCKING) {
    set_nonblocking(j->fd, 1);
    a->flags = fcntl(j->fd, F_GETFL);
  }
  if (e == LONG_TIMEOUT) a->q.ms = 100000;
  if (e == READY) send_data(&j->e);
  if (e == CLOSED) close_peer(&j->e);
  start_job(j);
  if (e == COMES || e == NONBLOCKING || e == LONG_TIMEOUT) send_data(&j->e);
  if (e == CLOSES) close_peer(&j->e);
  if (e == SHUT) shutdown(j->fd, SHUT_RD);
}

static void room_or_time_comes(struct asking* a, enum event e) {
  struct job* j = &a->j;
  if (e == NO_ROOM || e == BOTH) a->q.ms = 10;
  if (e == TIMEOUT) a->q.ms = 15;
  if (e == NO_TIME) a->q.ms = 0;
  if (e == BOTH) a->q.of[0].events = POLLIN | POLLOUT | POLLPRI;
  if (e == ROOM || e == NO_ROOM) fill(&j->e);
  start_job(j);
  if (e == ROOM)
    while (!j->done) drain(&j->e), pause_ms(1);
}

static void signal_or_request_comes(struct asking* a, enum event e) {
  struct job* j = &a->j;
  if (e == CANCEL_OFF) a->q.ms = kCancelDisabled;
  start_job(j);
  if (e == EINTR_) interrupt_job(j, kInterrupts);
  if (e == RESTARTED) interrupt_job(j, kRestarts);
  if (e == CANCEL || e == CANCEL_OFF) pthread_cancel(j->thread);
  if (e == CANCEL_OFF) {
    pause_ms(2);
    send_data(&j->e);
  }
}

// The call's mask blocks a signal, whose handler runs after the call.
static void masked(struct asking* a) {
  a->q.mask = &a->usr1;
  start_job(&a->j);
  pthread_kill(a->j.thread, kInterrupts);
  pause_ms(2);
  send_data(&a->j.e);
}
// The thread has a signal blocked, and the call's mask lets it in.
static void let_in_by_the_mask(struct asking* a) {
  sigset_t old;
  pthread_sigmask(SIG_BLOCK, &a->usr1, &old);
  start_job(&a->j);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  interrupt_job(&a->j, kInterrupts);
}

// Two jobs wait for the same event, and both get it. Returns the end of the text in `out`.
static char* two_wait(struct asking* a, char* out) {
  struct job k = a->j;
  struct question q2 = a->q;
  k.buffer = (char*)&q2;
  start_job(&a->j);
  start_job(&k);
  send_data(&a->j.e);
  out += end_job(&k, out);
  out += bits(out, &q2);
  return out + sprintf(out, ", ");
}

// The call is asked about several descriptors.
static void several_asked(struct asking* a, enum event e) {
  struct question* q = &a->q;
  int fd = a->j.fd;
  if (e == MIXED) {
    q->n = 4;
    a->more[0] = open_ends(PIPE, 0), a->more[1] = open_ends(TCP, 0), a->more[2] = open_ends(EVENTFD, 0);
    for (int n = 0; n < 3; n++) q->of[n].fd = a->more[n].a, q->of[n].events = POLLIN;
    q->of[3].fd = fd, q->of[3].events = POLLIN;
  } else if (e == WITH_FILE) {
    q->n = 2;
    q->of[1].fd = file, q->of[1].events = POLLIN | POLLOUT;
  } else {  // TWICE
    q->n = 3;
    q->of[1].fd = -1;
    q->of[2].fd = fd, q->of[2].events = POLLIN;
  }
  start_job(&a->j);
  if (e != WITH_FILE) send_data(&a->j.e);
}

static void run(const struct item* i, char* out) {
  enum event e = i->event;
  struct asking a;
  char* at = out;
  start_asking(&a, i, e == ROOM || e == NO_ROOM);
  switch (e) {
    case READY:
    case COMES:
    case CLOSES:
    case CLOSED:
    case SHUT:
    case LONG_TIMEOUT:
    case NONBLOCKING: data_or_end_comes(&a, e); break;
    case ROOM:
    case NO_ROOM:
    case BOTH:
    case TIMEOUT:
    case NO_TIME: room_or_time_comes(&a, e); break;
    case EINTR_:
    case RESTARTED:
    case CANCEL:
    case CANCEL_OFF: signal_or_request_comes(&a, e); break;
    case MASKED: masked(&a); break;
    case MASKED_PENDING: let_in_by_the_mask(&a); break;
    case TWO_WAIT: at = two_wait(&a, at); break;
    default: several_asked(&a, e);
  }
  at += end_job(&a.j, at);
  if (*out != 'c' && *out != 'E') at += bits(at, &a.q);
  if (e == MASKED || e == MASKED_PENDING) at += sprintf(at, ", %s", a.j.handled ? "handled" : "not handled");
  if (fcntl(a.j.fd, F_GETFL) != a.flags) at += sprintf(at, ", its flags changed");
  if (e == MIXED)
    for (int n = 0; n < 3; n++) close_ends(&a.more[n]);
  close_ends(&a.j.e);
}

static int fits(const struct call* c, enum kind kind, enum event e) {
  unsigned b = BIT(kind);
  switch (e) {
    case CLOSES:
      if (b & PIPES && c->function == ask_select) return 1;
      return b & (PIPES | BIT(STREAM) | BIT(SEQPACKET));
    case CLOSED: return b & (PIPES | BIT(STREAM) | BIT(SEQPACKET) | BIT(PTY));
    case SHUT: return b & (BIT(STREAM) | BIT(SEQPACKET) | BIT(TCP));
    case ROOM: return b & (PIPES | STREAMS | BIT(SEQPACKET) | BIT(PTY) | BIT(EVENTFD));
    case NO_ROOM: return b & (PIPES | BIT(STREAM) | BIT(EVENTFD));
    case CANCEL: return c->cancels;
    case WITH_FILE: return c->function != ask_epoll || b & BIT(PIPE);
    case TWICE: return c->function != ask_epoll || b & BIT(PIPE);
    case MASKED:
    case MASKED_PENDING: return c->mask;
    default: return 1;
  }
}

// Two threads wait for different events of one descriptor. The end of one wait must not disturb the other.
struct waits_for {
  int fd, events, got;
};
static void* wait_for_one(void* of) {
  struct waits_for* w = of;
  struct pollfd p = {w->fd, w->events};
  w->got = poll(&p, 1, -1) == 1 ? p.revents : -1;
  return NULL;
}
static void two_things(const struct item* i, char* out) {
  struct ends e = open_ends(i->kind, 1);
  fill(&e);
  struct waits_for in = {e.a, POLLIN}, room = {e.a, POLLOUT};
  pthread_t t[2];
  assert(pthread_create(&t[0], NULL, wait_for_one, &in) == 0);
  assert(pthread_create(&t[1], NULL, wait_for_one, &room) == 0);
  pause_ms(30);
  drain(&e);
  pthread_join(t[1], NULL);
  pause_ms(10);
  assert(write(e.b, "x\n", 2) == 2);
  pthread_join(t[0], NULL);
  sprintf(out, "in %d, room %d", in.got & POLLIN, room.got & POLLOUT);
  close_ends(&e);
}

int main(int argc, char** argv) {
  char name[] = "fileXXXXXX";
  begin(argc, argv);
  file = mkostemp(name, O_CLOEXEC);
  unlink(name);
  for (int n = 0; n < (int)(sizeof calls / sizeof *calls); n++)
    for (int k = 0; k < kKinds; k++)
      for (int e = 0; e < kEvents; e++)
        if (fits(&calls[n], k, e)) {
          struct item* i = add_item(run, calls[n].name, kind_names[k], event_names[e]);
          i->call = &calls[n], i->kind = k, i->event = e;
        }
  for (int k = 0; k < kKinds; k++)
    if (k == PTY || k == STREAM || k == TCP) add_item(two_things, "two", kind_names[k], "different")->kind = k;
  return run_items();
}
