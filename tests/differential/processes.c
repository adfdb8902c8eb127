// SPDX-License-Identifier: MIT
// Children: fork, exec, spawn, how they end, what they inherit, and objects that they share with the parent.
#include "differential.h"
#include <spawn.h>

extern char** environ;

// What the handlers of pthread_atfork have done on this thread.
static _Thread_local char forked[32];
static _Thread_local int forked_count;
static void note(char c) {
  if (forked_count < 30) forked[forked_count++] = c;
}
static void prepare_1(void) { note('p'); }
static void prepare_2(void) { note('q'); }
static void parent_1(void) { note('1'); }
static void parent_2(void) { note('2'); }
static void child_1(void) { note('c'); }
static void child_2(void) { note('d'); }
void fork_handlers(void) {
  pthread_atfork(prepare_1, parent_1, child_1);
  pthread_atfork(prepare_2, parent_2, child_2);
}
static void forget_forked(void) {
  forked_count = 0;
  memset(forked, 0, sizeof forked);
}

static void say_status(int status) {
  if (WIFEXITED(status)) say(" exit %d", WEXITSTATUS(status));
  else if (WIFSIGNALED(status)) say(" signal %s", sigabbrev_np(WTERMSIG(status)));
  else if (WIFSTOPPED(status)) say(" stopped %s", sigabbrev_np(WSTOPSIG(status)));
  else say(" continued %d", WIFCONTINUED(status));
}
static int wait_for_child(pid_t pid, int flags) {
  int status = -1;
  while (waitpid(pid, &status, flags) == -1 && errno == EINTR) {
  }
  return status;
}

// ---- fork ----

static void* thread_of_child(void* v) {
  say(" thread");
  pthread_setspecific(keys[0], (void*)2L);
  return v;
}
static void* exits(void* v) { exit((int)(long)v); }
static _Thread_local pthread_t forks_now;
static void child_life(struct operation* o) {
  sigset_t mask, pending;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  sigpending(&pending);
  say(" child[%s tid %d self %d mask %d pending %d key %ld", forked, gettid() == getpid(), pthread_equal(pthread_self(), forks_now) != 0,
      sigismember(&mask, OWN_SIGNAL(0)), sigismember(&pending, OWN_SIGNAL(me->number)), (long)pthread_getspecific(keys[3]));
  for (int i = 0; i < o->a[1]; i++) elsewhere(thread_of_child, NULL);
  if (o->a[2] == 1) {
    forget_forked();
    pid_t pid = fork();
    if (pid == 0) _exit(forked_count);
    say_status(wait_for_child(pid, 0));
  }
  if (o->a[2] == 2) {
    raise(SIGUSR1);
    say_caught();
  }
  if (o->a[2] == 3) SAY_ERRNO("wait", waitpid(-1, NULL, WNOHANG));
  say("]");
  switch (o->a[0]) {
    case 0: _exit(11);
    case 1: exit(12);
    case 2: pthread_exit(NULL);
    case 3: raise(SIGTERM); break;
    case 4: abort();
    case 5: elsewhere(exits, (void*)13L); break;
    case 6: pthread_cancel(pthread_self()), pthread_testcancel(); break;
    default: raise(SIGKILL);
  }
  _exit(99);
}
static void* fork_main(void* v) {
  struct operation* o = v;
  forks_now = pthread_self();
  forget_forked();
  if (o->a[3] / 2) raise(OWN_SIGNAL(me->number));
  pid_t pid = fork();
  if (pid == 0) child_life(o);
  int status = wait_for_child(pid, 0);
  say(" %s", forked);
  say_status(status);
  if (o->a[3] / 2) say(" %d", sigtimedwait(&me->own_signal, NULL, &(struct timespec){0, 0}) > 0);
  SAY_ERRNO("again", waitpid(pid, NULL, 0));
  return NULL;
}
static void forks(struct operation* o) {
  if (!has_children) return;
  if (o->a[3] % 2) elsewhere(fork_main, o);
  else fork_main(o);
}

// ---- exec and its kin ----

