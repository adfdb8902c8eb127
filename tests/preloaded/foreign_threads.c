// SPDX-License-Identifier: MIT
// Threads that pthread_create does not make: libc's helpers for timers, asynchronous I/O, name look-up and message queues, and raw clones.
// They use what threads use.
// libs: -lrt -lanl
#define _GNU_SOURCE
#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "foreign.h"

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER, recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static sem_t sem;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int onces;
static int counter;

static void run_once(void) { onces++; }
static void* returns_it(void* p) {
  usleep(100);
  return p;
}
static void* posts_it(void* p) {
  usleep(200);
  sem_post(p);
  return NULL;
}

// Does everything, on whatever thread this is.
static char result[32][160];
static void everything(int who, int keys) {
  char* out = result[who];
  *out = 0;
#define SAY(...) snprintf(out + strlen(out), sizeof result[0] - strlen(out), __VA_ARGS__)
  for (int i = 0; i < 200; i++) {
    pthread_mutex_lock(&m);
    counter++;
    pthread_mutex_unlock(&m);
  }
  pthread_mutex_lock(&recursive);
  SAY("rec %d ", pthread_mutex_lock(&recursive));
  pthread_mutex_unlock(&recursive);
  pthread_mutex_unlock(&recursive);
  pthread_mutex_lock(&checked);
  SAY("chk %d ", pthread_mutex_lock(&checked));
  SAY("%d ", pthread_mutex_unlock(&checked));
  SAY("%d ", pthread_mutex_unlock(&checked));
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += 2000000;
  if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
  pthread_mutex_lock(&m);
  static pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
  SAY("cond %d ", pthread_cond_timedwait(&nobody, &m, &t));
  pthread_cond_signal(&c);
  pthread_mutex_unlock(&m);
  pthread_rwlock_rdlock(&rw);
  pthread_rwlock_unlock(&rw);
  pthread_rwlock_wrlock(&rw);
  pthread_rwlock_unlock(&rw);
  pthread_spin_lock(&spin);
  pthread_spin_unlock(&spin);
  pthread_once(&once, run_once);
  if (keys) {
    pthread_setspecific(key, (void*)(long)(who + 1));
    SAY("key %ld ", (long)pthread_getspecific(key) - who);
  }
  // Makes a fiber, waits for it and joins it.
  pthread_t f;
  void* r = NULL;
  SAY("create %d ", pthread_create(&f, NULL, returns_it, (void*)5L));
  SAY("join %d ", pthread_join(f, &r));
  SAY("%ld ", (long)r);
  sem_t mine;
  sem_init(&mine, 0, 0);
  pthread_create(&f, NULL, posts_it, &mine);
  sem_wait(&mine);
  pthread_join(f, NULL);
  clock_gettime(CLOCK_REALTIME, &t);
  SAY("sem %d ", sem_timedwait(&mine, &t) == -1 ? errno : 0);
  SAY("trywait %d ", sem_trywait(&mine) == -1 ? errno : 0);
  usleep(100);
  sched_yield();
  SAY("equal %d ", pthread_equal(pthread_self(), pthread_self()) != 0);
  int old = -1;
  SAY("state %d ", pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old));
  // Signals to the thread and from it.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_kill(pthread_self(), SIGUSR2);
  struct timespec second = {10, 0};
  SAY("sig %d ", sigtimedwait(&set, NULL, &second));
}
static void expect_same(const char* name, int from, int to) {
  for (int i = from; i < to; i++)
    if (i == from || strcmp(result[i], result[from])) printf("%s: %s\n", name, result[i]);
}

// ---- the kinds ----

static void on_timer(union sigval v) {
  everything(v.sival_int, 1);
  sem_post(&done);
}

static void timers(void) {
  timer_t t[6];
  for (int i = 0; i < 6; i++) {
    struct sigevent e = {};
    e.sigev_notify = SIGEV_THREAD;
    e.sigev_notify_function = on_timer;
    e.sigev_value.sival_int = i;
    if (timer_create(i % 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC, &e, &t[i]) != 0) printf("no timer: %s\n", strerror(errno));
    struct itimerspec soon = {{0, 0}, {0, 1000000 * (i + 1)}};
    timer_settime(t[i], 0, &soon, NULL);
  }
  wait_all(6);
  for (int i = 0; i < 6; i++) printf("%d", timer_delete(t[i]));
  puts(" timers deleted");
  expect_same("timer", 0, 6);
}

static void on_aio(union sigval v) {
  everything(v.sival_int, 1);
  sem_post(&done);
}

