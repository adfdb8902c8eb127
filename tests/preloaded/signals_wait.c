// SPDX-License-Identifier: MIT
// Who gets a signal, and when: parked threads are interrupted, restarted, or wait for it; what is pending, in which order, with
// which values; timers; the calls of old.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_t main_thread;
static sem_t about, go;
static volatile int runs, ran_in_main, last_code, last_value, last_pid;
static char order[256];

static void note(int sig, siginfo_t* info, void* context) {
  ran_in_main = pthread_equal(pthread_self(), main_thread);
  last_code = info->si_code;
  last_value = info->si_value.sival_int;
  last_pid = info->si_pid;
  size_t n = strlen(order);
  if (n < sizeof order - 8) snprintf(order + n, 8, "%d:%d ", sig >= SIGRTMIN ? sig - SIGRTMIN : -sig, last_value % 1000);
  __atomic_fetch_add(&runs, 1, __ATOMIC_SEQ_CST);
}
static void handle(int sig, int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = note;
  sa.sa_flags = flags | SA_SIGINFO;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static sigset_t set_of(int a, int b) {
  sigset_t s;
  sigemptyset(&s);
  if (a) sigaddset(&s, a);
  if (b) sigaddset(&s, b);
  return s;
}
static void mask(int how, int sig) {
  sigset_t s = set_of(sig, 0);
  pthread_sigmask(how, &s, NULL);
}
static int is_pending(int sig) {
  sigset_t s;
  sigpending(&s);
  return sigismember(&s, sig);
}
static void settle(void) {
  while (sem_wait(&about)) {
  }
  for (int i = 0; i < 5; i++) usleep(2000);
}
static void await_runs(int n) {
  while (__atomic_load_n(&runs, __ATOMIC_SEQ_CST) < n) usleep(500);
}
static const char* name(int e) {
  return e == 0           ? "0"
         : e == EINTR     ? "EINTR"
         : e == EAGAIN    ? "EAGAIN"
         : e == EINVAL    ? "EINVAL"
         : e == ESRCH     ? "ESRCH"
         : e == ETIMEDOUT ? "ETIMEDOUT"
                          : "?";
}

// ---- waits of a thread that alone has SIGUSR1 unblocked ----

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static volatile int released;
static int pipe_fd[2];
static void* wait_somehow(void* p) {
  mask(SIG_UNBLOCK, SIGUSR1);
  sem_post(&about);
  struct timespec ten = {10, 0};
  long r = -1;
  switch ((long)p) {
    case 0: r = sem_wait(&sem) ? errno : 0; break;
    case 1: {
      struct timespec t;
      clock_gettime(CLOCK_REALTIME, &t);
      t.tv_sec += 10;
      r = sem_timedwait(&sem, &t) ? errno : 0;
      break;
    }
    case 2: r = nanosleep(&ten, NULL) ? errno : 0; break;
    case 3: r = pause() ? errno : 0; break;
    case 4: {
      sigset_t none;
      sigemptyset(&none);
      r = sigsuspend(&none) ? errno : 0;
      break;
    }
    case 5: {
      sigset_t s = set_of(SIGRTMIN + 5, 0);
      r = sigwaitinfo(&s, NULL) < 0 ? errno : 0;
      break;
    }
    case 6: {
      sigset_t s = set_of(SIGRTMIN + 5, 0);
      r = sigtimedwait(&s, NULL, &ten) < 0 ? errno : 0;
      break;
    }
    case 7:
      pthread_mutex_lock(&mutex);
      while (!released) pthread_cond_wait(&cond, &mutex);
      pthread_mutex_unlock(&mutex);
      r = 0;
      break;
    case 8: {
      char c;
      r = read(pipe_fd[0], &c, 1) < 0 ? errno : 0;
      break;
    }
    case 9: r = usleep(10000000) ? errno : 0; break;
    case 10: r = clock_nanosleep(CLOCK_MONOTONIC, 0, &ten, NULL); break;
    case 11:
      r = pthread_mutex_lock(&mutex);
      pthread_mutex_unlock(&mutex);
      break;
  }
  return (void*)r;
}
enum { kWays = 12 };
static void release(long how) {
  if (how == 0 || how == 1) sem_post(&sem);
  if (how == 7) {
    pthread_mutex_lock(&mutex);
    released = 1;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
  }
  if (how == 8) assert(write(pipe_fd[1], "x", 1) == 1);
  if (how == 11) pthread_mutex_unlock(&mutex);
}
static void waits(int flags, int by_process) {
  printf("%s, %s:", by_process ? "to the process" : "to the thread", flags ? "SA_RESTART" : "no flags");
  handle(SIGUSR1, flags);
  for (long how = 0; how < kWays; how++) {
    released = 0;
    runs = 0;
    if (how == 11) pthread_mutex_lock(&mutex);
    pthread_t t;
    pthread_create(&t, NULL, wait_somehow, (void*)how);
    settle();
    if (by_process) kill(getpid(), SIGUSR1);
    else pthread_kill(t, SIGUSR1);
    await_runs(1);
    usleep(2000);
    void* r;
    release(how);
    pthread_join(t, &r);
    printf(" %s%s", name((int)(long)r), ran_in_main ? " in main" : "");
    while (sem_trywait(&sem) == 0) {
    }
    close(pipe_fd[0]), close(pipe_fd[1]);
    assert(pipe(pipe_fd) == 0);
  }
  puts("");
}

// ---- from outside, everybody parked ----

static void child(int n, void (*f)(int)) {
  fflush(stdout);
  if (fork() == 0) {
    for (int i = 0; i < n; i++) f(i);
    _exit(0);
  }
}
static void usr1_to_parent(int i) {
  usleep(5000);
  kill(getppid(), SIGUSR1);
}
static void* parked(void* p) {
  mask(SIG_UNBLOCK, SIGUSR1);
  sem_post(&about);
  while (sem_wait(&sem)) assert(errno == EINTR);
  return p;
}

// ---- the sigwait family ----

static void* waiter(void* p) {
  sigset_t s = set_of(SIGUSR2, SIGRTMIN + 4);
  siginfo_t info;
  long n = 0;
  sem_post(&about);
  for (;;) {
    int sig = sigwaitinfo(&s, &info);
    if (sig < 0) {
      assert(errno == EINTR);
      continue;
    }
    if (info.si_value.sival_int == 99 && info.si_code == SI_QUEUE) return (void*)n;
    n += sig == SIGUSR2 ? 1 : info.si_value.sival_int * 10;
    sem_post(&about);
  }
}
static void* takes_one(void* p) {
  sigset_t s = set_of(SIGRTMIN + 4, 0);
  int sig = 0;
  sem_post(&about);
  assert(sigwait(&s, &sig) == 0 && sig == SIGRTMIN + 4);
  return p;
}
static void queue_to_parent(int i) {
  usleep(1000);
  union sigval v = {.sival_int = i + 1};
  sigqueue(getppid(), SIGRTMIN + 4, v);
}
static void* cancelled(void* p) {
  sigset_t s = set_of(SIGRTMIN + 4, 0), none;
  sigemptyset(&none);
  sem_post(&about);
  if (p == (void*)0) sigwaitinfo(&s, NULL);
  if (p == (void*)1) sigsuspend(&none);
  if (p == (void*)2) pause();
  if (p == (void*)3) {
    int sig;
    sigwait(&s, &sig);
  }
  return NULL;
}

static void* spins(void* p) {
  mask(SIG_UNBLOCK, SIGUSR1);
  sem_post(&about);
  while (!released) {
  }
  return p;
}
static void* pends(void* p) {
  sem_post(&about);
  while (sem_wait(&go)) {
  }
  long n = is_pending(SIGUSR2) + 10 * is_pending(SIGRTMIN + 4);
  sigset_t s = set_of(SIGUSR2, SIGRTMIN + 4);
  order[0] = 0;
  pthread_sigmask(SIG_UNBLOCK, &s, NULL);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  return (void*)n;
}
static void* nothing(void* p) { return p; }
static void on_timer_thread(union sigval v) {
  if (__atomic_add_fetch(&runs, 1, __ATOMIC_SEQ_CST) == 1) sem_post(v.sival_ptr);
}

int main() {
  setlinebuf(stdout);
  main_thread = pthread_self();
  sem_init(&about, 0, 0);
  sem_init(&go, 0, 0);
  sem_init(&sem, 0, 0);
  assert(pipe(pipe_fd) == 0);
  pthread_t t;
  void* r;
  sigset_t s = set_of(SIGUSR2, SIGRTMIN + 4);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  mask(SIG_BLOCK, SIGUSR1);
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);

  for (int by_process = 0; by_process < 2; by_process++)
    for (int flags = 0; flags < 2; flags++) waits(flags ? SA_RESTART : 0, by_process);

  // From another process, with main waiting as well, which blocks it.
  handle(SIGUSR1, 0);
  pthread_create(&t, NULL, parked, NULL);
  settle();
  runs = 0;
  child(5, usr1_to_parent);
  while (runs < 1) usleep(1000);
  while (wait(NULL) < 0) {
  }
  printf("parked: some %d, in main %d\n", runs > 0, ran_in_main);
  // Main has it unblocked: it comes first.
  mask(SIG_UNBLOCK, SIGUSR1);
  runs = 0;
  child(1, usr1_to_parent);
  while (runs < 1) pause();
  while (wait(NULL) < 0) {
  }
  printf("main first: %d\n", ran_in_main);
  mask(SIG_BLOCK, SIGUSR1);
  runs = 0;
  child(1, usr1_to_parent);
  while (wait(NULL) < 0) {
  }
  await_runs(1);
  printf("blocked again: in main %d\n", ran_in_main);
  sem_post(&sem);
  pthread_join(t, NULL);
  kill(getpid(), SIGUSR1);
  printf("nobody: pending %d\n", is_pending(SIGUSR1));
  struct timespec zero = {0, 0}, soon = {0, 2000000};
  s = set_of(SIGUSR1, 0);
  siginfo_t info;
  int taken = sigtimedwait(&s, &info, &zero);
  printf("taken %d code %d pid %d, pending %d\n", taken == SIGUSR1, info.si_code, info.si_pid == getpid(), is_pending(SIGUSR1));
  errno = 0;
  printf("again: %s", name(sigtimedwait(&s, &info, &zero) < 0 ? errno : 0));
  printf(", %s", name(sigtimedwait(&s, &info, &soon) < 0 ? errno : 0));
  struct timespec bad = {0, 2000000000};
  printf(", %s\n", name(sigtimedwait(&s, &info, &bad) < 0 ? errno : 0));

  // Sigwait, from within and from outside; real-time signals keep their values and their order.
  pthread_create(&t, NULL, waiter, NULL);
  settle();
  for (int i = 0; i < 3; i++) {
    if (i == 0) pthread_kill(t, SIGUSR2);
    else kill(getpid(), SIGUSR2);
    settle();
  }
  child(4, queue_to_parent);
  for (int i = 0; i < 4; i++) sem_wait(&about);
  while (wait(NULL) < 0) {
  }
  union sigval v = {.sival_int = 99};
  pthread_sigqueue(t, SIGRTMIN + 4, v);
  pthread_join(t, &r);
  printf("sigwait: %ld\n", (long)r);
  pthread_t many[6];
  for (int i = 0; i < 6; i++) pthread_create(&many[i], NULL, takes_one, NULL);
  for (int i = 0; i < 6; i++) sem_wait(&about);
  usleep(3000);
  child(3, queue_to_parent);
  for (int i = 0; i < 3; i++) sigqueue(getpid(), SIGRTMIN + 4, v);
  for (int i = 0; i < 6; i++) pthread_join(many[i], NULL);
  while (wait(NULL) < 0) {
  }
  printf("each takes one, pending %d\n", is_pending(SIGRTMIN + 4));
  for (long i = 0; i < 4; i++) {
    pthread_create(&t, NULL, cancelled, (void*)i);
    settle();
    pthread_cancel(t);
    pthread_join(t, &r);
    printf("cancelled %d\n", r == PTHREAD_CANCELED);
  }

  // A signalfd still finds what sigwait has let lie.
  s = set_of(SIGRTMIN + 4, 0);
  int fd = signalfd(-1, &s, SFD_NONBLOCK);
  v.sival_int = 5;
  sigqueue(getpid(), SIGRTMIN + 4, v);
  struct signalfd_siginfo si;
  for (int i = 0; i < 2000 && read(fd, &si, sizeof si) != sizeof si; i++) usleep(1000);
  printf("signalfd: %d value %d\n", (int)si.ssi_signo - SIGRTMIN, si.ssi_int);
  close(fd);

  // Pending for a thread: once for standard ones, queued for real-time ones; lowest first.
  handle(SIGUSR2, 0);
  handle(SIGRTMIN + 4, 0);
  pthread_create(&t, NULL, pends, NULL);
  settle();
  for (int i = 0; i < 3; i++) {
    pthread_kill(t, SIGUSR2);
    v.sival_int = 100 + i;
    pthread_sigqueue(t, SIGRTMIN + 4, v);
  }
  runs = 0;
  sem_post(&go);
  pthread_join(t, &r);
  printf("pending %ld, runs %d: %s\n", (long)r, runs, order);
  printf("main: pending %d %d\n", is_pending(SIGUSR2), is_pending(SIGRTMIN + 4));

  // What a handler is told.
  runs = 0;
  mask(SIG_UNBLOCK, SIGRTMIN + 4);
  v.sival_int = 7;
  sigqueue(getpid(), SIGRTMIN + 4, v);
  printf("sigqueue: code %d value %d pid %d\n", last_code == SI_QUEUE, last_value, last_pid == getpid());
  pthread_sigqueue(pthread_self(), SIGRTMIN + 4, v);
  printf("pthread_sigqueue: code %d value %d pid %d\n", last_code == SI_QUEUE, last_value, last_pid == getpid());
  pthread_kill(pthread_self(), SIGRTMIN + 4);
  printf("pthread_kill: code %d pid %d\n", last_code == SI_TKILL, last_pid == getpid());
  kill(getpid(), SIGRTMIN + 4);
  printf("kill: code %d pid %d\n", last_code == SI_USER, last_pid == getpid());
  raise(SIGRTMIN + 4);
  printf("raise: code %d runs %d\n", last_code == SI_TKILL, runs);
  printf("no signal: %s, bad: %s %s\n", name(pthread_kill(pthread_self(), 0)), name(pthread_kill(pthread_self(), 65)),
         name(kill(getpid(), 65) ? errno : 0));

  // Threads that run, or have ended.
  handle(SIGUSR1, 0);
  released = 0;
  runs = 0;
  pthread_create(&t, NULL, spins, NULL);
  settle();
  for (int i = 0; i < 20; i++) {
    pthread_kill(t, SIGUSR1);
    await_runs(i + 1);
  }
  released = 1;
  pthread_join(t, NULL);
  printf("spinning: %d\n", runs);
  pthread_create(&t, NULL, nothing, NULL);
  usleep(20000);
  printf("ended: %s\n", name(pthread_kill(t, SIGUSR1)));
  pthread_join(t, NULL);

  // Timers.
  timer_t timer;
  struct sigevent e;
  struct itimerspec in = {{0, 0}, {0, 2000000}};
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_SIGNAL;
  e.sigev_signo = SIGRTMIN + 4;
  e.sigev_value.sival_int = 77;
  runs = 0;
  timer_create(CLOCK_MONOTONIC, &e, &timer);
  timer_settime(timer, 0, &in, NULL);
  while (runs < 1) pause();
  printf("timer: code %d value %d\n", last_code == SI_TIMER, last_value);
  timer_delete(timer);
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = on_timer_thread;
  e.sigev_value.sival_ptr = &go;
  runs = 0;
  timer_create(CLOCK_MONOTONIC, &e, &timer);
  timer_settime(timer, 0, &in, NULL);
  while (sem_wait(&go)) {
  }
  timer_delete(timer);
  puts("timer's thread");
  e.sigev_notify = SIGEV_THREAD_ID;
  e.sigev_signo = SIGUSR2;
  e._sigev_un._tid = gettid();
  mask(SIG_UNBLOCK, SIGUSR2);
  runs = 0;
  timer_create(CLOCK_MONOTONIC, &e, &timer);
  timer_settime(timer, 0, &in, NULL);
  while (runs < 1) pause();
  timer_delete(timer);
  printf("thread's timer: in main %d\n", ran_in_main);
  handle(SIGALRM, 0);
  runs = 0;
  ualarm(2000, 0);
  while (runs < 1) pause();
  printf("alarm: in main %d\n", ran_in_main);

  // The calls of old.
  printf("sighold %d, ", sighold(SIGUSR2));
  raise(SIGUSR2);
  printf("pending %d, ", is_pending(SIGUSR2));
  printf("sigrelse %d, ", sigrelse(SIGUSR2));
  printf("pending %d\n", is_pending(SIGUSR2));
  printf("sigignore %d, ", sigignore(SIGUSR2));
  raise(SIGUSR2);
  printf("sigset %d, ", sigset(SIGUSR2, SIG_HOLD) == SIG_IGN);
  printf("hold %d\n", sigset(SIGUSR2, SIG_DFL) == SIG_HOLD);
  handle(SIGUSR2, SA_RESTART);
  struct sigaction sa;
  siginterrupt(SIGUSR2, 1);
  sigaction(SIGUSR2, NULL, &sa);
  printf("siginterrupt: %d", !!(sa.sa_flags & SA_RESTART));
  siginterrupt(SIGUSR2, 0);
  sigaction(SIGUSR2, NULL, &sa);
  printf(" %d\n", !!(sa.sa_flags & SA_RESTART));

  // How it all ends: blocked by main, unblocked in a parked thread, by default deadly.
  for (int how = 0; how < 3; how++) {
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
      signal(SIGUSR1, SIG_DFL);
      mask(how == 2 ? SIG_BLOCK : SIG_UNBLOCK, SIGABRT);
      if (how == 2) {
        handle(SIGABRT, 0);
        pthread_create(&t, NULL, (void* (*)(void*))abort, NULL);
        pthread_join(t, NULL);
      }
      mask(SIG_BLOCK, SIGUSR1);
      pthread_create(&t, NULL, parked, NULL);
      settle();
      if (how == 0) kill(getpid(), SIGUSR1);
      else
        for (;;) pause();
      pthread_join(t, NULL);
      _exit(1);
    }
    if (how == 1) {
      usleep(30000);
      kill(p, SIGUSR1);
    }
    int status;
    waitpid(p, &status, 0);
    printf("ended by %d\n", WTERMSIG(status));
  }
  return 0;
}
