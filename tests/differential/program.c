// SPDX-License-Identifier: MIT
// Makes, reads, prints and runs lists of operations.
#include "differential.h"
#include <stdarg.h>
#include <sys/resource.h>

_Thread_local struct thread* me;
static struct thread all[kThreads];
bool has_children, has_timer_thread;

static void nothing(struct operation* o) { (void)o; }
// The threads end, and others begin. The arguments say how.
static const struct kind phase = {"phase", nothing, 0, 0, {1000, 4}, NULL};
// The last operation says how the process ends.
static const struct kind end = {"end", nothing, 0, 0, {9, 1000, 1000}, NULL};

static const struct kind* const tables[] = {object_kinds,     lock_kinds,    thread_kinds,   wait_kinds,    signal_kinds,
                                            descriptor_kinds, process_kinds, together_kinds, exchange_kinds};
enum { kTables = sizeof tables / sizeof *tables };

static const struct kind* kind_named(const char* name) {
  if (strcmp(name, "phase") == 0) return &phase;
  if (strcmp(name, "end") == 0) return &end;
  for (int t = 0; t < kTables; t++)
    for (const struct kind* k = tables[t]; k->name; k++)
      if (strcmp(k->name, name) == 0) return k;
  return NULL;
}

// ---- making, reading and printing ----

static unsigned below(uint64_t* state, unsigned n) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  uint64_t x = *state ^ *state >> 29;
  return n ? (x >> 16) % n : 0;
}

static const struct kind* choose(uint64_t* state) {
  int sum = 0;
  for (int t = 0; t < kTables; t++)
    for (const struct kind* k = tables[t]; k->name; k++) sum += k->weight;
  int at = below(state, sum);
  for (int t = 0; t < kTables; t++)
    for (const struct kind* k = tables[t]; k->name; k++)
      if ((at -= k->weight) < 0) return k;
  abort();
}

static unsigned choose_threads(uint64_t* state, int threads, int at_least) {
  if (at_least == 1) return 1u << below(state, threads);
  for (;;) {
    unsigned set = below(state, 1u << threads);
    if (__builtin_popcount(set) >= at_least) return set;
  }
}

static void add(struct program* p, uint64_t* state, const struct kind* k, unsigned threads) {
  struct operation* o = &p->operations[p->count++];
  *o = (struct operation){.kind = k, .threads = threads};
  for (int i = 0; i < kArguments; i++) o->a[i] = below(state, k->below[i]);
}

void generate(struct program* p, unsigned seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int i = 0; i < 4; i++) below(&state, 1);
  p->count = 0;
  int threads = 2 + below(&state, kThreads - 1), phases = 1 + below(&state, 3), length = 15 + below(&state, 30);
  for (int ph = 0; ph < phases; ph++) {
    add(p, &state, &phase, 0);
    const struct kind* k = NULL;
    unsigned set = 0;
    for (int i = 0; i < length; i++) {
      // Calls on the same object of the same thread often follow one another: the state matters.
      if (!k || k->threads > 1 || below(&state, 2)) {
        k = choose(&state);
        if (k->threads > threads) k = NULL;
        if (!k) continue;
        set = choose_threads(&state, threads, k->threads);
      }
      add(p, &state, k, set);
    }
  }
  add(p, &state, &end, 0);
}

void print(const struct program* p, FILE* f) {
  for (int i = 0; i < p->count; i++) {
    const struct operation* o = &p->operations[i];
    const char* comma = "";
    for (int t = 0; t < kThreads; t++)
      if (o->threads & 1u << t) fprintf(f, "%s%d", comma, t), comma = ",";
    fprintf(f, "%s %s", o->threads ? "" : "-", o->kind->name);
    for (int k = 0; k < kArguments && o->kind->below[k]; k++) fprintf(f, " %d", o->a[k]);
    fprintf(f, "\n");
  }
}

bool parse(struct program* p, FILE* f) {
  char line[200], threads[40], name[40];
  p->count = 0;
  while (fgets(line, sizeof line, f)) {
    if (line[0] == '#' || line[0] == '\n') continue;
    struct operation o = {0};
    if (sscanf(line, "%39s %39s %d %d %d %d", threads, name, &o.a[0], &o.a[1], &o.a[2], &o.a[3]) < 2) return false;
    for (const char* t = threads; *t; t++)
      if (*t >= '0' && *t < '0' + kThreads) o.threads |= 1u << (*t - '0');
    o.kind = kind_named(name);
    if (!o.kind || p->count == kMostOperations) return false;
    if (o.kind->threads && __builtin_popcount(o.threads) < o.kind->threads) return false;
    p->operations[p->count++] = o;
  }
  return true;
}