static void aios(void) {
  int fd = open("aio-file", O_RDWR | O_CREAT | O_TRUNC, 0600);
  unlink("aio-file");
  static char data[4][4096];
  struct aiocb cb[4];
  memset(cb, 0, sizeof cb);
  for (int i = 0; i < 4; i++) {
    memset(data[i], 'a' + i, sizeof data[i]);
    cb[i].aio_fildes = fd;
    cb[i].aio_buf = data[i];
    cb[i].aio_nbytes = sizeof data[i];
    cb[i].aio_offset = i * 4096;
    cb[i].aio_sigevent.sigev_notify = SIGEV_THREAD;
    cb[i].aio_sigevent.sigev_notify_function = on_aio;
    cb[i].aio_sigevent.sigev_value.sival_int = i;
    assert(aio_write(&cb[i]) == 0);
  }
  for (int i = 0; i < 4; i++) {
    const struct aiocb* list[] = {&cb[i]};
    while (aio_error(&cb[i]) == EINPROGRESS) aio_suspend(list, 1, NULL);
    printf("%zd ", aio_return(&cb[i]));
  }
  wait_all(4);
  struct aiocb* all[4];
  for (int i = 0; i < 4; i++) {
    cb[i].aio_lio_opcode = LIO_READ;
    cb[i].aio_sigevent.sigev_notify = SIGEV_NONE;
    memset(data[i], 0, sizeof data[i]);
    all[i] = &cb[i];
  }
  printf("lio %d ", lio_listio(LIO_WAIT, all, 4, NULL));
  struct aiocb sync = {};
  sync.aio_fildes = fd;
  aio_fsync(O_SYNC, &sync);
  const struct aiocb* list[] = {&sync};
  while (aio_error(&sync) == EINPROGRESS) aio_suspend(list, 1, NULL);
  printf("fsync %d\n", aio_error(&sync));
  close(fd);
  expect_same("aio", 0, 4);
}

static void on_names(union sigval v) {
  everything(v.sival_int, 1);
  sem_post(&done);
}
static void names(void) {
  struct addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  struct gaicb cb = {.ar_name = "127.0.0.1", .ar_request = &hints};
  struct gaicb* list[] = {&cb};
  struct sigevent e = {};
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = on_names;
  e.sigev_value.sival_int = 0;
  printf("getaddrinfo_a %d, ", getaddrinfo_a(GAI_NOWAIT, list, 1, &e));
  wait_all(1);
  printf("%d, ", gai_error(&cb));
  struct gaicb cb2 = {.ar_name = "127.0.0.1", .ar_request = &hints};
  list[0] = &cb2;
  printf("%d\n", getaddrinfo_a(GAI_WAIT, list, 1, NULL));
  expect_same("names", 0, 1);
}

static void on_message(union sigval v) {
  everything(v.sival_int, 1);
  sem_post(&done);
}
static void queues(void) {
  char name[64];
  snprintf(name, sizeof name, "/fiberthread-test-%d", getpid());
  struct mq_attr a = {.mq_maxmsg = 2, .mq_msgsize = 16};
  mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, &a);
  if (q < 0) {
    printf("no message queues\n");
    return;
  }
  mq_unlink(name);
  struct sigevent e = {};
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = on_message;
  e.sigev_value.sival_int = 0;
  printf("mq_notify %d", mq_notify(q, &e));
  mq_send(q, "hello", 6, 0);
  wait_all(1);
  char text[16];
  printf(", %zd\n", mq_receive(q, text, sizeof text, NULL));
  mq_close(q);
  expect_same("queue", 0, 1);
}

