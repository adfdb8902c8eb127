// SPDX-License-Identifier: MIT
// Every call that reads or writes a descriptor, on every kind of descriptor, with everything that may end its wait.
// Above 500 lines, because each of its tables is crossed with the others.
#include "waiting.h"

#include "nptl.h"

extern ssize_t __read_chk(int, void*, size_t, size_t);
extern ssize_t __recv_chk(int, void*, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void*, size_t, size_t, int, struct sockaddr*, socklen_t*);

// ---- calls that read ----

static struct iovec* halves(struct job* j, struct iovec* v) {
  size_t n = j->size < 3 ? 0 : 3;
  v[0] = (struct iovec){j->buffer, n};
  v[1] = (struct iovec){j->buffer + n, j->size - n};
  return v;
}
static long do_read(struct job* j) { return read(j->fd, j->buffer, j->size); }
static long do_read_chk(struct job* j) { return __read_chk(j->fd, j->buffer, j->size, j->size); }
static long do_read_number(struct job* j) { return syscall(SYS_read, j->fd, j->buffer, j->size); }
static long do_readv(struct job* j) {
  struct iovec v[2];
  return readv(j->fd, halves(j, v), 2);
}
static long do_preadv2(struct job* j) {
  struct iovec v[2];
  return preadv2(j->fd, halves(j, v), 2, -1, 0);
}
static long do_recv(struct job* j) { return recv(j->fd, j->buffer, j->size, j->flags); }
static long do_recv_chk(struct job* j) { return __recv_chk(j->fd, j->buffer, j->size, j->size, j->flags); }
static long do_recvfrom(struct job* j) {
  struct sockaddr_storage from;
  socklen_t n = sizeof from;
  return recvfrom(j->fd, j->buffer, j->size, j->flags, (struct sockaddr*)&from, &n);
}
static long do_recvfrom_chk(struct job* j) { return __recvfrom_chk(j->fd, j->buffer, j->size, j->size, j->flags, NULL, NULL); }
static long do_recvmsg(struct job* j) {
  struct iovec v[2];
  struct msghdr m = {.msg_iov = halves(j, v), .msg_iovlen = 2};
  return recvmsg(j->fd, &m, j->flags);
}
static long do_recvmmsg(struct job* j) {
  struct iovec v[2];
  struct mmsghdr m = {.msg_hdr = {.msg_iov = halves(j, v), .msg_iovlen = 2}};
  int r = recvmmsg(j->fd, &m, 1, j->flags, NULL);
  return r == 1 ? (long)m.msg_len : r;
}
static long do_splice_in(struct job* j) { return splice(j->fd, NULL, j->other[1], NULL, j->size, 0); }
static long do_tee_in(struct job* j) { return tee(j->fd, j->other[1], j->size, 0); }

// ---- calls that write ----

static long do_write(struct job* j) { return write(j->fd, j->buffer, j->size); }
static long do_write_number(struct job* j) { return syscall(SYS_write, j->fd, j->buffer, j->size); }
static long do_writev(struct job* j) {
  struct iovec v[2];
  return writev(j->fd, halves(j, v), 2);
}
static long do_pwritev2(struct job* j) {
  struct iovec v[2];
  return pwritev2(j->fd, halves(j, v), 2, -1, 0);
}
static long do_send(struct job* j) { return send(j->fd, j->buffer, j->size, j->flags); }
static long do_sendto(struct job* j) { return sendto(j->fd, j->buffer, j->size, j->flags, NULL, 0); }
static long do_sendmsg(struct job* j) {
  struct iovec v[2];
  struct msghdr m = {.msg_iov = halves(j, v), .msg_iovlen = 2};
  return sendmsg(j->fd, &m, j->flags);
}
static long do_sendmmsg(struct job* j) {
  struct iovec v[2];
  struct mmsghdr m = {.msg_hdr = {.msg_iov = halves(j, v), .msg_iovlen = 2}};
  int r = sendmmsg(j->fd, &m, 1, j->flags);
  return r == 1 ? (long)m.msg_len : r;
}
static long do_splice_out(struct job* j) { return splice(j->other[0], NULL, j->fd, NULL, j->size, 0); }
static long do_tee_out(struct job* j) { return tee(j->other[0], j->fd, j->size, 0); }
static long do_vmsplice(struct job* j) {
  struct iovec v[2];
  return vmsplice(j->fd, halves(j, v), 2, 0);
}
static long do_sendfile(struct job* j) { return sendfile(j->fd, j->other[0], NULL, j->size); }

