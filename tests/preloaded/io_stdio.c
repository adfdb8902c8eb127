// SPDX-License-Identifier: MIT
// libc's streams over pipes, FIFOs, sockets and terminals, with everything that may end their waits. Nothing intercepts the reads and
// writes that libc makes for them.
#include "waiting.h"

// ---- calls that read ----

static FILE* of(struct job* j) { return (FILE*)j->more; }

static long do_fgets(struct job* j) { return fgets(j->buffer, (int)j->size, of(j)) ? (long)strlen(j->buffer) : -1; }
static void free_line(void* line) { free(*(char**)line); }
static long do_getline(struct job* j) {
  char* line = NULL;
  size_t room = 0;
  ssize_t r;
  int e;
  pthread_cleanup_push(free_line, &line);
  r = getline(&line, &room, of(j));
  if (r >= 0) memcpy(j->buffer, line, (size_t)r + 1);
  e = errno;
  pthread_cleanup_pop(1);
  errno = e;
  return r;
}
static long do_fread(struct job* j) {
  size_t r = fread(j->buffer, 1, 6, of(j));
  j->buffer[r] = 0;
  return r ? (long)r : -1;
}
static long do_fgetc(struct job* j) {
  long n = 0;
  for (int c; (c = fgetc(of(j))) != EOF;) {
    j->buffer[n++] = (char)c;
    if (c == '\n') break;
  }
  return n ? n : -1;
}
// Looks at the first character and puts it back.
static long do_ungetc(struct job* j) {
  int c = getc(of(j));
  if (c == EOF) return -1;
  assert(ungetc(c, of(j)) == c);
  return do_fgets(j);
}
static long do_fscanf(struct job* j) {
  int n = 0, r = fscanf(of(j), "%200[a-z ]%n", j->buffer, &n);
  if (r != 1) return -1;
  int c = fgetc(of(j));
  return c == EOF ? -1 : n + (c == '\n');
}

// ---- calls that write ----

static long written(struct job* j, int good) { return good >= 0 && fflush(of(j)) == 0 ? 1 : -1; }
static long do_fputs(struct job* j) { return written(j, fputs(j->buffer, of(j))); }
static long do_fprintf(struct job* j) { return written(j, fprintf(of(j), "%s%d", j->buffer, 1)); }
static long do_fwrite(struct job* j) { return written(j, fwrite(j->buffer, 1, j->size, of(j)) == j->size ? 0 : -1); }
static long do_putc(struct job* j) {
  for (size_t k = 0; k < j->size; k++)
    if (putc(j->buffer[k], of(j)) == EOF) return -1;
  return written(j, 0);
}
static long do_dprintf(struct job* j) { return dprintf(j->fd, "%s", j->buffer) >= 0 ? 1 : -1; }

struct call {
  const char* name;
  long (*function)(struct job*);
};
static const struct call readers[] = {{"fgets", do_fgets}, {"getline", do_getline}, {"fread", do_fread},
                                      {"fgetc", do_fgetc}, {"ungetc", do_ungetc},   {"fscanf", do_fscanf}};
static const struct call writers[] = {
    {"fputs", do_fputs}, {"fprintf", do_fprintf}, {"fwrite", do_fwrite}, {"putc", do_putc}, {"dprintf", do_dprintf}};

// ---- what happens ----

enum event {
  READY,
  COMES,
  PARTS,
  CLOSES,
  CLOSED,
  PART_CLOSES,
  EINTR_,
  RESTARTED,
  NONBLOCKING,
  PART_NONBLOCKING,
  CANCEL,
  CANCEL_OFF,
  REPLACED,
  kEvents
};
static const char* const event_names[] = {"ready",           "comes",
                                          "comes in parts",  "peer closes",
                                          "peer has closed", "part, peer closes",
                                          "signal",          "signal, restarts",
                                          "non-blocking",    "part, non-blocking",
                                          "cancel",          "cancel disabled",
                                          "number replaced"};

static void say(struct ends* e, const char* text) { assert(write(e->b, text, strlen(text)) == (ssize_t)strlen(text)); }
static const struct call* call_of(const struct item* i) { return i->call; }

struct disabled {
  struct job j;  // first
  long (*function)(struct job*);
};
static long with_cancel_off(struct job* j) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  return ((struct disabled*)j)->function(j);
}

static char* state_of(FILE* f, char* at) { return at + sprintf(at, "%s%s", feof(f) ? ", end" : "", ferror(f) ? ", error" : ""); }
static char* end_of(struct job* j, char* at) {
  at += end_job(j, at);
  if (j->result > 0) at += sprintf(at, " \"%.*s\"", (int)strcspn(j->buffer, "\n"), j->buffer);
  return at;
}
// A cancelled thread leaves its stream unlocked.
static char* and_then(FILE* f, char* at) {
  char line[256];
  clearerr(f);
  if (fgets(line, sizeof line, f)) return at + sprintf(at, ", then \"%.*s\"", (int)strcspn(line, "\n"), line);
  return at + sprintf(at, ", then nothing");
}
// Waits until the waiting thread has read all that was there, and then until it waits for more.
static void until_taken(int fd) {
  for (int n = 1; n; pause_ms(1)) assert(ioctl(fd, FIONREAD, &n) == 0);
  pause_ms(30);
}

