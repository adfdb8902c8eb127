// SPDX-License-Identifier: MIT
// Every call that reads from a descriptor, on every kind of descriptor, with everything that may end its wait.
#include "io_wait.h"

#include "nptl.h"

extern ssize_t __read_chk(int, void*, size_t, size_t);
extern ssize_t __recv_chk(int, void*, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void*, size_t, size_t, int, struct sockaddr*, socklen_t*);

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

static int check_data(struct job* j, char* out) {
  unsigned kinds = BYTES | SOCKETS;
  if (j->result > 0 && kinds & BIT(j->e.kind) && j->other[1] < 0)
    for (long k = 0; k < j->result; k++)
      if (j->buffer[k] != "hello"[k % 5]) return sprintf(out, " with wrong bytes");
  return 0;
}

// ---- what happens to the reader ----

// A timer that is over may ring some microseconds later.
static void send_and_see(struct job* j) {
  send_data(&j->e);
  poll(&(struct pollfd){j->e.a, POLLIN, 0}, 1, 1000);
}

static void data_or_end_comes(struct job* j, enum event e) {
  switch (e) {
    case READY:
      send_and_see(j);
      start_job(j);
      break;
    case COMES:
      start_job(j);
      send_data(&j->e);
      break;
    case CLOSES:
      start_job(j);
      close_peer(&j->e);
      break;
    case CLOSED:
      close_peer(&j->e);
      start_job(j);
      break;
    default:  // SHUT
      start_job(j);
      shutdown(j->fd, SHUT_RD);
  }
}

static void time_or_signal_comes(struct job* j, enum event e) {
  if (e == TIMEOUT) set_timeout(j->fd, SO_RCVTIMEO, 15);
  if (e == RESTART_TIMEOUT) set_timeout(j->fd, SO_RCVTIMEO, 60000);
  start_job(j);
  if (e == EINTR_) interrupt_job(j, kInterrupts);
  if (e == RESTART_TIMEOUT) interrupt_job(j, kRestarts);
  if (e == RESTARTED) {
    signal_job(j, kRestarts);
    send_data(&j->e);
  }
}

// A reader that no request can end gets data.
static void request_comes(struct job* j, const struct call* c, enum event e) {
  if (e == CANCEL_OFF) disable_cancel(j, c);
  start_job(j);
  pthread_cancel(j->thread);
  if (e == CANCEL && c->has & kCancels) return;
  pause_ms(2);
  send_data(&j->e);
}

// Sets O_NONBLOCK at one of the two ends. Returns the flags that the reader's end must have at the end.
static int nonblocking_read(struct job* j, enum event e, int flags) {
  if (e == READY_NONBLOCKING) send_and_see(j);
  if (e == FAR_NONBLOCKING) set_nonblocking(j->e.b, 1);
  else flags = now_nonblocking(j->fd);
  start_job(j);
  if (e == FAR_NONBLOCKING) send_data(&j->e);
  return flags;
}

// Two readers get one of two pieces of data each. Returns the end of the text in `out`.
static char* two_wait(struct job* j, enum kind kind, char* out) {
  struct job k = *j;
  k.buffer = calloc(1, k.size);
  j->size = k.size = kind == SIGNALFD ? 128 : kind == EVENTFD || kind == TIMERFD ? 8 : kind == INOTIFY ? 32 : 5;
  start_job(j);
  start_job(&k);
  send_data(&j->e);
  while (!j->done && !k.done) pause_ms(1);
  send_data(&j->e);
  out += end_job(&k, out);
  out += check_data(&k, out);
  *out++ = ' ';
  free(k.buffer);
  return out;
}

static void low_water(struct job* j) {
  int ten = 10;
  setsockopt(j->fd, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
  j->size = 10;
  start_job(j);
  send_data(&j->e);
  pause_ms(3);
  // A reader that came late has taken five bytes. It waits for five more, but only ten wake it.
  send_data(&j->e);
  send_data(&j->e);
}

static void wait_for_all(struct job* j, enum event e) {
  j->size = 10;
  j->flags = MSG_WAITALL | (e == ALL_PEEK ? MSG_PEEK : e == ALL_DONTWAIT ? MSG_DONTWAIT : 0);
  if (e == ALL_TIMEOUT) set_timeout(j->fd, SO_RCVTIMEO, 200);
  if (e == ALL_DONTWAIT || e == ALL_TIMEOUT) {  // the data is there before: later data could come after the call's end
    send_data(&j->e);
    start_job(j);
    return;
  }
  start_job(j);
  send_data(&j->e);
  pause_ms(3);
  if (e == ALL_MORE || e == ALL_PEEK) send_data(&j->e);
  if (e == ALL_CLOSES) close_peer(&j->e);
  if (e == ALL_SIGNAL) interrupt_job(j, kRestarts);
}

static void with_size_or_flags(struct job* j, enum event e) {
  switch (e) {
    case NOTHING_ASKED:
      j->size = 0;
      send_data(&j->e);
      start_job(j);
      break;
    case DONTWAIT:
      j->flags = MSG_DONTWAIT;
      start_job(j);
      break;
    case PEEK:
    case PEEK_TWICE:
      j->flags = MSG_PEEK;
      start_job(j);
      send_data(&j->e);
      break;
    case LOW_WATER: low_water(j); break;
    default: wait_for_all(j, e);
  }
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
    case COMES:
    case CLOSES:
    case CLOSED:
    case SHUT: data_or_end_comes(&j, i->event); break;
    case TIMEOUT:
    case EINTR_:
    case RESTARTED:
    case RESTART_TIMEOUT: time_or_signal_comes(&j, i->event); break;
    case CANCEL:
    case CANCEL_OFF: request_comes(&j, c, i->event); break;
    case NONBLOCKING:
    case READY_NONBLOCKING:
    case FAR_NONBLOCKING: flags = nonblocking_read(&j, i->event, flags); break;
    case TWO_WAIT: at = two_wait(&j, i->kind, at); break;
    default: with_size_or_flags(&j, i->event);
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
    case ALL_PEEK:
      return c->has & kFlags && b & (e == ALL_PEEK ? BIT(TCP) : STREAMS);  // other kinds may return less if no more data is there
    case LOW_WATER: return b & STREAMS && !(c->has & kPipe);
    default: return e < CLOSES || (e > SHUT && e < PART_DRAINED);
  }
}

int main(int argc, char** argv) {
  int nptl = nptl_release();
  begin(argc, argv);
  add_calls(readers, sizeof readers / sizeof *readers, run_reader, reader_event_fits);
  // Before 2.36, NPTL's __read_chk() was no cancellation point (bug 29274). There, read() stands for it.
  for (int n = 0; n < item_count; n++) {
    const struct call* c = items[n].call;
    if (items[n].event == CANCEL && c->function == do_read_chk && nptl && nptl < 36) items[n].call = &readers[0];
  }
  return run_items();
}