enum { kFlags = 1, kCancels = 2, kPipe = 4, kFile = 8 };
struct call {
  const char* name;
  long (*function)(struct job*);
  unsigned kinds;
  int has;
};
static const struct call readers[] = {
    {"read", do_read, ALL, kCancels},
    {"__read_chk", do_read_chk, ALL, kCancels},
    {"syscall read", do_read_number, ALL, 0},
    {"readv", do_readv, BYTES | SOCKETS, kCancels},
    {"preadv2", do_preadv2, BYTES | SOCKETS, kCancels},
    {"recv", do_recv, SOCKETS, kFlags | kCancels},
    {"__recv_chk", do_recv_chk, STREAMS, kFlags | kCancels},
    {"recvfrom", do_recvfrom, SOCKETS, kFlags | kCancels},
    {"__recvfrom_chk", do_recvfrom_chk, STREAMS, kFlags | kCancels},
    {"recvmsg", do_recvmsg, SOCKETS, kFlags | kCancels},
    {"recvmmsg", do_recvmmsg, SOCKETS, kFlags | kCancels},
    {"splice from", do_splice_in, PIPES | STREAMS, kPipe | kCancels},
    {"tee from", do_tee_in, PIPES, kPipe | kCancels},
};
static const struct call writers[] = {
    {"write", do_write, BYTES | BIT(DGRAM) | BIT(SEQPACKET) | BIT(EVENTFD), kCancels},
    {"syscall write", do_write_number, BYTES | BIT(EVENTFD), 0},
    {"writev", do_writev, BYTES | BIT(DGRAM) | BIT(SEQPACKET), kCancels},
    {"pwritev2", do_pwritev2, BYTES, kCancels},
    {"send", do_send, STREAMS | BIT(DGRAM) | BIT(SEQPACKET), kFlags | kCancels},
    {"sendto", do_sendto, STREAMS | BIT(DGRAM) | BIT(SEQPACKET), kFlags | kCancels},
    {"sendmsg", do_sendmsg, STREAMS | BIT(DGRAM) | BIT(SEQPACKET), kFlags | kCancels},
    {"sendmmsg", do_sendmmsg, STREAMS | BIT(DGRAM) | BIT(SEQPACKET), kFlags | kCancels},
    {"splice to", do_splice_out, PIPES | STREAMS, kPipe | kCancels},
    {"tee to", do_tee_out, PIPES, kPipe | kCancels},
    {"vmsplice to", do_vmsplice, PIPES, kCancels},
    {"sendfile to", do_sendfile, PIPES | STREAMS, kFile},
};

// ---- what happens ----

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

static void prepare(struct job* j, const struct item* i, int writes) {
  const struct call* c = i->call;
  memset(j, 0, sizeof *j);
  j->e = open_ends(i->kind, writes);
  j->fd = j->e.a;
  j->call = c->function;
  j->other[0] = j->other[1] = -1;
  if (c->has & kPipe) assert(pipe2(j->other, O_CLOEXEC) == 0);
}

static int check_data(struct job* j, char* out) {
  unsigned kinds = BYTES | SOCKETS;
  if (j->result > 0 && kinds & BIT(j->e.kind) && j->other[1] < 0)
    for (long k = 0; k < j->result; k++)
      if (j->buffer[k] != "hello"[k % 5]) return sprintf(out, " with wrong bytes");
  return 0;
}

static void finish(struct job* j, int flags_before, char* out) {
  if (j->e.a >= 0 && fcntl(j->e.a, F_GETFL) != flags_before) strcat(out, ", its flags changed");
  close_ends(&j->e);
  if (j->other[0] >= 0) close(j->other[0]);
  if (j->other[1] >= 0) close(j->other[1]);
  free(j->buffer);
}

static long disabled_call(struct job* j) {
  const struct call* c = j->more;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  long r = c->function(j);
  int e = errno;
  errno = e;
  return r;
}

