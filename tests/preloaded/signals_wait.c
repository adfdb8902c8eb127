// SPDX-License-Identifier: MIT
// Which thread gets a signal, and when: parked threads are interrupted or restarted, and sigwait() and its like take signals.
#include "signals_parked.h"

// ---- waits of a thread that alone has SIGUSR1 unblocked ----

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
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

// ---- signals of another process, while all threads are parked ----

static void usr1_to_parent(int i) {
  usleep(5000);
  kill(getppid(), SIGUSR1);
}
static void to_parked_threads(void) {
  pthread_t t;
  // The main thread waits as well, and blocks the signal.
  handle(SIGUSR1, 0);
  pthread_create(&t, NULL, parked, NULL);
  settle();
  runs = 0;
  child(5, usr1_to_parent);
  while (runs < 1) usleep(1000);
  reap();
  printf("parked: some %d, in main %d\n", runs > 0, ran_in_main);
  // The last handler may still have to run.
  sem_post(&sem);
  pthread_join(t, NULL);
  pthread_create(&t, NULL, parked, NULL);
  settle();
  // The main thread has unblocked the signal, and so comes first.
  mask(SIG_UNBLOCK, SIGUSR1);
  runs = 0;
  child(1, usr1_to_parent);
  while (runs < 1) pause();
  reap();
  printf("main first: %d\n", ran_in_main);
  mask(SIG_BLOCK, SIGUSR1);
  runs = 0;
  child(1, usr1_to_parent);
  reap();
  await_runs(1);
  printf("blocked again: in main %d\n", ran_in_main);
  sem_post(&sem);
  pthread_join(t, NULL);
  kill(getpid(), SIGUSR1);
  printf("nobody: pending %d\n", is_pending(SIGUSR1));
}
// Takes a signal that is pending because all threads have it blocked.
static void taken_at_once(void) {
  struct timespec zero = {0, 0}, soon = {0, 2000000};
  sigset_t s = set_of(SIGUSR1, 0);
  siginfo_t info;
  int taken = sigtimedwait(&s, &info, &zero);
  printf("taken %d code %d pid %d, pending %d\n", taken == SIGUSR1, info.si_code, info.si_pid == getpid(), is_pending(SIGUSR1));
  errno = 0;
  printf("again: %s", name(sigtimedwait(&s, &info, &zero) < 0 ? errno : 0));
  printf(", %s", name(sigtimedwait(&s, &info, &soon) < 0 ? errno : 0));
  struct timespec bad = {0, 2000000000};
  printf(", %s\n", name(sigtimedwait(&s, &info, &bad) < 0 ? errno : 0));
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

// From the same process and from another one. Real-time signals keep their values and their order.
static void sigwait_takes(void) {
  pthread_t t;
  void* r;
  pthread_create(&t, NULL, waiter, NULL);
  settle();
  for (int i = 0; i < 3; i++) {
    if (i == 0) pthread_kill(t, SIGUSR2);
    else kill(getpid(), SIGUSR2);
    settle();
  }
  child(4, queue_to_parent);
  for (int i = 0; i < 4; i++) sem_wait(&about);
  reap();
  union sigval v = {.sival_int = 99};
  pthread_sigqueue(t, SIGRTMIN + 4, v);
  pthread_join(t, &r);
  printf("sigwait: %ld\n", (long)r);
}
static void each_takes_one(void) {
  pthread_t many[6];
  for (int i = 0; i < 6; i++) pthread_create(&many[i], NULL, takes_one, NULL);
  for (int i = 0; i < 6; i++) sem_wait(&about);
  usleep(3000);
  child(3, queue_to_parent);
  union sigval v = {.sival_int = 99};
  for (int i = 0; i < 3; i++) sigqueue(getpid(), SIGRTMIN + 4, v);
  for (int i = 0; i < 6; i++) pthread_join(many[i], NULL);
  reap();
  printf("each takes one, pending %d\n", is_pending(SIGRTMIN + 4));
}
static void cancelled_waiters(void) {
  pthread_t t;
  void* r;
  for (long i = 0; i < 4; i++) {
    pthread_create(&t, NULL, cancelled, (void*)i);
    settle();
    pthread_cancel(t);
    pthread_join(t, &r);
    printf("cancelled %d\n", r == PTHREAD_CANCELED);
  }
}
// A signalfd still finds a signal that no sigwait() has taken.
static void signalfd_finds(void) {
  sigset_t s = set_of(SIGRTMIN + 4, 0);
  int fd = signalfd(-1, &s, SFD_NONBLOCK);
  union sigval v = {.sival_int = 5};
  sigqueue(getpid(), SIGRTMIN + 4, v);
  struct signalfd_siginfo si;
  for (int i = 0; i < 2000 && read(fd, &si, sizeof si) != sizeof si; i++) usleep(1000);
  printf("signalfd: %d value %d\n", (int)si.ssi_signo - SIGRTMIN, si.ssi_int);
  close(fd);
}

int main() {
  begin();
  assert(pipe(pipe_fd) == 0);
  for (int by_process = 0; by_process < 2; by_process++)
    for (int flags = 0; flags < 2; flags++) waits(flags ? SA_RESTART : 0, by_process);
  to_parked_threads();
  taken_at_once();
  sigwait_takes();
  each_takes_one();
  cancelled_waiters();
  signalfd_finds();
  return 0;
}