// ---- what happens to the reader ----

static void data_or_end_comes(struct job* j, enum event e) {
  struct ends* ends = &j->e;
  if (e == READY) say(ends, "hello\n");
  if (e == CLOSED) close_peer(ends);
  start_job(j);
  if (e == COMES) say(ends, "hello\n");
  if (e == CLOSES) close_peer(ends);
  if (e == PARTS) {
    say(ends, "he");
    until_taken(ends->a);
    say(ends, "llo\n");
  }
  if (e == PART_CLOSES) {
    say(ends, "hell");
    until_taken(ends->a);
    close_peer(ends);
  }
}

static void signal_or_request_comes(struct disabled* d, enum event e) {
  struct job* j = &d->j;
  if (e == CANCEL_OFF) {
    d->function = j->call;
    j->call = with_cancel_off;
  }
  start_job(j);
  if (e == EINTR_) interrupt_job(j, kInterrupts);
  if (e == RESTARTED) signal_job(j, kRestarts);
  if (e == CANCEL || e == CANCEL_OFF) pthread_cancel(j->thread);
  if (e == CANCEL_OFF) pause_ms(2);
  if (e == RESTARTED || e == CANCEL_OFF) say(&j->e, "hello\n");
}

static void nonblocking_read(struct job* j, enum event e) {
  set_nonblocking(j->e.a, 1);
  if (e == PART_NONBLOCKING) {
    say(&j->e, "hell");
    pause_ms(2);
  }
  start_job(j);
}

// Another file gets the descriptor's number. A read goes on with the file that it began with.
static void number_replaced(struct job* j) {
  int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
  start_job(j);
  say(&j->e, "he");
  until_taken(j->e.a);
  dup2(none, j->e.a);
  close(none);
  say(&j->e, "llo\n");
}

static void run_reader(const struct item* i, char* out) {
  struct disabled d = {0};
  struct job* j = &d.j;
  char* at = out;
  struct ends* e = &j->e;
  *e = open_ends(i->kind, 0);
  FILE* f = fdopen(e->a, "r");
  assert(f);
  j->fd = e->a;
  j->more = f;
  j->size = 256;
  j->buffer = calloc(1, 512);
  j->call = call_of(i)->function;
  switch (i->event) {
    case READY:
    case COMES:
    case PARTS:
    case CLOSES:
    case CLOSED:
    case PART_CLOSES: data_or_end_comes(j, i->event); break;
    case EINTR_:
    case RESTARTED:
    case CANCEL:
    case CANCEL_OFF: signal_or_request_comes(&d, i->event); break;
    case NONBLOCKING:
    case PART_NONBLOCKING: nonblocking_read(j, i->event); break;
    default: number_replaced(j);
  }
  at = end_of(j, at);
  at = state_of(f, at);
  if (i->event == NONBLOCKING || i->event == EINTR_ || i->event == CANCEL || i->event == PART_NONBLOCKING) {
    if (i->kind != PTY) set_nonblocking(e->a, 0);
    say(e, "again\n");
    if (i->kind == PTY) set_nonblocking(e->a, 0);
    at = and_then(f, at);
  }
  if (i->event == REPLACED) at = and_then(f, at);
  fclose(f);
  e->a = -1;
  close_ends(e);
  free(j->buffer);
}

// A thread that comes to its read late reads the other file, and the test cannot know that it comes late. So it tries again until one
// thread was early enough.
static void run_replaced(const struct item* i, char* out) {
  for (int tries = 0; tries < 20; tries++) {
    run_reader(i, out);
    if (!strstr(out, ", end")) return;
  }
}

// ---- writing ----

enum { kPart = 300000 };
enum written { ROOM, DRAINED, W_CLOSED, W_CLOSES, W_EINTR, W_RESTARTED, W_NONBLOCKING, W_CANCEL, kWritten };
static const char* const written_names[] = {"room",   "drained",          "peer has closed", "peer closes",
                                            "signal", "signal, restarts", "non-blocking",    "cancel"};