static void run_reader(const struct item* i, char* out) {
  struct job j;
  const struct call* c = i->call;
  prepare(&j, i, 0);
  j.size = 256;
  j.buffer = calloc(1, j.size);
  int a = j.fd, flags = fcntl(a, F_GETFL);
  char* at = out;
  switch (i->event) {
    case READY:
      send_data(&j.e);
      start_job(&j);
      break;
    case COMES:
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
      shutdown(a, SHUT_RD);
      break;
    case TIMEOUT:
      set_timeout(a, SO_RCVTIMEO, 15);
      start_job(&j);
      break;
    case EINTR_:
      start_job(&j);
      interrupt_job(&j, kInterrupts);
      break;
    case RESTARTED:
      start_job(&j);
      signal_job(&j, kRestarts);
      send_data(&j.e);
      break;
    case RESTART_TIMEOUT:
      set_timeout(a, SO_RCVTIMEO, 60000);
      start_job(&j);
      interrupt_job(&j, kRestarts);
      break;
    case CANCEL:
      start_job(&j);
      pthread_cancel(j.thread);
      if (!(c->has & kCancels)) {
        pause_ms(2);
        send_data(&j.e);
      }
      break;
    case CANCEL_OFF:
      j.call = disabled_call, j.more = c;
      start_job(&j);
      pthread_cancel(j.thread);
      pause_ms(2);
      send_data(&j.e);
      break;
    case NONBLOCKING:
      set_nonblocking(a, 1);
      flags = fcntl(a, F_GETFL);
      start_job(&j);
      break;
    case READY_NONBLOCKING:
      send_data(&j.e);
      set_nonblocking(a, 1);
      flags = fcntl(a, F_GETFL);
      start_job(&j);
      break;
    case FAR_NONBLOCKING:
      set_nonblocking(j.e.b, 1);
      start_job(&j);
      send_data(&j.e);
      break;
    case TWO_WAIT: {  // each gets one of two
      struct job k = j;
      k.buffer = calloc(1, k.size);
      j.size = k.size = i->kind == SIGNALFD ? 128 : i->kind == EVENTFD || i->kind == TIMERFD ? 8 : i->kind == INOTIFY ? 32 : 5;
      start_job(&j);
      start_job(&k);
      send_data(&j.e);
      while (!j.done && !k.done) pause_ms(1);
      send_data(&j.e);
      at += end_job(&k, at);
      at += check_data(&k, at);
      *at++ = ' ';
      free(k.buffer);
      break;
    }
    case NOTHING_ASKED:
      j.size = 0;
      send_data(&j.e);
      start_job(&j);
      break;
    case DONTWAIT:
      j.flags = MSG_DONTWAIT;
      start_job(&j);
      break;
    case PEEK:
    case PEEK_TWICE:
      j.flags = MSG_PEEK;
      start_job(&j);
      send_data(&j.e);
      break;
    case LOW_WATER: {
      int ten = 10;
      setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
      j.size = 10;
      start_job(&j);
      send_data(&j.e);
      pause_ms(3);
      // Who came late, and has five, waits for five more, but is woken for ten only.
      send_data(&j.e);
      send_data(&j.e);
      break;
    }
    default:  // MSG_WAITALL
      j.size = 10;
      j.flags = MSG_WAITALL | (i->event == ALL_PEEK ? MSG_PEEK : i->event == ALL_DONTWAIT ? MSG_DONTWAIT : 0);
      if (i->event == ALL_TIMEOUT) set_timeout(a, SO_RCVTIMEO, 200);
      if (i->event == ALL_DONTWAIT || i->event == ALL_TIMEOUT) {  // a part that came later could come too late
        send_data(&j.e);
        start_job(&j);
        break;
      }
      start_job(&j);
      send_data(&j.e);
      pause_ms(3);
      if (i->event == ALL_MORE || i->event == ALL_PEEK) send_data(&j.e);
      if (i->event == ALL_CLOSES) {
        close(j.e.b);
        j.e.b = -1;
      }
      if (i->event == ALL_SIGNAL) interrupt_job(&j, kRestarts);
  }
  at += end_job(&j, at);
  at += check_data(&j, at);
  if (i->event == CANCEL && c->has & kCancels) {  // nothing was lost
    send_data(&j.e);
    at += sprintf(at, ", then %zd", read(a, j.buffer, 256));
  }
  if (i->event == PEEK_TWICE || i->event == ALL_PEEK) at += sprintf(at, ", then %zd", read(a, j.buffer, 256));
  finish(&j, flags, out);
}

