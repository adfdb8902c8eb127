// SPDX-License-Identifier: MIT
// no_deadlock CASE: threads that wait for a while, or for ever, and no deadlock may be reported. Ends with 0.
#include "deadlock.h"

static void send_signal(void* sig) { kill(getppid(), (int)(long)sig); }
static void do_nothing(void* p) {}
static void post_shared(void* p) { sem_post(p); }
static void post(int sig) { sem_post(&s); }
static void ignore(int sig) {}
static void* shared(void) { return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); }

// Runs f() in a child, where it never ends by itself. The child must live, without a
// report, until it is killed or its own signal ends it.
static void kept_waiting(void (*f)(void), int own_signal) {
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    f();
    _exit(9);
  }
  if (!own_signal) quiet(), kill(child, SIGKILL);
  int status;
  if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != (own_signal ? own_signal : SIGKILL)) exit(8);
}

static void with_a_waiter(void) { t[0] = start(wait_sem, 0); }
static void end(void) {
  sem_post(&s);
  pthread_join(t[0], NULL);
}

static void sleeping(void) {
  with_a_waiter();
  quiet();
  end();
}
static void timed(void) {
  with_a_waiter();
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_nsec += kQuietUs * 1000L;
  if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
  pthread_mutex_lock(&m[0]);
  while (pthread_cond_timedwait(&c, &m[0], &at) != ETIMEDOUT) {
  }
  end();
}
static void lock_in_vain(void) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec++;
  if (pthread_mutex_timedlock(&m[0], &at) != ETIMEDOUT) exit(1);
}
static void timed_lock(void) {
  with_a_waiter();
  pthread_mutex_lock(&m[0]);
  lock_in_vain();
  end();
}
// The thread with the deadline has a kernel thread of its own.
static void* lock_bound(void* p) {
  bind_to_cpu();
  lock_in_vain();
  end();
  return p;
}
static void bound(void) {
  with_a_waiter();
  pthread_mutex_lock(&m[0]);
  pthread_join(start(lock_bound, 0), NULL);
}
static void timed_join(void) {
  with_a_waiter();
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec++;
  if (pthread_timedjoin_np(t[0], NULL, &at) != ETIMEDOUT) exit(1);
  end();
}
static void sleep_for_ever(void) {
  with_a_waiter();
  for (;;) sleep(-1);
}
static void timed_for_ever(void) {
  with_a_waiter();
  struct timespec never = {1L << 60, 0};
  pthread_mutex_lock(&m[0]);
  for (;;) pthread_cond_timedwait(&c, &m[0], &never);
}

static void read_pipe(void) {
  int fd[2];
  char x;
  pipe(fd);
  later(write_byte, (void*)(long)fd[1]);
  with_a_waiter();
  if (read(fd[0], &x, 1) != 1) exit(1);
  end();
}
static void poll_pipe(void) {
  int fd[2];
  pipe(fd);
  later(write_byte, (void*)(long)fd[1]);
  with_a_waiter();
  struct pollfd p = {fd[0], POLLIN};
  if (poll(&p, 1, -1) != 1) exit(1);
  int e = epoll_create1(0);
  struct epoll_event event = {EPOLLIN};
  epoll_ctl(e, EPOLL_CTL_ADD, fd[0], &event);
  if (epoll_wait(e, &event, 1, -1) != 1) exit(1);
  end();
}
static struct sockaddr_un address = {AF_UNIX};
static void connect_there(void* p) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr*)&address, sizeof address)) _exit(1);
}
static void accept_one(void) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "fiberthread-deadlock-%d", getpid());
  if (bind(fd, (struct sockaddr*)&address, sizeof address) || listen(fd, 1)) exit(1);
  later(connect_there, NULL);
  with_a_waiter();
  if (accept(fd, NULL, NULL) < 0) exit(1);
  end();
}
static void wait_child(void) {
  pid_t child = later(do_nothing, NULL);
  with_a_waiter();
  if (waitpid(child, NULL, 0) != child) exit(1);
  end();
}