static void* exec_main(void* v) {
  struct operation* o = v;
  char number[16];
  snprintf(number, sizeof number, "%d", 20 + o->a[1]);
  char* const arguments[] = {"differential", "--exit", number, NULL};
  char* const shell[] = {"sh", "-c", "exit 33", NULL};
  pid_t pid = -1;
  int status = -1, e = 0;
  switch (o->a[0]) {
    case 0:
      pid = fork();
      if (pid == 0) execv("/proc/self/exe", arguments), _exit(98);
      break;
    case 1:
      pid = vfork();
      if (pid == 0) execv("/proc/self/exe", arguments), _exit(98);
      break;
    case 2: e = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ); break;
    case 3: e = posix_spawnp(&pid, "sh", NULL, NULL, shell, environ); break;
    case 4:
      pid = fork();
      if (pid == 0) execvp("sh", shell), _exit(98);
      break;
    case 5:
      pid = vfork();
      if (pid == 0) _exit(44);
      break;
    case 6: e = posix_spawnp(&pid, "no-such-program-here", NULL, NULL, shell, environ); break;
    case 7: {
      FILE* f = popen("echo $((6 * 7))", "r");
      char line[20] = "";
      if (!fgets(line, sizeof line, f)) say(" nothing");
      line[strcspn(line, "\n")] = 0;
      say(" %s", line);
      status = pclose(f);
      break;
    }
    default: status = system("exit 5");
  }
  if (e) SAY_ERROR("spawn", e);
  if (pid > 0 && e == 0) status = wait_for_child(pid, 0);
  say_status(status);
  return NULL;
}
static void execs(struct operation* o) {
  if (!has_children) return;
  if (o->a[2]) elsewhere(exec_main, o);
  else exec_main(o);
}

// ---- stopping, and waiting in other ways ----

static void stops(struct operation* o) {
  if (!has_children) return;
  pid_t pid = fork();
  if (pid == 0) {
    if (o->a[0]) raise(SIGSTOP);
    while (o->a[0] == 2) pause();  // until it is killed
    _exit(21);
  }
  siginfo_t info = {0};
  if (o->a[0]) {
    say_status(wait_for_child(pid, WUNTRACED));
    SAY_ERRNO("kill", kill(pid, SIGCONT));
    if (o->a[0] == 2) SAY_ERRNO("terminate", kill(pid, SIGKILL));
  }
  int r;
  do r = waitid(P_PID, pid, &info, WEXITED | (o->a[1] ? WNOWAIT : 0));
  while (r == -1 && errno == EINTR);
  say(" waitid %d pid %d status %d code %d", r, info.si_pid == pid, info.si_status, info.si_code);
  if (o->a[1]) say_status(wait_for_child(pid, 0));
  SAY_ERRNO("gone", kill(pid, 0));
}

// ---- shared objects ----