static int reader_event_fits(const struct call* c, enum kind kind, enum event e) {
  unsigned b = BIT(kind);
  switch (e) {
    case CLOSES:
    case CLOSED: return b & (PIPES | CONNECTED | BIT(PTY)) && (e == CLOSED || kind != PTY);
    case SHUT: return b & (CONNECTED | BIT(UDP) | BIT(DGRAM));
    case TIMEOUT:
    case RESTART_TIMEOUT: return !!(b & SOCKETS);
    case FAR_NONBLOCKING: return b & (PIPES | SOCKETS | BIT(PTY));
    case TWO_WAIT: return b & (PIPES | SOCKETS | BIT(EVENTFD) | BIT(SIGNALFD)) && !strstr(c->name, "tee");
    case NOTHING_ASKED: return b & (PIPES | SOCKETS | BIT(PTY)) && !(c->has & kPipe);
    case DONTWAIT: return c->has & kFlags;
    case PEEK:
    case PEEK_TWICE: return c->has & kFlags;
    case ALL_MORE:
    case ALL_CLOSES:
    case ALL_SIGNAL:
    case ALL_TIMEOUT:
    case ALL_DONTWAIT:
    case ALL_PEEK: return c->has & kFlags && b & (e == ALL_PEEK ? BIT(TCP) : STREAMS);  // others may give less, if nothing more is there
    case LOW_WATER: return b & STREAMS && !(c->has & kPipe);
    default: return e < CLOSES || (e > SHUT && e < PART_DRAINED);
  }
}

// ---- writing ----

// Until the other end has some of it.
static void until_some(struct job* j) {
  struct pollfd p = {j->e.b, POLLIN, 0};
  while (poll(&p, 1, 0) == 0 && !j->done) pause_ms(1);
}
static void run_writer(const struct item* i, char* out) {
  struct job j;
  const struct call* c = i->call;
  int part = i->event >= PART_DRAINED;
  long got = 0;
  prepare(&j, i, 1);
  int a = j.fd, flags = fcntl(a, F_GETFL);
  j.size = part ? 1 << 20 : i->kind == EVENTFD ? 8 : 2000;
  j.buffer = malloc(j.size);
  for (size_t k = 0; k < j.size; k++) j.buffer[k] = "hello"[k % 5];
  if (i->kind == EVENTFD) *(uint64_t*)j.buffer = 7;
  if (c->has & kPipe) assert(write(j.other[1], j.buffer, 2000) == 2000);
  if (c->has & kFile) {
    char name[] = "sentXXXXXX";
    j.other[0] = mkostemp(name, O_CLOEXEC);
    assert(j.other[0] >= 0 && write(j.other[0], j.buffer, j.size) == (ssize_t)j.size && lseek(j.other[0], 0, SEEK_SET) == 0);
    unlink(name);
  }
  if (!part && i->event != READY && i->event != CLOSED) fill(&j.e);
  switch (i->event) {
    case READY: start_job(&j); break;
    case CLOSED:
      close(j.e.b);
      j.e.b = -1;
      start_job(&j);
      break;
    case COMES:  // room
      start_job(&j);
      while (!j.done) drain(&j.e), pause_ms(1);
      break;
    case CLOSES:
    case PART_CLOSES:
      start_job(&j);
      if (part) until_some(&j);
      close(j.e.b);
      j.e.b = -1;
      break;
    case SHUT:
      start_job(&j);
      shutdown(a, SHUT_WR);
      break;
    case TIMEOUT:
    case PART_TIMEOUT:
      set_timeout(a, SO_SNDTIMEO, 15);
      start_job(&j);
      break;
    case EINTR_:
    case PART_SIGNAL:
      start_job(&j);
      if (part) until_some(&j);
      interrupt_job(&j, kInterrupts);
      break;
    case PART_RESTART:
      start_job(&j);
      interrupt_job(&j, kRestarts);
      break;
    case RESTARTED:
      start_job(&j);
      signal_job(&j, kRestarts);
      while (!j.done) drain(&j.e), pause_ms(1);
      break;
    case RESTART_TIMEOUT:
      set_timeout(a, SO_SNDTIMEO, 60000);
      start_job(&j);
      interrupt_job(&j, kRestarts);
      break;
    case CANCEL:
      start_job(&j);
      pthread_cancel(j.thread);
      if (!(c->has & kCancels)) {
        pause_ms(2);
        while (!j.done) drain(&j.e), pause_ms(1);
      }
      break;
    case CANCEL_OFF:
      j.call = disabled_call, j.more = c;
      start_job(&j);
      pthread_cancel(j.thread);
      pause_ms(2);
      while (!j.done) drain(&j.e), pause_ms(1);
      break;
    case NONBLOCKING:
    case PART_NONBLOCKING:
      set_nonblocking(a, 1);
      flags = fcntl(a, F_GETFL);
      start_job(&j);
      break;
    case DONTWAIT:
    case PART_DONTWAIT:
      j.flags = MSG_DONTWAIT;
      start_job(&j);
      break;
    case PART_DRAINED:
      start_job(&j);
      while (!j.done) got += drain(&j.e), pause_ms(1);
      break;
    default: assert(0);
  }
  int partial = part && i->event != PART_DRAINED;
  char* at = out;
  at += end_job(&j, at);
  if (part && j.result > 0 && j.done) {
    if (partial) at = out + sprintf(out, "%s", j.result < (long)j.size ? "a part" : "all");
    if (j.e.b >= 0) {
      for (int quiet = 0; quiet < 5;) {
        long n = drain(&j.e);
        got += n;
        quiet = n ? 0 : quiet + 1;
        if (got >= j.result) break;
        pause_ms(2);
      }
      if (got != j.result) at += sprintf(at, ", but %ld of %ld arrived", got, j.result);
    }
  }
  finish(&j, flags, out);
}

