// SPDX-License-Identifier: MIT
// Signals for threads and for the process, faults, sigwait(), masks, timers, and cancellation in any state of a thread.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_t main_thread;
static volatile int on_main, on_others, spins_end;
static int fd[2];

static void count(int sig) {
  (void)sig;
  if (pthread_equal(pthread_self(), main_thread)) on_main++;
  else __atomic_fetch_add(&on_others, 1, __ATOMIC_SEQ_CST);
}
static void handle(int sig, void (*handler)(int), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = handler;
  sa.sa_flags = flags;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static void* spin(void* p) {
  while (!spins_end) {
  }
  return p;
}
static sem_t about_to_wait;
// Waits until a thread has said that it is about to wait, and then long enough that it does.
static void settle(void) {
  sem_wait(&about_to_wait);
  for (int i = 0; i < 5; i++) usleep(2000);
}

static void* read_once(void* p) {
  char c;
  sem_post(&about_to_wait);
  ssize_t r = read(fd[0], &c, 1);
  return (void*)(long)(r < 0 ? errno : 1000 + r);
}
static void* poll_once(void* p) {
  struct pollfd f = {fd[0], POLLIN, 0};
  sem_post(&about_to_wait);
  int r = poll(&f, 1, -1);
  return (void*)(long)(r < 0 ? errno : 1000 + r);
}

static sigjmp_buf back;
static void* volatile fault_address;
static void jump_back(int sig, siginfo_t* info, void* context) {
  (void)sig, (void)context;
  fault_address = info->si_addr;
  siglongjmp(back, 1);
}
// The addresses are multiples of 8, because qemu 10 rounds the address of a misaligned access.
static void fault(void) {
  for (volatile int i = 0; i < 300; i++) {
    if (!sigsetjmp(back, 1)) *(volatile int*)(long)(8 * (1 + i)) = 1;
    assert(fault_address == (void*)(long)(8 * (1 + i)));
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert(!sigismember(&now, SIGSEGV));
    if (i % 16 == 0) sched_yield();
  }
}
static void* fault_in_thread(void* p) {
  fault();
  return p;
}

static void* wait_for_usr2(void* p) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR2);
  long n = 0;
  for (int i = 0; i < 4; i++) {
    int sig = 0;
    sem_post(&about_to_wait);
    if (i % 2) assert(sigwait(&s, &sig) == 0);
    else sig = sigwaitinfo(&s, NULL);
    n += sig == SIGUSR2;
  }
  struct timespec soon = {0, 1000000};
  assert(sigtimedwait(&s, NULL, &soon) == -1 && errno == EAGAIN);
  return (void*)n;
}

static void* suspend(void* p) {
  sigset_t none;
  pthread_sigmask(SIG_BLOCK, NULL, &none);
  sigdelset(&none, SIGUSR2);
  for (int i = 0; i < 20; i++) {
    struct timespec never = {100, 0};
    sem_post(&about_to_wait);
    int r = i % 3 == 0 ? sigsuspend(&none) : i % 3 == 1 ? ppoll(NULL, 0, &never, &none) : pselect(0, NULL, NULL, NULL, &never, &none);
    assert(r == -1 && errno == EINTR);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert(sigismember(&now, SIGUSR2));
  }
  return p;
}

static int cleaned;
static void unlock(void* m) { pthread_mutex_unlock(m); }
static void clean(void* p) { cleaned += p != NULL; }
static void* waits(void* p) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  sem_t s;
  sem_init(&s, 0, 0);
  char byte;
  pthread_cleanup_push(clean, &byte);
  sem_post(&about_to_wait);
  switch ((long)p) {
    case 0: read(fd[0], &byte, 1); break;
    case 1: pause(); break;
    case 2: sem_wait(&s); break;
    case 3: sleep(100); break;
    case 4: pthread_join(main_thread, NULL); break;
    case 5: poll(NULL, 0, 100000); break;
    case 6:
      pthread_mutex_lock(&m);
      pthread_cleanup_push(unlock, &m);
      pthread_cond_wait(&c, &m);
      pthread_cleanup_pop(1);
      break;
    case 7:
      for (;;) pthread_testcancel();
    case 8:
      pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
      for (;;) {
      }
    case 9: {
      sigset_t none;
      sigemptyset(&none);
      sigsuspend(&none);
    }
  }
  pthread_cleanup_pop(0);
  return NULL;
}
static void* disabled(void* p) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  sem_post(&about_to_wait);
  for (int i = 0; i < 30; i++) usleep(1000);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  pthread_testcancel();
  return NULL;
}

static void* result_of(pthread_t t) {
  void* r;
  pthread_join(t, &r);
  return r;
}

