// SPDX-License-Identifier: MIT
// How connections begin, calls for several messages, opening of FIFOs, and the errors of these and other calls for bad arguments.
#include "waiting.h"

#include <stddef.h>

enum family { UNIX, UNIX_PACKETS, INET, kFamilies };
static const char* const family_names[] = {"unix", "seqpacket", "tcp"};

struct listener {
  int fd;
  socklen_t size;
  union {
    struct sockaddr any;
    struct sockaddr_un un;
    struct sockaddr_in in;
  } at;
};

static int new_socket(enum family f) {
  return f == INET ? loopback(SOCK_STREAM, NULL) : socket(AF_UNIX, (f == UNIX ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0);
}
static struct listener new_listener(enum family f, int backlog) {
  static atomic_int count;
  struct listener l;
  memset(&l, 0, sizeof l);
  if (f == INET) {
    l.fd = loopback(SOCK_STREAM, &l.at.in);
    l.size = sizeof l.at.in;
  } else {
    l.fd = new_socket(f);
    l.at.un.sun_family = AF_UNIX;
    l.size = offsetof(struct sockaddr_un, sun_path) + 1 + sprintf(l.at.un.sun_path + 1, "fiberthread-test-%d-%d", (int)getpid(), count++);
    assert(bind(l.fd, &l.at.any, l.size) == 0);
  }
  assert(listen(l.fd, backlog) == 0);
  return l;
}
static int connect_to(enum family f, const struct listener* l) {
  int fd = new_socket(f);
  assert(connect(fd, &l->at.any, l->size) == 0);
  return fd;
}

// ---- accept ----

static long do_accept(struct job* j) { return accept(j->fd, NULL, NULL); }
static long do_accept_from(struct job* j) {
  struct sockaddr_storage from;
  socklen_t n = sizeof from;
  return accept(j->fd, (struct sockaddr*)&from, &n);
}
static long do_accept4(struct job* j) { return accept4(j->fd, NULL, NULL, 0); }
static long do_accept4_flags(struct job* j) { return accept4(j->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC); }
static const struct {
  const char* name;
  long (*function)(struct job*);
} accepts[] = {
    {"accept", do_accept}, {"accept with address", do_accept_from}, {"accept4", do_accept4}, {"accept4 with flags", do_accept4_flags}};

enum { READY, COMES, SHUT, TIMEOUT, EINTR_, RESTARTED, RESTART_TIMEOUT, CANCEL, NONBLOCKING, TWO_WAIT, MANY, REFUSED, kEvents };
static const char* const event_names[] = {
    "ready",  "comes",        "shutdown", "timeout",   "signal", "signal, restarts", "signal, restarts, timeout",
    "cancel", "non-blocking", "two wait", "many wait", "refused"};

enum { kMostMore = 20 };
// A case: a job that accepts, other jobs that accept at the same time, and the ends of the connections.
struct accepting {
  enum family family;
  struct listener listener;
  struct job j, other[kMostMore];
  int connection, more[kMostMore], others;
  int flags;  // that the listener must have at the end
};

static void connection_comes(struct accepting* a, int event) {
  if (event == READY) a->connection = connect_to(a->family, &a->listener);
  start_job(&a->j);
  if (event == RESTARTED) signal_job(&a->j, kRestarts);
  if (event != READY) a->connection = connect_to(a->family, &a->listener);
}
static void nothing_comes(struct accepting* a, int event) {
  int fd = a->listener.fd;
  if (event == TIMEOUT) set_timeout(fd, SO_RCVTIMEO, 15);
  if (event == RESTART_TIMEOUT) set_timeout(fd, SO_RCVTIMEO, 60000);
  if (event == NONBLOCKING) {
    set_nonblocking(fd, 1);
    a->flags = fcntl(fd, F_GETFL);
  }
  start_job(&a->j);
  if (event == SHUT) shutdown(fd, SHUT_RD);
  if (event == EINTR_) interrupt_job(&a->j, kInterrupts);
  if (event == RESTART_TIMEOUT) interrupt_job(&a->j, kRestarts);
  if (event == CANCEL) pthread_cancel(a->j.thread);
}
static void several_wait(struct accepting* a, int others) {
  a->others = others;
  for (int m = 0; m < others; m++) {
    a->other[m] = a->j;
    start_job(&a->other[m]);
  }
  start_job(&a->j);
  a->connection = connect_to(a->family, &a->listener);
  for (int m = 0; m < others; m++) a->more[m] = connect_to(a->family, &a->listener);
}

// Ends the other jobs, and returns how many of them have accepted.
static int end_others(struct accepting* a) {
  int accepted = 0;
  for (int m = 0; m < a->others; m++) {
    char text[40];
    end_job(&a->other[m], text);
    accepted += a->other[m].result >= 0;
    close(a->other[m].result);
    close(a->more[m]);
  }
  return accepted;
}
// Writes to `out` which flags the accepted connection has, and whether a byte passes. Returns the end of the text.
static char* tell_connection(struct accepting* a, int accepted, char* out) {
  int result = (int)a->j.result, fl = fcntl(result, F_GETFL), fd = fcntl(result, F_GETFD);
  char b;
  out += sprintf(out, "a connection%s%s", fl & O_NONBLOCK ? ", non-blocking" : "", fd & FD_CLOEXEC ? ", for us" : "");
  if (a->others) {
    out += sprintf(out, " and %d", accepted);
  } else {
    ssize_t w = write(a->connection, "x", 1);
    out += sprintf(out, ", %zd %zd", w, read(result, &b, 1));
  }
  close(result);
  return out;
}

static void run_accept(const struct item* i, char* out) {
  struct accepting a;
  memset(&a, 0, sizeof a);
  a.family = (enum family)i->kind;
  a.listener = new_listener(a.family, 100);
  a.connection = -1;
  a.j.fd = a.listener.fd;
  a.j.call = i->call;
  a.flags = fcntl(a.listener.fd, F_GETFL);
  switch (i->event) {
    case READY:
    case COMES:
    case RESTARTED: connection_comes(&a, i->event); break;
    case TWO_WAIT: several_wait(&a, 1); break;
    case MANY: several_wait(&a, kMostMore); break;
    default: nothing_comes(&a, i->event);
  }
  char name[40];
  end_job(&a.j, name);
  int accepted = end_others(&a);
  if (a.j.done && a.j.result >= 0) out = tell_connection(&a, accepted, out);
  else out += sprintf(out, "%s", name);
  if (fcntl(a.listener.fd, F_GETFL) != a.flags) out += sprintf(out, ", its flags changed");
  if (a.connection >= 0) close(a.connection);
  close(a.listener.fd);
}

// ---- connect ----

static long do_connect(struct job* j) {
  const struct listener* l = j->more;
  return connect(j->fd, &l->at.any, l->size);
}

static void run_connect(const struct item* i, char* out) {
  enum family f = (enum family)i->kind;
  struct listener l = new_listener(f, 0);
  struct job j;
  int full[8], n = 0;
  memset(&j, 0, sizeof j);
  j.fd = new_socket(f);
  j.call = do_connect;
  j.more = &l;
  if (i->event != READY && i->event != REFUSED) {  // fill the backlog
    for (n = 0; n < 8; n++) {
      full[n] = new_socket(f);
      set_nonblocking(full[n], 1);
      if (connect(full[n], &l.at.any, l.size) < 0 && f != INET) {
        n++;
        break;
      }
      if (f == INET) {
        struct pollfd p = {full[n], POLLOUT};
        if (poll(&p, 1, 100) == 0) {
          n++;
          break;
        }
      }
    }
  }
  if (i->event == REFUSED) close(l.fd);
  int flags = fcntl(j.fd, F_GETFL);
  switch (i->event) {
    case READY:
    case REFUSED: start_job(&j); break;
    case COMES:
    case RESTARTED:  // room
      start_job(&j);
      if (i->event == RESTARTED) signal_job(&j, kRestarts);
      set_nonblocking(l.fd, 1);
      while (!j.done) {
        int a = accept(l.fd, NULL, NULL);
        if (a >= 0) close(a);
        pause_ms(1);
      }
      break;
    case TIMEOUT:
      set_timeout(j.fd, SO_SNDTIMEO, 15);
      start_job(&j);
      break;
    case EINTR_:
      start_job(&j);
      interrupt_job(&j, kInterrupts);
      break;
    case RESTART_TIMEOUT:
      set_timeout(j.fd, SO_SNDTIMEO, 60000);
      start_job(&j);
      interrupt_job(&j, kRestarts);
      break;
    case CANCEL:
      start_job(&j);
      pthread_cancel(j.thread);
      break;
    case NONBLOCKING:
      set_nonblocking(j.fd, 1);
      flags = fcntl(j.fd, F_GETFL);
      start_job(&j);
      break;
    case SHUT:
      start_job(&j);
      close(l.fd);
      l.fd = -1;
      break;
  }
  out += end_job(&j, out);
  if (fcntl(j.fd, F_GETFL) != flags) out += sprintf(out, ", its flags changed");
  for (int m = 0; m < n; m++) close(full[m]);
  if (i->event != REFUSED && l.fd >= 0) close(l.fd);
  close(j.fd);
}

// ---- several messages ----

static long recv_three(struct job* j) {
  struct iovec v[3];
  struct mmsghdr m[3];
  memset(m, 0, sizeof m);
  for (int n = 0; n < 3; n++) {
    v[n] = (struct iovec){j->buffer + 16 * n, 16};
    m[n].msg_hdr.msg_iov = &v[n], m[n].msg_hdr.msg_iovlen = 1;
  }
  return recvmmsg(j->fd, m, 3, j->flags, (void*)j->more);
}
static long send_three(struct job* j) {
  struct iovec v[3];
  struct mmsghdr m[3];
  memset(m, 0, sizeof m);
  for (int n = 0; n < 3; n++) {
    v[n] = (struct iovec){j->buffer, 2000};
    m[n].msg_hdr.msg_iov = &v[n], m[n].msg_hdr.msg_iovlen = 1;
  }
  return sendmmsg(j->fd, m, 3, j->flags);
}
static const char* const several[] = {"recvmmsg of 3: 3 come",
                                      "recvmmsg of 3: 1, MSG_WAITFORONE",
                                      "recvmmsg of 3: 2, signal",
                                      "recvmmsg of 3: 2, SO_RCVTIMEO",
                                      "recvmmsg of 3: timeout of nothing",
                                      "recvmmsg of 3: bad timeout",
                                      "recvmmsg of 3: 2, MSG_DONTWAIT",
                                      "recvmmsg of 3: cancel",
                                      "sendmmsg of 3: all",
                                      "sendmmsg of 3: no room, signal",
                                      "sendmmsg of 3: room for some, signal",
                                      "sendmmsg of 3: no room, drained",
                                      "sendmmsg of 3: room for some, MSG_DONTWAIT"};
static void run_several(const struct item* i, char* out) {
  static char zeros[2000];
  char buffer[64];
  struct job j;
  struct timespec t = {0, 0}, bad = {0, -1};
  memset(&j, 0, sizeof j);
  j.e = open_ends(i->kind, 0);
  j.fd = j.e.a;
  j.call = i->event < 8 ? recv_three : send_three;
  j.buffer = i->event < 8 ? buffer : zeros;
  if (i->event == 1) j.flags = MSG_WAITFORONE;
  if (i->event == 6 || i->event == 12) j.flags = MSG_DONTWAIT;
  if (i->event == 3) set_timeout(j.fd, SO_RCVTIMEO, 1000);
  if (i->event == 4) j.more = &t;
  if (i->event == 5) j.more = &bad;
  if (i->event == 6) send_data(&j.e), send_data(&j.e);
  if (i->event >= 9) fill(&j.e);
  if (i->event == 10 || i->event == 12) {
    char room[2000];
    assert(read(j.e.b, room, sizeof room) > 0);
  }
  start_job(&j);
  switch (i->event) {
    case 0:
      for (int n = 0; n < 3; n++) send_data(&j.e), pause_ms(1);
      break;
    case 1: send_data(&j.e); break;
    case 2:
      send_data(&j.e), send_data(&j.e);
      pause_ms(3);
      interrupt_job(&j, kInterrupts);
      break;
    case 3: send_data(&j.e), send_data(&j.e); break;
    case 4: send_data(&j.e); break;  // the timeout counts once a message has come
    case 7: pthread_cancel(j.thread); break;
    case 9:
    case 10: interrupt_job(&j, kInterrupts); break;
    case 11:
      while (!j.done) drain(&j.e), pause_ms(1);
  }
  char name[40];
  end_job(&j, name);
  out += sprintf(out, "%s", name);
  close_ends(&j.e);
}

// ---- FIFOs ----

static long do_open(struct job* j) {
  int fd = open(j->e.path, j->flags);
  if (fd >= 0) close(fd);
  return fd < 0 ? -1 : 0;
}
static const char* const openings[] = {"open to read: a writer comes",   "open to write: a reader comes", "open to read: signal",
                                       "open to read: signal, restarts", "open to read: cancel",          "open to read: non-blocking",
                                       "open to write: non-blocking",    "open to read and write"};
static void run_open(const struct item* i, char* out) {
  struct job j;
  memset(&j, 0, sizeof j);
  strcpy(j.e.path, "fifoXXXXXX");
  assert(mkdtemp(j.e.path));
  strcat(j.e.path, "/f");
  assert(mkfifo(j.e.path, 0600) == 0);
  j.call = do_open;
  j.flags = (i->event == 1 || i->event == 6 ? O_WRONLY
             : i->event == 7                ? O_RDWR
                                            : O_RDONLY) |
            (i->event == 5 || i->event == 6 ? O_NONBLOCK : 0);
  start_job(&j);
  if (i->event == 3) signal_job(&j, kRestarts);
  if (i->event == 0 || i->event == 1 || i->event == 3) close(open(j.e.path, i->event == 1 ? O_RDONLY : O_WRONLY));
  if (i->event == 2) interrupt_job(&j, kInterrupts);
  if (i->event == 4) pthread_cancel(j.thread);
  out += end_job(&j, out);
  unlink(j.e.path);
  *strrchr(j.e.path, '/') = 0;
  rmdir(j.e.path);
}

// ---- bad arguments ----

#define SAY(call) \
  do { \
    errno = 0; \
    long r_ = (call); \
    if (r_ < 0) at += sprintf(at, " %s", error_name(errno)); \
    else at += sprintf(at, " %ld", r_); \
  } while (0)
static void run_bad(const struct item* i, char* out) {
  char *at = out, b[8];
  void* volatile nowhere = (void*)8;  // volatile, since compilers warn of an address that they can see
  volatile int less = -1, many = 2000;
  int p[2], s[2], dir = open(".", O_RDONLY | O_CLOEXEC), closed = 1000;
  struct iovec v = {b, 1}, wild = {nowhere, 8};
  struct msghdr m = {.msg_iov = &wild, .msg_iovlen = 1};
  assert(pipe2(p, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) == 0);
  assert(write(p[1], "123", 3) == 3 && write(s[1], "123", 3) == 3);
  switch (i->event) {
    case 0:
      SAY(read(-1, b, 1));
      SAY(read(closed, b, 1));
      SAY(read(p[1], b, 1));
      SAY(read(p[0], nowhere, 1));
      SAY(read(s[0], nowhere, 1));
      SAY(read(dir, b, 1));
      SAY(read(p[0], b, 0));
      SAY(readv(p[0], &v, less));
      SAY(readv(p[0], &v, 0));
      SAY(readv(p[0], &v, many));
      SAY(readv(p[0], nowhere, 1));
      SAY(readv(p[0], &wild, 1));
      SAY(preadv2(p[0], &v, 1, 0, 0));
      SAY(pread(p[0], b, 1, 0));
      break;
    case 1:
      SAY(write(-1, b, 1));
      SAY(write(closed, b, 1));
      SAY(write(p[0], b, 1));
      SAY(write(p[1], nowhere, 1));
      SAY(write(s[0], nowhere, 1));
      SAY(write(dir, b, 1));
      SAY(write(p[1], b, 0));
      SAY(writev(p[1], &v, less));
      SAY(writev(p[1], &wild, 1));
      SAY(writev(p[1], nowhere, 1));
      SAY(pwrite(p[1], b, 1, 0));
      break;
    case 2:
      SAY(recv(p[0], b, 1, 0));
      SAY(recv(closed, b, 1, 0));
      SAY(recv(s[0], nowhere, 1, 0));
      SAY(recvmsg(s[0], nowhere, 0));
      SAY(recvmsg(s[0], &m, 0));
      SAY(recvmmsg(s[0], nowhere, 1, 0, NULL));
      SAY(recv(s[0], b, 1, MSG_OOB));
      SAY(send(p[1], b, 1, 0));
      SAY(send(closed, b, 1, 0));
      SAY(send(s[0], nowhere, 1, 0));
      SAY(sendmsg(s[0], nowhere, 0));
      SAY(sendmsg(s[0], &m, 0));
      SAY(sendto(s[0], b, 1, 0, nowhere, 16));
      break;
    case 3:
      SAY(accept(closed, NULL, NULL));
      SAY(accept(p[0], NULL, NULL));
      SAY(accept(s[0], NULL, NULL));
      SAY(accept4(s[0], NULL, NULL, 0x1000));
      SAY(connect(closed, NULL, 0));
      SAY(connect(p[0], (void*)b, sizeof b));
      SAY(connect(s[0], nowhere, 16));
      SAY(sendfile(s[0], p[0], NULL, 1));
      SAY(sendfile(closed, dir, NULL, 1));
      SAY(splice(s[0], NULL, s[1], NULL, 1, 0));
      SAY(splice(p[0], NULL, closed, NULL, 1, 0));
      SAY(tee(p[0], p[1], 1, 0));
      SAY(tee(s[0], p[1], 1, 0));
      break;
  }
  close(p[0]), close(p[1]), close(s[0]), close(s[1]), close(dir);
}

static int fits(int event, enum family f, int connects) {
  if (connects)
    return event != TWO_WAIT && event != MANY &&
           !(f == INET && (event == SHUT || event == COMES || event == RESTARTED || event == RESTART_TIMEOUT));
  return event != REFUSED;
}

int main(int argc, char** argv) {
  begin(argc, argv);
  close(dup2(0, 1000));
  for (int n = 0; n < 4; n++)
    for (int f = 0; f < kFamilies; f++)
      for (int e = 0; e < kEvents; e++)
        if (fits(e, f, 0)) {
          struct item* i = add_item(run_accept, accepts[n].name, family_names[f], event_names[e]);
          i->call = accepts[n].function, i->kind = f, i->event = e;
        }
  for (int f = 0; f < kFamilies; f++)
    for (int e = 0; e < kEvents; e++)
      if (fits(e, f, 1)) {
        struct item* i = add_item(run_connect, "connect", family_names[f], event_names[e]);
        i->kind = f, i->event = e;
      }
  for (int k = 0; k < kKinds; k++)
    for (int n = 0; n < (int)(sizeof several / sizeof *several); n++)
      if (BIT(k) & (BIT(DGRAM) | BIT(SEQPACKET) | BIT(UDP)) && (n < 8 || k != UDP)) {
        struct item* i = add_item(run_several, kind_names[k], several[n], "");
        i->kind = k, i->event = n;
      }
  for (int n = 0; n < (int)(sizeof openings / sizeof *openings); n++) add_item(run_open, "fifo", openings[n], "")->event = n;
  for (int n = 0; n < 4; n++)
    add_item(run_bad, "bad arguments of", n == 0 ? "read" : n == 1 ? "write" : n == 2 ? "recv and send" : "the rest", "")->event = n;
  return run_items();
}