// ---- what all operations use ----

void say(const char* format, ...) {
  struct text* t = me->out;
  va_list list;
  va_start(list, format);
  unsigned at = t->length;
  int n = vsnprintf(t->text + at, kText - at, format, list);
  va_end(list);
  t->length = at + n < kText ? at + n : kText - 1;
}

const char* error_name(int e) {
  const char* name = e == ENOTSUP ? "ENOTSUP" : e > 0 ? strerrorname_np(e) : NULL;
  return name ? name : e == 0 ? "0" : e == PTHREAD_BARRIER_SERIAL_THREAD ? "serial" : "?";
}

int rank_in(const struct operation* o) { return __builtin_popcount(o->threads & ((1u << me->number) - 1)); }
int members(const struct operation* o) { return __builtin_popcount(o->threads); }
void* shared_of(const struct operation* o) { return (char*)o->shared + sizeof(pthread_barrier_t); }
void meet(struct operation* o) { pthread_barrier_wait(o->shared); }

struct helper {
  void* (*f)(void*);
  void* p;
  struct thread* me;
};
static void* helper_main(void* p) {
  struct helper h = *(struct helper*)p;
  free(p);
  me = h.me;
  return h.f(h.p);
}
pthread_t start_helper(void* (*f)(void*), void* p, const pthread_attr_t* attr) {
  struct helper* h = malloc(sizeof *h);
  *h = (struct helper){f, p, me};
  pthread_t t;
  int e = pthread_create(&t, attr, helper_main, h);
  if (e) say(" pthread_create=%s", error_name(e)), abort();
  return t;
}
void* join(pthread_t t) {
  void* result = NULL;
  int e = pthread_join(t, &result);
  if (e) say(" pthread_join=%s", error_name(e));
  return result;
}
void elsewhere(void* (*f)(void*), void* p) { join(start_helper(f, p, NULL)); }

int in_child(void (*f)(void*), void* p) {
  pid_t pid = fork();
  if (pid == 0) {
    f(p);
    _exit(0);
  }
  int status = -1;
  while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {
  }
  return status;
}

const char* const moment_names[] = {"past", "negative", "nsec<0", "nsec>", "soon"};
const struct timespec far_away = {4000000000, 0};
clockid_t clock_of(int i) { return i ? CLOCK_MONOTONIC : CLOCK_REALTIME; }
struct timespec moment(int which, clockid_t clock) {
  static const struct timespec fixed[] = {{1, 0}, {-1, 0}, {1, -1}, {1, 1000000000}};
  if (which < kSoon) return fixed[which];
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += 1000000;
  if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
  return t;
}
void nap(long microseconds) { nanosleep(&(struct timespec){0, microseconds * 1000}, NULL); }

// ---- running ----

struct part {
  struct thread* thread;
  struct operation *begin, *end;
  int how;  // how the thread ends
  sem_t done;
  bool detached;
};
enum { kReturns, kExits, kCancelsItself, kWays };

static void run_part(struct part* p) {
  for (struct operation* o = p->begin; o < p->end; o++) {
    if (!(o->threads & 1u << me->number)) continue;
    me->out->operation = o - p->begin + 1;
    say("%s", o->kind->name);
    for (int k = 0; k < kArguments && o->kind->below[k]; k++) say(" %d", o->a[k]);
    say(":");
    o->kind->run(o);
    if (caught_signals()) say_caught();
    say("\n");
  }
}

static void* part_main(void* v) {
  struct part* p = v;
  me = p->thread;
  me->handle = pthread_self();
  objects_begin();
  locks_begin();
  run_part(p);
  locks_end(p->detached);
  objects_end(p->detached);
  if (p->detached) sem_post(&p->done);
  else if (p->how == kExits) pthread_exit((void*)(me->number + 20L));
  else if (p->how == kCancelsItself) {
    pthread_cancel(pthread_self());
    pthread_testcancel();
  }
  return (void*)(me->number + 10L);
}

