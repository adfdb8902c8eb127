// SPDX-License-Identifier: MIT
// poll() after a read that found nothing, as in servers before they wait for the next request. Whatever is or becomes ready is reported,
// also if the read looked elsewhere, or if the number is another file's by now. A wait that lost its event would never end. (With a timeout
// it would end, and ask the kernel once more.)
#include "waiting.h"

static int empty(int fd) {
  char c[16];
  return read(fd, c, sizeof c) == -1 && errno == EAGAIN;
}
static int wait_for(int fd, int events) {
  struct pollfd p = {fd, (short)events, 0};
  int r = poll(&p, 1, -1);
  return r == 1 ? p.revents : -r - 1;
}
static int readable(int fd) { return wait_for(fd, POLLIN); }
static struct ends open_nonblocking(enum kind kind) {
  struct ends e = open_ends(kind, 0);
  set_nonblocking(e.a, 1);
  empty(e.a);  // the first read learns how the program set the descriptor
  return e;
}
// Makes the library register the descriptor. Until then, a wait asks the kernel.
static void register_it(struct ends* e) {
  char c[256];
  send_data(e);
  readable(e->a);
  while (read(e->a, c, sizeof c) > 0) {
  }
  struct pollfd p = {e->a, POLLIN, 0};
  poll(&p, 1, 1);
}

static void* soon(void* p) {
  pause_ms(5);
  send_data(p);
  return p;
}
static void comes(const struct item* i, char* out) {
  struct ends e = open_nonblocking(i->kind);
  pthread_t t;
  register_it(&e);
  int before = empty(e.a);
  send_data(&e);
  int at_once = readable(e.a);
  char c[256];
  while (read(e.a, c, sizeof c) > 0) {
  }
  int again = empty(e.a);
  assert(pthread_create(&t, NULL, soon, &e) == 0);
  int later = readable(e.a);
  pthread_join(t, NULL);
  sprintf(out, "empty %d, then %x, empty %d, then %x", before, at_once, again, later);
  close_ends(&e);
}
// Between the read and the wait, the number becomes another file's, which has data.
static void another_file(const struct item* i, char* out) {
  struct ends e = open_nonblocking(i->kind), f = open_ends(i->kind, 0);
  // A number that no other case can get between close() and dup2().
  static atomic_int numbers = 600;
  int high = dup2(e.a, numbers++);
  assert(high >= 0);
  if (e.b == e.a) e.b = high;
  close(e.a);
  e.a = high;
  register_it(&e);
  int before = empty(e.a);
  send_data(&f);
  pause_ms(2);
  dup2(f.a, e.a);
  int replaced = readable(e.a), number = e.a;
  set_nonblocking(e.a, 1);
  char c[256];
  while (read(e.a, c, sizeof c) > 0) {
  }
  int again = empty(e.a);
  send_data(&f);
  close(e.a);
  assert(dup2(f.a, number) == number);
  int same = readable(number);
  sprintf(out, "empty %d, then %x, empty %d, then %x", before, replaced, again, same);
  close_ends(&e);
  close_ends(&f);
}
static void ends_meanwhile(const struct item* i, char* out) {
  struct ends e = open_nonblocking(i->kind);
  register_it(&e);
  int before = empty(e.a), n;
  if (i->event == 0) n = shutdown(e.a, SHUT_RD);
  else n = close(e.b), e.b = -1;
  int first = readable(e.a);
  char c;
  ssize_t r = read(e.a, &c, 1);
  sprintf(out, "empty %d, %d, then %x, read %zd, then %x", before, n, first, r, readable(e.a));
  close_ends(&e);
}
// Errors are queued, and remain to be reported when there is no data.
static void errors_queued(const struct item* i, char* out) {
  struct sockaddr_in at, nobody;
  int fd = loopback(SOCK_DGRAM, &at), other = loopback(SOCK_DGRAM, &nobody), one = 1;
  setsockopt(fd, IPPROTO_IP, IP_RECVERR, &one, sizeof one);
  set_nonblocking(fd, 1);
  assert(connect(fd, (struct sockaddr*)&nobody, sizeof nobody) == 0);
  empty(fd);
  struct pollfd p = {fd, POLLIN, 0};
  poll(&p, 1, 1);
  close(other);
  send(fd, "x", 1, 0);
  int first = readable(fd);
  pause_ms(20);  // by now the library has taken the event
  char c;
  ssize_t r = read(fd, &c, 1);
  int none = empty(fd);
  sprintf(out, "%x, read %zd, empty %d, then %x", first, r, none, readable(fd));
  close(fd);
}
// The reads find nothing, though there is data.
static void looks_elsewhere(const struct item* i, char* out) {
  struct ends e = open_nonblocking(i->kind);
  register_it(&e);
  int off = 5;
  char c[16];
  send_data(&e);
  int first = readable(e.a);
  pause_ms(20);
  if (i->kind == STREAM) setsockopt(e.a, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof off);
  ssize_t peeked = i->kind == STREAM ? recv(e.a, c, 5, MSG_PEEK) : recv(e.a, c, 5, MSG_OOB);
  int error = peeked < 0;
  ssize_t queued = i->kind == TCP ? recv(e.a, c, 5, MSG_ERRQUEUE) : -1;  // other sockets take it for a plain read
  sprintf(out, "%x, failed %d, %d, then %x", first, error, queued < 0, readable(e.a));
  close_ends(&e);
}

