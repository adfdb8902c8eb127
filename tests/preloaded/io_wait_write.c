// SPDX-License-Identifier: MIT
// Every call that writes to a descriptor, on every kind of descriptor, with everything that may end its wait.
#include "io_wait.h"

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

// Waits until the other end has some of what the job writes.
static void until_some(struct job* j) {
  struct pollfd p = {j->e.b, POLLIN, 0};
  while (poll(&p, 1, 0) == 0 && !j->done) pause_ms(1);
}
static void drain_until_done(struct job* j) {
  while (!j->done) drain(&j->e), pause_ms(1);
}

// What the job writes: `part` is more than any descriptor takes at once.
static void make_data(struct job* j, const struct call* c, enum kind kind, int part) {
  j->size = part ? 1 << 20 : kind == EVENTFD ? 8 : 2000;
  j->buffer = malloc(j->size);
  for (size_t k = 0; k < j->size; k++) j->buffer[k] = "hello"[k % 5];
  if (kind == EVENTFD) *(uint64_t*)j->buffer = 7;
  if (c->has & kPipe) assert(write(j->other[1], j->buffer, 2000) == 2000);
  if (c->has & kFile) {
    char name[] = "sentXXXXXX";
    j->other[0] = mkostemp(name, O_CLOEXEC);
    assert(j->other[0] >= 0 && write(j->other[0], j->buffer, j->size) == (ssize_t)j->size && lseek(j->other[0], 0, SEEK_SET) == 0);
    unlink(name);
  }
}

// ---- what happens to the writer ----

static void room_or_end_comes(struct job* j, enum event e) {
  if (e == CLOSED) close_peer(&j->e);
  start_job(j);
  if (e == COMES) drain_until_done(j);
  if (e == SHUT) shutdown(j->fd, SHUT_WR);
  if (e == PART_CLOSES) until_some(j);
  if (e == CLOSES || e == PART_CLOSES) close_peer(&j->e);
}

static void time_or_signal_comes(struct job* j, enum event e) {
  if (e == TIMEOUT || e == PART_TIMEOUT) set_timeout(j->fd, SO_SNDTIMEO, 15);
  if (e == RESTART_TIMEOUT) set_timeout(j->fd, SO_SNDTIMEO, 60000);
  start_job(j);
  if (e == PART_SIGNAL) until_some(j);
  if (e == EINTR_ || e == PART_SIGNAL) interrupt_job(j, kInterrupts);
  if (e == PART_RESTART || e == RESTART_TIMEOUT) interrupt_job(j, kRestarts);
  if (e == RESTARTED) {
    signal_job(j, kRestarts);
    drain_until_done(j);
  }
}

// A writer that no request can end gets room.
static void request_comes(struct job* j, const struct call* c, enum event e) {
  if (e == CANCEL_OFF) disable_cancel(j, c);
  start_job(j);
  pthread_cancel(j->thread);
  if (e == CANCEL && c->has & kCancels) return;
  pause_ms(2);
  drain_until_done(j);
}

// Checks that just the bytes arrive that the job has written. `got`: the number of those that have arrived already.
static void check_arrival(struct job* j, long got, char* out) {
  for (int quiet = 0; quiet < 5;) {
    long n = drain(&j->e);
    got += n;
    quiet = n ? 0 : quiet + 1;
    if (got >= j->result) break;
    pause_ms(2);
  }
  if (got != j->result) sprintf(out, ", but %ld of %ld arrived", got, j->result);
}

static void run_writer(const struct item* i, char* out) {
  struct job j;
  const struct call* c = i->call;
  int part = i->event >= PART_DRAINED;
  long got = 0;
  prepare(&j, i, 1);
  int a = j.fd, flags = fcntl(a, F_GETFL);
  make_data(&j, c, i->kind, part);
  if (!part && i->event != READY && i->event != CLOSED) fill(&j.e);
  switch (i->event) {
    case READY:
    case COMES:
    case CLOSES:
    case PART_CLOSES:
    case CLOSED:
    case SHUT: room_or_end_comes(&j, i->event); break;
    case TIMEOUT:
    case PART_TIMEOUT:
    case EINTR_:
    case PART_SIGNAL:
    case PART_RESTART:
    case RESTARTED:
    case RESTART_TIMEOUT: time_or_signal_comes(&j, i->event); break;
    case CANCEL:
    case CANCEL_OFF: request_comes(&j, c, i->event); break;
    case NONBLOCKING:
    case PART_NONBLOCKING:
      flags = now_nonblocking(a);
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
  char* at = out + end_job(&j, out);
  if (part && j.result > 0 && j.done) {
    if (i->event != PART_DRAINED) at = out + sprintf(out, "%s", j.result < (long)j.size ? "a part" : "all");
    if (j.e.b >= 0) check_arrival(&j, got, at);
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
    case NONBLOCKING: return c->function != do_vmsplice;  // it ignores O_NONBLOCK
    case DONTWAIT: return c->has & kFlags;
    case PART_DONTWAIT: return c->has & kFlags && b & STREAMS;
    case PART_TIMEOUT: return b & STREAMS && !(c->has & kPipe);
    case PART_DRAINED:  // these two return once the pipe has been full
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
  begin(argc, argv);
  add_calls(writers, sizeof writers / sizeof *writers, run_writer, writer_event_fits);
  return run_items();
}