static void run_phase(struct part* parts, int threads, struct operation* begin, struct operation* last, const struct operation* how) {
  pthread_attr_t attr;
  has_children = !how || how->a[1] % 2;
  for (int i = 0; i < threads; i++) {
    struct part* p = &parts[i];
    unsigned x = how ? (how->a[0] + 7 * i) * 2654435761u >> 8 : 0;
    *p = (struct part){.thread = &all[i], .begin = begin, .end = last, .how = x % kWays, .detached = x / 8 % 4 == 0};
    if (i == 0) continue;
    sem_init(&p->done, 0, 0);
    pthread_attr_init(&attr);
    if (p->detached) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (x / 32 % 4 == 0) pthread_attr_setstacksize(&attr, 1 << 17);
    int e = pthread_create(&all[i].handle, &attr, part_main, p);
    if (e) say("pthread_create=%s\n", error_name(e));
    pthread_attr_destroy(&attr);
  }
  run_part(&parts[0]);
  say("joined");
  for (int i = 1; i < threads; i++) {
    if (parts[i].detached) {
      while (sem_wait(&parts[i].done) != 0) {
      }
      say(" detached");
    } else {
      say(" %ld", (long)join(all[i].handle));
    }
  }
  say("\n");
}

static pid_t program_pid;  // not a child's
// Called by the last thread to end, which may be a detached one that has only just printed its last line.
static void at_exit(void) {
  if (getpid() == program_pid) me = &all[0];
  say("atexit\n");
}
static pthread_t main_thread;
static void* hold_on(void* p) {
  pthread_join(main_thread, NULL);  // its destructors say something too
  say("last thread\n");
  if (has_timer_thread) exit(0);
  return p;
}
static void* end_process(void* p) {
  const struct operation* o = p;
  switch (o->a[0]) {
    case 2: exit(3);
    case 3: raise(SIGTERM); break;
    case 4: _exit(4);
    case 5: execl("/proc/self/exe", "differential", "--exit", "5", NULL); break;
    case 7: kill(getpid(), SIGKILL); break;
    default: abort();
  }
  return NULL;
}
// Ends the process, with threads that wait for ever.
_Noreturn static void end_by(struct operation* o) {
  if (o->a[0] == 1) {
    main_thread = pthread_self();
    start_helper(hold_on, NULL, NULL);
    pthread_exit(NULL);
  }
  if (o->a[0] > 1)
    for (int i = 1; i < 3; i++) start_waiting_for_ever(o->a[i] % wait_count());
  if (o->a[0] > 1 && o->a[0] < 8 && o->a[0] != 6) elsewhere(end_process, o);
  exit(6);
}

// Known and not generated: a thread that has had a process-shared mutex, or one with priority inheritance, misses a signal to the process or of
// a timer if it is the first one of the process to wait for such signals. So another thread waits first.
static void* wait_for_nothing(void* p) {
  sigtimedwait(&me->own_signal, NULL, &(struct timespec){0, 1000000});
  return p;
}

_Noreturn void run_program(struct program* p, struct text* texts) {
  static struct part parts[kThreads];
  unsigned used = 1;
  char* memory = mmap(NULL, kMostOperations * (size_t)kShared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (int i = 0; i < kThreads; i++) {
    all[i] = (struct thread){.number = i, .out = &texts[i], .objects = objects_new(), .locks = locks_new(), .random = i + 1};
    sigemptyset(&all[i].own_signal);
    sigaddset(&all[i].own_signal, OWN_SIGNAL(i));
  }
  me = &all[0];
  me->handle = pthread_self();
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  install_handlers();
  make_keys();
  fork_handlers();
  program_pid = getpid();
  atexit(at_exit);
  elsewhere(wait_for_nothing, NULL);
  for (int i = 0; i < p->count; i++) {
    struct operation* o = &p->operations[i];
    used |= o->threads;
    o->shared = memory + i * (size_t)kShared;
    if (o->threads) pthread_barrier_init(o->shared, NULL, members(o));
    if (o->kind->prepare) o->kind->prepare(o);
  }
  int threads = 32 - __builtin_clz(used);
  struct operation *o = p->operations, *all_end = o + p->count, *how = NULL;
  objects_begin();
  locks_begin();
  while (o < all_end && o->kind != &end) {
    if (o->kind == &phase) how = o++;
    struct operation* last = o;
    while (last < all_end && last->kind->threads) last++;
    run_phase(parts, threads, o, last, how);
    o = last;
  }
  if (o < all_end) end_by(o);
  exit(0);
}