// The thread's handlers run where it was interrupted, unless they ask for its alternate stack.
static atomic_int here;
static __thread char* other;
enum { kOther = 65536 };
static void looks_where(int sig) {
  char c;
  here = other && &c > other && &c < other + kOther ? 2 : 1;
  if (sig == SIGUSR1 && here == 2) {
    here = 5;
    return;
  }
  // A second handler uses the alternate stack while this one runs.
  if (sig == SIGUSR1) {
    volatile char mine[64];
    memset((char*)mine, 7, sizeof mine);
    pthread_kill(pthread_self(), SIGUSR2);
    if (here != 2) here = 3;
    for (int i = 0; i < 64; i++)
      if (mine[i] != 7) here = 4;
  }
}
static void handles(union sigval v) {
  other = malloc(kOther);
  stack_t s = {other, 0, kOther}, now;
  sigaltstack(&s, NULL);
  struct sigaction a = {};
  a.sa_handler = looks_where;
  sigaction(SIGUSR1, &a, NULL);
  a.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &a, NULL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  for (int i = 0; i < 3; i++) {
    here = 0;
    pthread_kill(pthread_self(), SIGUSR2);
    int onstack = here;
    here = 0;
    pthread_kill(pthread_self(), SIGUSR1);
    sigaltstack(NULL, &now);
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    printf("on stack %d, then %d; the other stack is as before: %d %d; blocked %d\n", onstack, here, now.ss_sp == other, now.ss_flags,
           sigismember(&set, SIGUSR1));
  }
  s.ss_flags = SS_DISABLE;
  sigaltstack(&s, NULL);
  free(other);
  other = NULL;
  sem_post(&done);
}
static void stacks(void) {
  timer_t t;
  struct sigevent e = {};
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = handles;
  timer_create(CLOCK_MONOTONIC, &e, &t);
  struct itimerspec soon = {{0, 0}, {0, 1000000}};
  timer_settime(t, 0, &soon, NULL);
  wait_all(1);
  timer_delete(t);
}
static void* forks_with_other_stack(void* p) {
  other = malloc(kOther);
  stack_t s = {other, 0, kOther};
  sigaltstack(&s, NULL);
  struct sigaction a = {};
  a.sa_handler = looks_where;
  sigaction(SIGUSR1, &a, NULL);
  a.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &a, NULL);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    for (int i = 0; i < 3; i++) {
      here = 0;
      kill(getpid(), SIGUSR2);
      if (here != 2) _exit(10 + here);
      here = 0;
      kill(getpid(), SIGUSR1);
      if (here != 2) _exit(20 + here);
    }
    _exit(7);
  }
  int status;
  while (waitpid(pid, &status, 0) != pid) {
  }
  printf("in a child: %#x\n", status);
  return NULL;
}

// Helpers and fibers wait for each other.
static atomic_int turns;
static void waits_for_fibers(union sigval v) {
  pthread_barrier_wait(&barrier);
  pthread_mutex_lock(&m);
  while (turns < 4) pthread_cond_wait(&c, &m);
  pthread_mutex_unlock(&m);
  sem_post(&done);
}
static void* meets(void* p) {
  pthread_barrier_wait(&barrier);
  pthread_mutex_lock(&m);
  turns++;
  pthread_cond_broadcast(&c);
  pthread_mutex_unlock(&m);
  return NULL;
}
static void together(void) {
  timer_t t[4];
  pthread_t f[4];
  turns = 0;
  for (int i = 0; i < 4; i++) {
    struct sigevent e = {};
    e.sigev_notify = SIGEV_THREAD;
    e.sigev_notify_function = waits_for_fibers;
    timer_create(CLOCK_MONOTONIC, &e, &t[i]);
    struct itimerspec soon = {{0, 0}, {0, 500000}};
    timer_settime(t[i], 0, &soon, NULL);
    pthread_create(&f[i], NULL, meets, NULL);
  }
  for (int i = 0; i < 4; i++) pthread_join(f[i], NULL);
  wait_all(4);
  for (int i = 0; i < 4; i++) timer_delete(t[i]);
  printf("together: %d\n", turns);
}

// A raw clone has no thread control block of its own: it may do system calls and little else.
static int word;
static char stack[65536];
static int cloned(void* p) {
  for (int i = 0; i < 1000; i++) __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static void* clones(void* p) {
  int tid_word = 1;
  int tid = clone(
      cloned, stack + sizeof stack,
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID, NULL,
      NULL, NULL, &tid_word);
  while (__atomic_load_n(&tid_word, __ATOMIC_SEQ_CST)) usleep(100);
  printf("clone: %d, %d\n", tid > 0, word);
  return NULL;
}

int main() {
  alarm(120);
  sem_init(&done, 0, 0);
  sem_init(&sem, 0, 0);
  pthread_spin_init(&spin, 0);
  pthread_barrier_init(&barrier, NULL, 8);
  pthread_key_create(&key, destructor);
  // Before any thread is made, and afterwards.
  timers();
  pthread_t t;
  pthread_create(&t, NULL, returns_it, NULL);
  pthread_join(t, NULL);
  timers();
  aios();
  names();
  queues();
  stacks();
  pthread_create(&t, NULL, forks_with_other_stack, NULL);
  pthread_join(t, NULL);
  together();
  pthread_create(&t, NULL, clones, NULL);
  pthread_join(t, NULL);
  clones(NULL);
  printf("counter %d, onces %d\n", counter, onces);
  return 0;
}