static sigset_t only(int sig) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, sig);
  return set;
}
static void sig_wait(void) {
  sigset_t set = only(SIGUSR1);
  int sig;
  sigprocmask(SIG_BLOCK, &set, NULL);
  later(send_signal, (void*)SIGUSR1);
  with_a_waiter();
  if (sigwait(&set, &sig) || sig != SIGUSR1) exit(1);
  end();
}
static void sig_suspend(void) {
  sigset_t set = only(SIGUSR1), old;
  signal(SIGUSR1, ignore);
  sigprocmask(SIG_BLOCK, &set, &old);
  later(send_signal, (void*)SIGUSR1);
  with_a_waiter();
  sigsuspend(&old);
  end();
}
static volatile int told;
static void note(int sig) { told = 1; }
// Sends more than one signal, because the first may come before pause().
static void send_signals(void* sig) {
  for (;; quiet()) send_signal(sig);
}
static void pause_until_term(void) {
  signal(SIGTERM, note);
  later(send_signals, (void*)SIGTERM);
  with_a_waiter();
  while (!told) pause();
  end();
}
static void handler_posts(void) {
  signal(SIGUSR1, post);
  later(send_signal, (void*)SIGUSR1);
  with_a_waiter();
  pthread_join(t[0], NULL);
}
static void handler_of_alarm(void) {
  signal(SIGALRM, post);
  struct itimerval in = {{0}, {0, kQuietUs}};
  with_a_waiter();
  setitimer(ITIMER_REAL, &in, NULL);
  pthread_join(t[0], NULL);
}
static void cond_and_handler(void) {
  signal(SIGUSR1, post);
  later(send_signal, (void*)SIGTERM);
  signal(SIGTERM, SIG_DFL);
  t[0] = start(wait_cond, 0);
  pthread_join(t[0], NULL);
}
static void alarm_ends_it(void) {
  struct itimerval in = {{0}, {0, kQuietUs}};
  setitimer(ITIMER_REAL, &in, NULL);
  with_a_waiter();
  pthread_join(t[0], NULL);
}

static void by_timer(union sigval v) { sem_post(&s); }
static void timer_thread(void) {
  struct sigevent e = {.sigev_notify = SIGEV_THREAD};
  e.sigev_notify_function = by_timer;
  timer_t timer;
  struct itimerspec in = {{0}, {0, kQuietUs * 1000L}};
  if (timer_create(CLOCK_MONOTONIC, &e, &timer) || timer_settime(timer, 0, &in, NULL)) exit(1);
  with_a_waiter();
  pthread_join(t[0], NULL);
}
static void aio_thread(void) {
  static char x;
  int fd[2];
  pipe(fd);
  later(write_byte, (void*)(long)fd[1]);
  with_a_waiter();
  static struct aiocb a;
  a.aio_fildes = fd[0];
  a.aio_buf = &x;
  a.aio_nbytes = 1;
  a.aio_sigevent.sigev_notify = SIGEV_THREAD;
  a.aio_sigevent.sigev_notify_function = by_timer;
  if (aio_read(&a)) exit(1);
  pthread_join(t[0], NULL);
}
static void* native(void* p) {
  struct timespec in = {0, kQuietUs * 1000L};
  nanosleep(&in, NULL);
  sem_post(&s);
  return NULL;
}
// Finds a function of libc by hand, because dlsym() returns the library's.
static void* in_libc(const char* name) {
  struct link_map* libc = dlopen("libc.so.6", RTLD_NOW);
  ElfW(Sym)* symbols = NULL;
  const char* strings = NULL;
  for (ElfW(Dyn)* d = libc->l_ld; d->d_tag != DT_NULL; d++) {
    if (d->d_tag == DT_SYMTAB) symbols = (void*)d->d_un.d_ptr;
    if (d->d_tag == DT_STRTAB) strings = (void*)d->d_un.d_ptr;
  }
  for (ElfW(Sym)* s = symbols; (const char*)s < strings; s++)
    if (s->st_value && strcmp(strings + s->st_name, name) == 0) return (char*)libc->l_addr + s->st_value;
  return NULL;
}
static void native_thread(void) {
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = in_libc("pthread_create");
  with_a_waiter();
  pthread_t thread;
  create(&thread, NULL, native, NULL);
  pthread_join(t[0], NULL);
}

