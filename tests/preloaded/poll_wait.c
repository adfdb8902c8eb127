// SPDX-License-Identifier: MIT
// Calls that wait until descriptors are ready: each on every kind of descriptor, mixed ones, masks, timeouts, epoll in epoll.
#include "waiting.h"
#include "old_libc.h"

extern int __poll_chk(struct pollfd*, nfds_t, int, size_t);
extern int __ppoll_chk(struct pollfd*, nfds_t, const struct timespec*, const sigset_t*, size_t);

// What a call is asked, and what it said: bits of poll().
struct question {
  int n;
  struct {
    int fd, events, revents;
  } of[4];
  int ms;  // -1: for ever
  const sigset_t* mask;
};

// All calls answer the same: how many, and for each the bits, in poll's words.
static long ask_poll(struct question* q, int how) {
  struct pollfd p[4];
  struct timespec t = {q->ms / 1000, q->ms % 1000 * 1000000}, before = t;
  for (int i = 0; i < q->n; i++) p[i] = (struct pollfd){q->of[i].fd, q->of[i].events, -1};
  int r = how == 0   ? poll(p, q->n, q->ms)
          : how == 1 ? __poll_chk(p, q->n, q->ms, sizeof p)
          : how == 2 ? ppoll(p, q->n, q->ms < 0 ? NULL : &t, q->mask)
          : how == 3 ? __ppoll_chk(p, q->n, q->ms < 0 ? NULL : &t, q->mask, sizeof p)
          : how == 4 ? syscall(SYS_poll, p, q->n, q->ms)
                     : syscall(SYS_ppoll, p, q->n, q->ms < 0 ? NULL : &t, q->mask, 8L);
  // By number, what is left of the time is told.
  if (how == 5 && q->ms >= 0 && (t.tv_sec * 1000 + t.tv_nsec / 1000000 > q->ms || (r == 0 && (t.tv_sec || t.tv_nsec)))) return 9996;
  if (how == 5) t = before;
  int e = errno;
  if (t.tv_sec != before.tv_sec || t.tv_nsec != before.tv_nsec) return 9999;  // not to be touched
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
  // What is left of the time is told by select alone.
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
    if (how == 4) {  // one in the other
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
  if (q->ms == -2) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    q->ms = -1;
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

static void run(const struct item* i, char* out) {
  struct job j;
  const struct call* c = i->call;
  enum event e = i->event;
  int writes = e == ROOM || e == NO_ROOM;
  memset(&j, 0, sizeof j);
  struct question q = {.n = 1, .ms = -1}, q2;
  sigset_t none, usr1;
  struct ends more[3];
  char* at = out;
  sigemptyset(&none);
  sigemptyset(&usr1);
  sigaddset(&usr1, kInterrupts);
  sigaddset(&none, kForSignalfd);
  sigaddset(&usr1, kForSignalfd);
  j.e = open_ends(i->kind, writes);
  j.call = answer;
  j.more = c;
  j.buffer = (char*)&q;
  j.fd = j.e.a;
  if (c->mask) q.mask = &none;
  q.of[0].fd = j.fd;
  q.of[0].events = writes ? POLLOUT : POLLIN;
  int flags = fcntl(j.fd, F_GETFL);
  switch (e) {
    case READY:
      send_data(&j.e);
      start_job(&j);
      break;
    case NONBLOCKING:
      set_nonblocking(j.fd, 1);
      flags = fcntl(j.fd, F_GETFL);
      __attribute__((fallthrough));
    case COMES:
      start_job(&j);
      send_data(&j.e);
      break;
    case LONG_TIMEOUT:
      q.ms = 100000;
      start_job(&j);
      send_data(&j.e);
      break;
    case CLOSES:
      start_job(&j);
      close(j.e.b);
      j.e.b = -1;
      break;
    case CLOSED:
      close(j.e.b);
      j.e.b = -1;
      start_job(&j);
      break;
    case SHUT:
      start_job(&j);
      shutdown(j.fd, SHUT_RD);
      break;
    case ROOM:
      fill(&j.e);
      start_job(&j);
      while (!j.done) drain(&j.e), pause_ms(1);
      break;
    case NO_ROOM:
      q.ms = 10;
      fill(&j.e);
      start_job(&j);
      break;
    case BOTH:
      q.of[0].events = POLLIN | POLLOUT | POLLPRI;
      q.ms = 10;
      start_job(&j);
      break;
    case TIMEOUT:
      q.ms = 15;
      start_job(&j);
      break;
    case NO_TIME:
      q.ms = 0;
      start_job(&j);
      break;
    case EINTR_:
      start_job(&j);
      interrupt_job(&j, kInterrupts);
      break;
    case RESTARTED:
      start_job(&j);
      interrupt_job(&j, kRestarts);
      break;
    case CANCEL:
      start_job(&j);
      pthread_cancel(j.thread);
      break;
    case CANCEL_OFF:
      q.ms = -2;
      start_job(&j);
      pthread_cancel(j.thread);
      pause_ms(2);
      send_data(&j.e);
      break;
    case TWO_WAIT: {  // both are told
      struct job k = j;
      q2 = q;
      k.buffer = (char*)&q2;
      start_job(&j);
      start_job(&k);
      send_data(&j.e);
      at += end_job(&k, at);
      at += bits(at, &q2);
      at += sprintf(at, ", ");
      break;
    }
    case MIXED:
      q.n = 4;
      more[0] = open_ends(PIPE, 0), more[1] = open_ends(TCP, 0), more[2] = open_ends(EVENTFD, 0);
      for (int n = 0; n < 3; n++) q.of[n].fd = more[n].a, q.of[n].events = POLLIN;
      q.of[3].fd = j.fd, q.of[3].events = POLLIN;
      start_job(&j);
      send_data(&j.e);
      break;
    case WITH_FILE:
      q.n = 2;
      q.of[1].fd = file, q.of[1].events = POLLIN | POLLOUT;
      start_job(&j);
      break;
    case TWICE:
      q.n = 3;
      q.of[1].fd = -1;
      q.of[2].fd = j.fd, q.of[2].events = POLLIN;
      start_job(&j);
      send_data(&j.e);
      break;
    case MASKED:  // by the mask of the call: the handler runs after it
      q.mask = &usr1;
      start_job(&j);
      pthread_kill(j.thread, kInterrupts);
      pause_ms(2);
      send_data(&j.e);
      break;
    case MASKED_PENDING: {  // blocked but in the call
      sigset_t old;
      pthread_sigmask(SIG_BLOCK, &usr1, &old);
      start_job(&j);
      pthread_sigmask(SIG_SETMASK, &old, NULL);
      interrupt_job(&j, kInterrupts);
      break;
    }
    default: assert(0);
  }
  at += end_job(&j, at);
  if (*out != 'c' && *out != 'E') at += bits(at, &q);
  if (e == MASKED || e == MASKED_PENDING) at += sprintf(at, ", %s", j.handled ? "handled" : "not handled");
  if (fcntl(j.fd, F_GETFL) != flags) at += sprintf(at, ", its flags changed");
  if (e == MIXED)
    for (int n = 0; n < 3; n++) close_ends(&more[n]);
  close_ends(&j.e);
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

// ---- what is wrong, and nothing to wait for ----

#define SAY(call) \
  do { \
    errno = 0; \
    long r_ = (call); \
    at += sprintf(at, " %s", r_ < 0 ? error_name(errno) : r_ == 0 ? "0" : r_ == 1 ? "1" : "more"); \
  } while (0)
static void bad(const struct item* i, char* out) {
  char* at = out;
  int fd[2], closed;
  struct epoll_event ev = {.events = EPOLLIN};
  struct timespec wrong = {0, 1000000000}, negative = {-1, 0}, none = {0, 0};
  struct timeval wrong_tv = {0, -1}, much_tv = {0, 1500000}, none_tv = {0, 0};
  struct pollfd p = {-1, POLLIN, 77};
  void* volatile nowhere = (void*)8;  // volatile: compilers warn of what they see, and it is meant
  volatile int less = -1, many = 1 << 30;
  fd_set set;
  assert(pipe2(fd, O_CLOEXEC) == 0);
  assert(write(fd[1], "x", 1) == 1);
  closed = 1000;  // far from what other cases open
  int ep = epoll_create1(EPOLL_CLOEXEC);
  if (i->event == 0) {
    SAY(poll(&p, 1, 1));
    at += sprintf(at, " %d", p.revents);
    p.fd = closed;
    SAY(poll(&p, 1, -1));
    at += sprintf(at, " %d", p.revents);
    SAY(poll(nowhere, 1, -1));
    SAY(poll(NULL, 0, 3));
    SAY(poll(&p, many, 0));
    SAY(ppoll(&p, 1, &wrong, NULL));
    SAY(ppoll(&p, 1, &negative, NULL));
    SAY(ppoll(NULL, 0, &none, NULL));
  } else if (i->event == 1) {
    FD_ZERO(&set);
    SAY(select(-1, &set, NULL, NULL, &none_tv));
    SAY(select(0, NULL, NULL, NULL, &none_tv));
    SAY(select(0, NULL, NULL, NULL, &wrong_tv));
    FD_SET(closed, &set);
    SAY(select(closed + 1, &set, NULL, NULL, NULL));
    at += sprintf(at, " %d", FD_ISSET(closed, &set) != 0);
    FD_ZERO(&set);
    FD_SET(fd[0], &set);
    SAY(select(fd[0], &set, NULL, NULL, &none_tv));
    FD_SET(fd[0], &set);
    SAY(select(fd[0] + 1, &set, NULL, NULL, &much_tv));
    at += sprintf(at, " %d", FD_ISSET(fd[0], &set) != 0);
    SAY(select(fd[0] + 1, nowhere, NULL, NULL, &none_tv));
    SAY(pselect(0, NULL, NULL, NULL, &wrong, NULL));
    SAY(pselect(0, NULL, NULL, NULL, &negative, NULL));
    SAY(pselect(0, NULL, NULL, NULL, &none, NULL));
  } else {
    SAY(epoll_wait(ep, &ev, 0, 0));
    SAY(epoll_wait(ep, &ev, less, -1));
    SAY(epoll_wait(ep, &ev, many, -1));
    SAY(epoll_wait(closed, &ev, 1, -1));
    SAY(epoll_wait(-1, &ev, 1, -1));
    SAY(epoll_wait(fd[0], &ev, 1, -1));
    SAY(epoll_wait(ep, &ev, 1, 0));
    SAY(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &ev));
    SAY(epoll_ctl(ep, EPOLL_CTL_ADD, file, &ev));
    SAY(epoll_ctl(ep, EPOLL_CTL_ADD, fd[0], &ev));
    SAY(epoll_wait(ep, nowhere, 1, -1));
    SAY(epoll_wait(ep, &ev, 1, -5));
    SAY(epoll_pwait2(ep, &ev, 1, &wrong, NULL));
    SAY(epoll_pwait2(ep, &ev, 1, &negative, NULL));
    SAY(epoll_pwait2(ep, &ev, 1, (void*)8, NULL));
  }
  close(ep), close(fd[0]), close(fd[1]);
}

// Two wait for different things of one descriptor: what ends the one must leave the other's wait whole.
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
  close(dup2(0, 1000));  // select() passes over numbers that the table of descriptors never had
  file = mkostemp(name, O_CLOEXEC);
  unlink(name);
  for (int n = 0; n < (int)(sizeof calls / sizeof *calls); n++)
    for (int k = 0; k < kKinds; k++)
      for (int e = 0; e < kEvents; e++)
        if (fits(&calls[n], k, e)) {
          struct item* i = add_item(run, calls[n].name, kind_names[k], event_names[e]);
          i->call = &calls[n], i->kind = k, i->event = e;
        }
  for (int n = 0; n < 3; n++) add_item(bad, "what is wrong", n == 0 ? "poll" : n == 1 ? "select" : "epoll", "")->event = n;
  for (int k = 0; k < kKinds; k++)
    if (k == PTY || k == STREAM || k == TCP) add_item(two_things, "two", kind_names[k], "different")->kind = k;
  return run_items();
}