static int writer_event_fits(const struct call* c, enum kind kind, enum event e) {
  unsigned b = BIT(kind);
  switch (e) {
    case CLOSES:
    case CLOSED: return b & (PIPES | CONNECTED | BIT(DGRAM));
    case SHUT: return b & (STREAMS | BIT(SEQPACKET));
    case TIMEOUT:
    case RESTART_TIMEOUT: return !!(b & SOCKETS);
    case READY:
    case COMES:
    case EINTR_:
    case RESTARTED:
    case CANCEL:
    case CANCEL_OFF: return 1;
    case NONBLOCKING: return c->function != do_vmsplice;  // which does not look at it
    case DONTWAIT: return c->has & kFlags;
    case PART_DONTWAIT: return c->has & kFlags && b & STREAMS;
    case PART_TIMEOUT: return b & STREAMS && !(c->has & kPipe);
    case PART_DRAINED:  // some stop when a pipe was full once
      if (c->function == do_vmsplice || (c->function == do_sendfile && b & PIPES)) return 0;
      __attribute__((fallthrough));
    case PART_SIGNAL:
    case PART_RESTART:
    case PART_CLOSES:
    case PART_NONBLOCKING:
      return b & BYTES && !(c->has & kPipe) && !(e == PART_CLOSES && kind == PTY) && !(e == PART_NONBLOCKING && c->function == do_vmsplice);
    default: return 0;
  }
}

int main(int argc, char** argv) {
  int nptl = nptl_release();
  begin(argc, argv);
  for (int n = 0; n < (int)(sizeof readers / sizeof *readers); n++)
    for (int k = 0; k < kKinds; k++)
      for (int e = 0; e < kEvents; e++)
        if (readers[n].kinds & BIT(k) && reader_event_fits(&readers[n], k, e)) {
          struct item* i = add_item(run_reader, readers[n].name, kind_names[k], event_names[e]);
          i->call = &readers[n], i->kind = k, i->event = e;
          // Before 2.36, NPTL's was no cancellation point (bug 29274): there, read() itself stands for it.
          if (e == CANCEL && readers[n].function == do_read_chk && nptl && nptl < 36) i->call = &readers[0];
        }
  for (int n = 0; n < (int)(sizeof writers / sizeof *writers); n++)
    for (int k = 0; k < kKinds; k++)
      for (int e = 0; e < kEvents; e++)
        if (writers[n].kinds & BIT(k) && writer_event_fits(&writers[n], k, e)) {
          struct item* i = add_item(run_writer, writers[n].name, kind_names[k], event_names[e]);
          i->call = &writers[n], i->kind = k, i->event = e;
        }
  return run_items();
}