static void run_writer(const struct item* i, char* out) {
  struct job j = {0};
  struct ends* e = &j.e;
  *e = open_ends(i->kind, 1);
  FILE* f = fdopen(e->a, "w");
  assert(f);
  j.fd = e->a;
  j.more = f;
  j.size = i->event == ROOM || i->event == W_CLOSED || i->event == W_NONBLOCKING ? 100 : kPart;
  j.buffer = malloc(j.size + 1);
  memset(j.buffer, 'x', j.size);
  j.buffer[j.size] = 0;
  j.call = call_of(i)->function;
  long got = 0;
  switch (i->event) {
    case ROOM: start_job(&j); break;
    case DRAINED:
    case W_RESTARTED:
      start_job(&j);
      if (i->event == W_RESTARTED) signal_job(&j, kRestarts);
      while (!j.done) got += drain(e), pause_ms(1);
      break;
    case W_CLOSED:
      close_peer(e);
      start_job(&j);
      break;
    case W_CLOSES:
      start_job(&j);
      close_peer(e);
      break;
    case W_EINTR:
      start_job(&j);
      // Since glibc 2.37 dprintf() goes on after EINTR, and ends only when all is written.
      for (int k = 0; !j.done && (j.call != do_dprintf || k < 300); k++) {
        pthread_kill(j.thread, kInterrupts);
        pause_ms(2);
      }
      while (!j.done) got += drain(e), pause_ms(1);
      break;
    case W_NONBLOCKING:
      fill(e);
      set_nonblocking(e->a, 1);
      start_job(&j);
      break;
    default: start_job(&j); pthread_cancel(j.thread);
  }
  char* at = out;
  void* r;
  pthread_join(j.thread, &r);
  at += sprintf(at, "%s", r == PTHREAD_CANCELED ? "cancelled" : j.result < 0 ? error_name(j.error) : "written");
  if (j.call != do_dprintf && r != PTHREAD_CANCELED) at = state_of(f, at);
  if (i->event == ROOM || i->event == DRAINED || i->event == W_RESTARTED || got) {
    pause_ms(1);
    for (int quiet = 0; quiet < 3; pause_ms(2)) {
      long n = drain(e);
      got += n;
      quiet = n ? 0 : quiet + 1;
    }
    at += sprintf(at, ", %ld", got);
  }
  // fclose() would wait again to write the rest of the buffer.
  if (e->b >= 0) close_peer(e);
  fclose(f);
  e->a = -1;
  close_ends(e);
  free(j.buffer);
}

// The writing thread gets SIGPIPE, though it is inside libc.
static __thread int my_pipes;
static void count_pipe(int sig) { my_pipes++; }
static long writes_broken(struct job* j) {
  int before = my_pipes;
  FILE* f = of(j);
  long r = fputs("x", f) >= 0 && fflush(f) == 0;
  int e = errno;
  j->size = (size_t)(my_pipes - before);
  errno = e;
  return r ? 0 : -1;
}
static void broken(const struct item* i, char* out) {
  struct job j = {0};
  j.e = open_ends(i->kind, 1);
  FILE* f = fdopen(j.e.a, "w");
  j.more = f;
  j.call = writes_broken;
  close_peer(&j.e);
  start_job(&j);
  out += end_job(&j, out);
  sprintf(out, ", SIGPIPE here %zu", j.size);
  fclose(f);
  j.e.a = -1;
  close_ends(&j.e);
}

// ---- one stream, several threads ----

static long one_character(struct job* j) { return fgetc(of(j)); }
static void shared(const struct item* i, char* out) {
  struct job all[4] = {0};
  struct ends e = open_ends(i->kind, 0);
  FILE* f = fdopen(e.a, "r");
  long sum = 0;
  for (int k = 0; k < 4; k++) {
    all[k].call = one_character;
    all[k].more = f;
    start_job(&all[k]);  // all threads but one wait for the stream's lock
  }
  say(&e, "\1\2");
  pause_ms(5);
  say(&e, "\3\4");
  for (int k = 0; k < 4; k++) {
    pthread_join(all[k].thread, NULL);
    sum += all[k].result;
  }
  sprintf(out, "%ld", sum);
  fclose(f);
  e.a = -1;
  close_ends(&e);
}

static int fits(int writes, enum kind k, int e) {
  if (!writes) return k != PTY || (e != CLOSES && e != CLOSED && e != PART_CLOSES);
  if (BIT(k) & STREAMS && e == W_CLOSES) return 0;  // a waiting thread gets a reset, and one that comes later gets EPIPE
  // A writer does not see the end of a terminal, and a terminal keeps as much as it likes.
  return k != PTY || e == ROOM || e == DRAINED || e == W_CANCEL;
}

int main(int argc, char** argv) {
  begin(argc, argv);
  struct sigaction sa = {.sa_handler = count_pipe, .sa_flags = SA_RESTART};
  sigaction(SIGPIPE, &sa, NULL);
  for (int k = 0; k < kKinds; k++) {
    if (!(BIT(k) & BYTES)) continue;
    for (int n = 0; n < (int)(sizeof readers / sizeof *readers); n++)
      for (int e = 0; e < kEvents; e++)
        if (fits(0, k, e)) {
          struct item* i = add_item(e == REPLACED ? run_replaced : run_reader, readers[n].name, kind_names[k], event_names[e]);
          i->call = &readers[n], i->kind = k, i->event = e;
        }
    for (int n = 0; n < (int)(sizeof writers / sizeof *writers); n++)
      for (int e = 0; e < kWritten; e++)
        // When dprintf() is cancelled, libc keeps a stream on a stack that is freed.
        if (fits(1, k, e) && (e != W_CANCEL || writers[n].function != do_dprintf)) {
          struct item* i = add_item(run_writer, writers[n].name, kind_names[k], written_names[e]);
          i->call = &writers[n], i->kind = k, i->event = e;
        }
    add_item(shared, "one stream", kind_names[k], "")->kind = k;
    if (k != PTY) add_item(broken, "broken", kind_names[k], "")->kind = k;
  }
  return run_items();
}