struct common {
  sem_t a, b;
  pthread_mutex_t mutex, robust;
  pthread_cond_t cond;
  pthread_barrier_t barrier;
  pthread_rwlock_t rwlock;
  atomic_int serial;
  int turn, value;
};
static struct common* new_common(int type, int protocol) {
  struct common* c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t m;
  pthread_mutexattr_init(&m);
  pthread_mutexattr_setpshared(&m, 1);
  pthread_mutexattr_settype(&m, type);
  pthread_mutexattr_setprotocol(&m, protocol);
  pthread_mutex_init(&c->mutex, &m);
  pthread_mutexattr_setrobust(&m, 1);
  pthread_mutex_init(&c->robust, &m);
  pthread_condattr_t ca;
  pthread_condattr_init(&ca);
  pthread_condattr_setpshared(&ca, 1);
  pthread_cond_init(&c->cond, &ca);
  pthread_barrierattr_t b;
  pthread_barrierattr_init(&b);
  pthread_barrierattr_setpshared(&b, 1);
  pthread_barrier_init(&c->barrier, &b, 2);
  pthread_rwlockattr_t r;
  pthread_rwlockattr_init(&r);
  pthread_rwlockattr_setpshared(&r, 1);
  pthread_rwlock_init(&c->rwlock, &r);
  sem_init(&c->a, 1, 0);
  sem_init(&c->b, 1, 0);
  return c;
}
static void wait_sem(sem_t* s) {
  while (sem_wait(s) != 0) {
  }
}
// The two sides of one exchange, with as many rounds as the operation says. Both add to the common value.
static void side(struct common* c, int which, int rounds, int me_first) {
  for (int i = 0; i < rounds; i++) switch (which) {
      case 0:
        if (me_first) sem_post(&c->a), wait_sem(&c->b);
        else wait_sem(&c->a), c->value++, sem_post(&c->b);
        break;
      case 1:
        pthread_mutex_lock(&c->mutex);
        while (c->turn != me_first) pthread_cond_wait(&c->cond, &c->mutex);
        c->turn = !me_first;
        c->value++;
        pthread_cond_signal(&c->cond);
        pthread_mutex_unlock(&c->mutex);
        break;
      case 2:
        if (pthread_barrier_wait(&c->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) c->serial++;
        if (me_first) c->value++;
        break;
      case 3:
        pthread_rwlock_wrlock(&c->rwlock);
        c->value++;
        pthread_rwlock_unlock(&c->rwlock);
        pthread_rwlock_rdlock(&c->rwlock);
        pthread_rwlock_unlock(&c->rwlock);
        break;
      default:
        pthread_mutex_lock(&c->mutex);
        c->value++;
        pthread_mutex_unlock(&c->mutex);
    }
}
struct side {
  struct common* c;
  struct operation* o;
};
static void* side_main(void* v) {
  struct side* s = v;
  side(s->c, s->o->a[0], 1 + s->o->a[1], 0);
  return NULL;
}
static void side_of_child(void* v) {
  struct side* s = v;
  if (s->o->a[3]) elsewhere(side_main, s);
  else side_main(s);
}
static void shares(struct operation* o) {
  if (!has_children) return;
  struct common* c = new_common(o->a[2], o->a[3] == 2 ? PTHREAD_PRIO_INHERIT : 0);
  struct side s = {c, o};
  pid_t pid = fork();
  if (pid == 0) {
    side_of_child(&s);
    _exit(0);
  }
  side(c, o->a[0], 1 + o->a[1], 1);
  say_status(wait_for_child(pid, 0));
  say(" value %d serial %d", c->value, c->serial);
  munmap(c, sizeof *c);
}

static void* lock_robust(void* v) {
  struct common* c = v;
  SAY_ERROR("lock", pthread_mutex_lock(&c->robust));
  return v;
}
static void lock_robust_and_end(void* v) {
  lock_robust(v);
  _exit(3);
}
static void lock_robust_in_thread(void* v) {
  elsewhere(lock_robust, v);
  _exit(4);
}
static void lock_robust_and_be_killed(void* v) {
  elsewhere(lock_robust, v);
  lock_robust(v);
  raise(SIGKILL);
}
static void robust(struct operation* o) {
  if (!has_children) return;
  static void (*const ends[])(void*) = {lock_robust_and_end, lock_robust_in_thread, lock_robust_and_be_killed};
  struct common* c = new_common(o->a[2], o->a[3] ? PTHREAD_PRIO_INHERIT : 0);
  for (int i = 0; i <= o->a[1]; i++) {
    say_status(in_child(ends[o->a[0]], c));
    int e = i % 2 ? pthread_mutex_trylock(&c->robust) : pthread_mutex_lock(&c->robust);
    SAY_ERROR("lock", e);
    if (e == EOWNERDEAD && i < 3) SAY_ERROR("consistent", pthread_mutex_consistent(&c->robust));
    SAY_ERROR("unlock", pthread_mutex_unlock(&c->robust));
  }
  int e = pthread_mutex_lock(&c->robust);
  SAY_ERROR("at last", e);
  if (e == 0) pthread_mutex_unlock(&c->robust);  // else it would be in this thread's list when its memory is gone
  munmap(c, sizeof *c);
}

const struct kind process_kinds[] = {{"fork", forks, 30, 1, {8, 3, 4, 4}, NULL},    {"exec", execs, 8, 1, {9, 10, 2}, NULL},
                                     {"stop", stops, 6, 1, {3, 2}, NULL},           {"shared", shares, 20, 1, {5, 20, 4, 3}, NULL},
                                     {"robust", robust, 10, 1, {3, 4, 4, 2}, NULL}, {0}};