// One thread writes pieces at any time. The other reads until there is nothing, and waits.
enum { kBytes = 30000 };
static void* writes_on(void* p) {
  struct ends* e = p;
  char zeros[64] = {0};
  unsigned seed = 1;
  for (int n = 0; n < kBytes;) {
    int k = 1 + rand_r(&seed) % 40;
    ssize_t r = write(e->b, zeros, (size_t)(k < kBytes - n ? k : kBytes - n));
    assert(r > 0);
    n += (int)r;
    if (rand_r(&seed) % 3 == 0) sched_yield();
  }
  return NULL;
}
struct reader {
  struct ends* e;
  atomic_int* got;
};
static void* reads_on(void* p) {
  struct reader* r = p;
  char c[100];
  while (*r->got < kBytes) {
    ssize_t n = rand() % 2                                ? read(r->e->a, c, sizeof c)
                : r->e->kind == PIPE || r->e->kind == PTY ? read(r->e->a, c, 7)
                                                          : recv(r->e->a, c, 7, 0);
    if (n > 0) {
      *r->got += (int)n;
      continue;
    }
    if (n == 0) break;
    assert(errno == EAGAIN);
    struct pollfd w = {r->e->a, POLLIN, 0};
    poll(&w, 1, -1);
  }
  if (r->e->b >= 0) shutdown(r->e->a, SHUT_RD);  // the other reader, if it waits
  return NULL;
}
static void stream(const struct item* i, char* out) {
  struct ends e = open_nonblocking(i->kind);
  atomic_int got = 0;
  struct reader r = {&e, &got};
  pthread_t t[3];
  int readers = i->event;
  assert(pthread_create(&t[2], NULL, writes_on, &e) == 0);
  for (int k = 0; k < readers; k++) assert(pthread_create(&t[k], NULL, reads_on, &r) == 0);
  for (int k = 0; k < readers; k++) pthread_join(t[k], NULL);
  pthread_join(t[2], NULL);
  sprintf(out, "%d", got);
  close_ends(&e);
}

int main(int argc, char** argv) {
  begin(argc, argv);
  for (int k = 0; k < kKinds; k++) {
    unsigned b = BIT(k);
    if (k != SIGNALFD && k != INOTIFY) add_item(comes, "comes", kind_names[k], "")->kind = k;
    if (b & (PIPES | CONNECTED | BIT(PTY))) add_item(another_file, "another file", kind_names[k], "")->kind = k;
    for (int n = 0; n < 2; n++)
      if (b & CONNECTED || (n && b & PIPES)) {
        struct item* i = add_item(ends_meanwhile, n ? "peer closes" : "shutdown", kind_names[k], "");
        i->kind = k, i->event = n;
      }
    if (b & BYTES && k != FIFO)
      for (int readers = 1; readers <= (b & STREAMS ? 2 : 1); readers++) {
        struct item* i = add_item(stream, readers == 2 ? "two readers" : "a reader", kind_names[k], "");
        i->kind = k, i->event = readers;
      }
    if (k == STREAM || k == TCP) add_item(looks_elsewhere, "elsewhere", kind_names[k], "")->kind = k;
  }
  add_item(errors_queued, "queued errors", "udp", "");
  return run_items();
}
