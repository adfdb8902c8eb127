// SPDX-License-Identifier: MIT
// FIFOs that are opened as streams, and popen, with everything that may end their waits.
#include "waiting.h"

static FILE* of(struct job* j) { return (FILE*)j->more; }
static long do_fgets(struct job* j) { return fgets(j->buffer, (int)j->size, of(j)) ? (long)strlen(j->buffer) : -1; }

// ---- FIFOs ----

struct opening {
  struct job j;
  char path[40];
  const char* mode;
};
static long do_fopen(struct job* j) {
  struct opening* o = (struct opening*)j;
  FILE* f = fopen(o->path, o->mode);
  j->more = f;
  return f ? 0 : -1;
}
static void make_fifo(char* path) {
  strcpy(path, "stdioXXXXXX");
  assert(mkdtemp(path));
  strcat(path, "/f");
  assert(mkfifo(path, 0600) == 0);
}
static void drop_fifo(char* path) {
  unlink(path);
  *strrchr(path, '/') = 0;
  rmdir(path);
}

enum open_event { O_PEER, O_RAW_PEER, O_SIGNAL, O_RESTART, O_CANCEL, O_BOTH, kOpens };
static const char* const open_names[] = {"fopen comes", "open comes", "signal", "signal, restarts", "cancel", "r+"};
static void opens(const struct item* i, char* out) {
  struct opening a = {0}, b = {0};
  char line[64] = "";
  int writes = i->kind, e = i->event, fd = -1;
  make_fifo(a.path);
  strcpy(b.path, a.path);
  a.mode = e == O_BOTH ? "r+" : writes ? "w" : "r";
  b.mode = writes ? "r" : "w";
  a.j.call = b.j.call = do_fopen;
  start_job(&a.j);
  if (e == O_SIGNAL) interrupt_job(&a.j, kInterrupts);
  if (e == O_CANCEL) pthread_cancel(a.j.thread);
  if (e == O_RESTART) signal_job(&a.j, kRestarts);
  if (e == O_PEER || e == O_RESTART) start_job(&b.j);
  if (e == O_RAW_PEER) fd = open(a.path, writes ? O_RDONLY : O_WRONLY);
  out += end_job(&a.j, out);
  if (e == O_PEER || e == O_RESTART) {
    *out++ = ' ';
    out += end_job(&b.j, out);
    FILE *from = (FILE*)(writes ? b.j.more : a.j.more), *to = (FILE*)(writes ? a.j.more : b.j.more);
    fputs("through it\n", to);
    fclose(to);
    char* got = fgets(line, sizeof line, from);
    sprintf(out, " %d %d", got && !strcmp(line, "through it\n"), fgets(line, sizeof line, from) == NULL && feof(from));
    fclose(from);
  } else {
    if (a.j.more) fclose((FILE*)a.j.more);
    if (fd >= 0) sprintf(out, ", %d", fcntl(fd, F_GETFL) & O_NONBLOCK), close(fd);
  }
  drop_fifo(a.path);
}

// More threads are in open() than there are workers. The thread that ends their waits is one more.
enum { kFifos = 40 };
static void crowd(const struct item* i, char* out) {
  static struct opening o[kFifos];
  int good = 0;
  for (int k = 0; k < kFifos; k++) {
    make_fifo(o[k].path);
    o[k].mode = "r";
    o[k].j.call = do_fopen;
    start_job(&o[k].j);
  }
  for (int k = kFifos; k--;) {
    char line[32] = "", number[32];
    FILE* f = fopen(o[k].path, "w");
    fprintf(f, "%d\n", k);
    fclose(f);
    pthread_join(o[k].j.thread, NULL);
    snprintf(number, sizeof number, "%d\n", k);
    FILE* from = (FILE*)o[k].j.more;
    good += fgets(line, sizeof line, from) && !strcmp(line, number);
    fclose(from);
    drop_fifo(o[k].path);
  }
  sprintf(out, "%d", good);
}

// ---- popen ----

static void pipes_from(const struct item* i, char* out) {
  char line[64] = "", second[64] = "";
  FILE* f = popen("echo one; sleep 0.05; echo two; exit 3", "r");
  assert(f);
  fgets(line, sizeof line, f);
  fgets(second, sizeof second, f);
  int end = fgets(line + 32, 32, f) == NULL && feof(f);
  int status = pclose(f);
  sprintf(out, "%.3s %.3s %d, exit %d", line, second, end, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
static void pipes_to(const struct item* i, char* out) {
  FILE* f = popen("sum=0; while read n; do sum=$((sum + n)); done; exit $sum", "w");
  assert(f);
  for (int n = 0; n < 10; n++) {
    fprintf(f, "%d\n", n);
    fflush(f);
    pause_ms(1);
  }
  int status = pclose(f);
  sprintf(out, "exit %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
// The other end of the pipe has gone.
static void pipes_to_none(const struct item* i, char* out) {
  FILE* f = popen("exec <&-; sleep 0.02; exit 5", "w");
  assert(f);
  int r;
  do {
    pause_ms(1);
    r = fputs("x\n", f) < 0 || fflush(f) != 0;
  } while (!r);
  int e = errno, status = pclose(f);
  sprintf(out, "%s, exit %d", error_name(e), WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
static long do_pclose(struct job* j) {
  int s = pclose(of(j));
  return WIFSIGNALED(s) ? 1000 + WTERMSIG(s) : WEXITSTATUS(s);
}
// Opens a pipe from a child that sleeps. Returns the child's pid.
static pid_t open_sleeper(struct job* j) {
  char line[64] = "";
  FILE* f = popen("exec sh -c 'echo $$; exec sleep 100'", "r");
  j->more = f;
  assert(f && fgets(line, sizeof line, f));
  return atoi(line);
}
static void killed_child(const struct item* i, char* out) {
  struct job j = {0};
  pid_t child = open_sleeper(&j);
  j.call = do_pclose;
  start_job(&j);
  kill(child, SIGTERM);
  end_job(&j, out);
}
// If a read of the pipe is cancelled, the child can still be waited for.
static void ended_read(const struct item* i, char* out) {
  struct job j = {0};
  pid_t child = open_sleeper(&j);
  j.size = 64;
  j.buffer = calloc(1, 64);
  j.call = do_fgets;
  start_job(&j);
  if (i->event) interrupt_job(&j, kInterrupts);
  else pthread_cancel(j.thread);
  out += end_job(&j, out);
  kill(child, SIGTERM);
  int status = pclose(of(&j));
  sprintf(out, ", ended by %d", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
  free(j.buffer);
}

static void on_pipe(int sig) {}

int main(int argc, char** argv) {
  begin(argc, argv);
  struct sigaction sa = {.sa_handler = on_pipe, .sa_flags = SA_RESTART};
  sigaction(SIGPIPE, &sa, NULL);
  for (int w = 0; w < 2; w++)
    for (int e = 0; e < kOpens; e++)
      if (e != O_BOTH || w) {
        struct item* i = add_item(opens, w ? "fopen to write" : "fopen to read", "fifo", open_names[e]);
        i->kind = w, i->event = e;
      }
  add_item(crowd, "many open", "fifo", "");
  for (int n = 0; n < 4; n++) add_item(pipes_from, "popen", "", "from");
  for (int n = 0; n < 4; n++) add_item(pipes_to, "popen", "", "to");
  add_item(pipes_to_none, "popen", "", "to none");
  add_item(killed_child, "popen", "", "killed");
  add_item(ended_read, "popen", "", "cancel")->event = 0;
  add_item(ended_read, "popen", "", "signal")->event = 1;
  return run_items();
}