static void shared_semaphore(void) {
  sem_t* sem = shared();
  sem_init(sem, 1, 0);
  later(post_shared, sem);
  with_a_waiter();
  sem_wait(sem);
  end();
}
static void shared_mutex(void) {
  pthread_mutex_t* mutex = shared();
  int* taken = (int*)(mutex + 1);
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(mutex, &attr);
  if (fork() == 0) {
    pthread_mutex_lock(mutex);
    __atomic_store_n(taken, 1, __ATOMIC_SEQ_CST);
    quiet();
    pthread_mutex_unlock(mutex);
    _exit(0);
  }
  while (!__atomic_load_n(taken, __ATOMIC_SEQ_CST)) usleep(1000);
  with_a_waiter();
  pthread_mutex_lock(mutex);
  end();
}
struct both {
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  int set;
};
static void set_there(void* p) {
  struct both* s = p;
  pthread_mutex_lock(&s->mutex);
  s->set = 1;
  pthread_cond_broadcast(&s->cond);
  pthread_mutex_unlock(&s->mutex);
}
static struct both* shared_both(void) {
  struct both* s = shared();
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&s->mutex, &attr);
  pthread_condattr_t cond_attr;
  pthread_condattr_init(&cond_attr);
  pthread_condattr_setpshared(&cond_attr, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&s->cond, &cond_attr);
  return s;
}
static void shared_cond(void) {
  struct both* s = shared_both();
  later(set_there, s);
  with_a_waiter();
  pthread_mutex_lock(&s->mutex);
  while (!s->set) pthread_cond_wait(&s->cond, &s->mutex);
  end();
}
static void shared_cond_private_mutex(void) {
  struct both* s = shared_both();
  with_a_waiter();
  pthread_mutex_lock(&m[0]);
  for (;;) pthread_cond_wait(&s->cond, &m[0]);
}

static void for_ever(void) { kept_waiting(sleep_for_ever, 0); }
static void timed_ever(void) { kept_waiting(timed_for_ever, 0); }
static void shared_private(void) { kept_waiting(shared_cond_private_mutex, 0); }
static void alarm_end(void) { kept_waiting(alarm_ends_it, SIGALRM); }
static void main_in_cond(void) { kept_waiting(cond_and_handler, SIGTERM); }

static const struct named_case cases[] = {
    {"sleep", sleeping},
    {"timed", timed},
    {"bound", bound},
    {"timedlock", timed_lock},
    {"timedjoin", timed_join},
    {"for-ever", for_ever},
    {"timed-for-ever", timed_ever},
    {"read", read_pipe},
    {"poll", poll_pipe},
    {"accept", accept_one},
    {"waitpid", wait_child},
    {"sigwait", sig_wait},
    {"sigsuspend", sig_suspend},
    {"pause", pause_until_term},
    {"handler", handler_posts},
    {"alarm-handler", handler_of_alarm},
    {"cond-handler", main_in_cond},
    {"alarm", alarm_end},
    {"timer", timer_thread},
    {"aio", aio_thread},
    {"native", native_thread},
    {"shared-sem", shared_semaphore},
    {"shared-mutex", shared_mutex},
    {"shared-cond", shared_cond},
    {"shared-private", shared_private},
};

int main(int argc, char** argv) { return run_case(cases, sizeof cases / sizeof *cases, argc, argv); }