// A signal for one thread interrupts its system call, or restarts it.
static void to_a_thread(void) {
  pthread_t t;
  handle(SIGUSR1, count, 0);
  pthread_create(&t, NULL, read_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  printf("read: %s", strerror((int)(long)result_of(t)));
  printf(", handlers %d\n", on_others);
  handle(SIGUSR1, count, SA_RESTART);
  pthread_create(&t, NULL, read_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  while (on_others < 2) sched_yield();
  assert(write(fd[1], "x", 1) == 1);
  printf("restarted: %ld\n", (long)result_of(t));
  pthread_create(&t, NULL, poll_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  printf("poll: %s\n", strerror((int)(long)result_of(t)));
}

// A signal for the process goes to the main thread, which runs or waits, and interrupts it. (The kernel now and then takes another one.)
static void to_the_process(void) {
  pthread_t spinner[2];
  for (int i = 0; i < 2; i++) pthread_create(&spinner[i], NULL, spin, NULL);
  on_main = on_others = 0;
  for (int i = 0; i < 20; i++) {
    kill(getpid(), SIGUSR1);
    raise(SIGUSR1);
    pthread_kill(pthread_self(), SIGUSR1);
  }
  assert(on_others == 0 || !getenv("LD_PRELOAD"));
  printf("main and others %d\n", on_main + on_others);
  // From another process, a signal may come while the main thread handles the one before it. With the signal blocked meanwhile, another
  // thread would get it.
  handle(SIGUSR1, count, SA_RESTART | SA_NODEFER);
  on_main = on_others = 0;
  if (fork() == 0) {
    for (int i = 0; i < 10; i++) {
      usleep(3000);
      kill(getppid(), SIGUSR1);
    }
    _exit(0);
  }
  while (wait(NULL) < 0) assert(errno == EINTR);
  assert(on_others == 0 || !getenv("LD_PRELOAD"));
  printf("from a child: some %d\n", on_main + on_others > 0);

  handle(SIGALRM, count, 0);
  on_main = 0;
  struct itimerval each = {{0, 5000}, {0, 5000}}, off = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &each, NULL);
  while (on_main < 10) pause();
  setitimer(ITIMER_REAL, &off, NULL);
  spins_end = 1;
  for (int i = 0; i < 2; i++) pthread_join(spinner[i], NULL);
}

// Handlers of faults jump out.
static void faults(void) {
  pthread_t t;
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = jump_back;
  sa.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &sa, NULL);
  fault();
  pthread_create(&t, NULL, fault_in_thread, NULL);
  pthread_join(t, NULL);
  signal(SIGSEGV, SIG_DFL);
  puts("faults");
}

// Blocked signals are waited for, pending, or taken by sigsuspend() and its like.
static void blocked(const sigset_t* usr2) {
  pthread_t t;
  sigset_t pending;
  pthread_sigmask(SIG_BLOCK, usr2, NULL);
  handle(SIGUSR2, count, 0);
  pthread_create(&t, NULL, wait_for_usr2, NULL);
  for (int i = 0; i < 4; i++) {
    settle();
    if (i < 2) pthread_kill(t, SIGUSR2);
    else kill(getpid(), SIGUSR2);
  }
  printf("sigwait %ld\n", (long)result_of(t));
  on_main = 0;
  raise(SIGUSR2);
  sigpending(&pending);
  printf("pending %d handlers %d", sigismember(&pending, SIGUSR2), on_main);
  pthread_sigmask(SIG_UNBLOCK, usr2, NULL);
  sigpending(&pending);
  printf(", then %d handlers %d\n", sigismember(&pending, SIGUSR2), on_main);
  pthread_sigmask(SIG_BLOCK, usr2, NULL);
  on_others = 0;
  pthread_create(&t, NULL, suspend, NULL);
  for (int i = 0; i < 20; i++) {
    sem_wait(&about_to_wait);
    if (i % 2) usleep(1000);
    pthread_kill(t, SIGUSR2);
  }
  pthread_join(t, NULL);
  printf("suspended: handlers %d\n", on_others);
}

static void cancellation(void) {
  pthread_t t;
  for (long how = 0; how < 10; how++) {
    pthread_create(&t, NULL, waits, (void*)how);
    if (how != 7) settle();
    pthread_cancel(t);
    assert(result_of(t) == PTHREAD_CANCELED);
    if (how == 7) sem_wait(&about_to_wait);
  }
  printf("cancelled, cleaned %d\n", cleaned);
  pthread_create(&t, NULL, disabled, NULL);
  sem_wait(&about_to_wait);
  pthread_cancel(t);
  printf("late: %d\n", result_of(t) == PTHREAD_CANCELED);
}

enum { kInterrupted, kTerminated, kByItself, kSpinning, kEnds };
// A signal whose action is the default one ends the process.
static void end_of_a_process(int how, const sigset_t* usr2) {
  fflush(stdout);
  pid_t p = fork();
  if (p == 0) {
    pthread_t t;
    sigprocmask(SIG_UNBLOCK, usr2, NULL);
    signal(SIGUSR2, SIG_DFL);
    signal(SIGINT, SIG_DFL);  // a shell without job control ignores SIGINT in its background jobs
    spins_end = 0;
    pthread_create(&t, NULL, how == kSpinning ? spin : read_once, NULL);
    if (how != kSpinning) sem_wait(&about_to_wait);
    if (how == kByItself) pthread_kill(t, SIGUSR2);
    pthread_join(t, NULL);
    _exit(1);
  }
  usleep(30000);
  if (how != kByItself) kill(p, how == kInterrupted ? SIGINT : SIGTERM);
  int status;
  waitpid(p, &status, 0);
  printf("ended by %d\n", WTERMSIG(status));
}

int main() {
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  main_thread = pthread_self();
  sem_init(&about_to_wait, 0, 0);
  assert(pipe(fd) == 0);
  to_a_thread();
  to_the_process();
  faults();
  blocked(&usr2);
  cancellation();
  for (int how = 0; how < kEnds; how++) end_of_a_process(how, &usr2);
  return 0;
}
