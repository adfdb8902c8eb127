// SPDX-License-Identifier: MIT
// Cancellation of threads that wait in system calls of libc's own: at any moment of the call, while it ends by itself, from and in
// handlers, and of threads that libc has made.
// Above 500 lines, because its parts share one table of calls.
// libs: -lrt
#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "queues.h"

namespace {

unsigned seed = 1;
unsigned any() { return (seed = seed * 1103515245 + 12345) >> 16; }
// Up to some microseconds, mostly few.
void pass_time() {
  for (unsigned i = any() % (1u << any() % 14); i--;) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Before 2.41, libc's asynchronous mode lets a request act when the call has ended, and what it has got is lost.
bool loses_results() {
  int major = 0, minor = 0;
  sscanf(gnu_get_libc_version(), "%d.%d", &major, &minor);
  return major == 2 && minor < 41;
}

int pipe_fds[2], locked_file, semaphores;
char memory[8192];
pid_t child;

timespec after(int seconds) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += seconds;
  return t;
}

void* result_of(pthread_t t) {
  void* r = nullptr;
  timespec bound = after(60);
  int e = pthread_timedjoin_np(t, &r, &bound);
  if (e) {
    printf("HANGS\n");
    fflush(stdout);
    kill(child, SIGKILL);
    _exit(1);
  }
  return r;
}

std::atomic<int> stage;  // 1: about to call, 2: the call has returned
std::atomic<int> cleaned, destroyed;
void wait_for_stage(int n) {
  while (stage < n) sched_yield();
}
void cleanup(void*) { cleaned++; }
struct Guard {
  ~Guard() { destroyed++; }
};

// ---- at any moment ----

struct Case {
  const char* name;
  void (*call)();
  int rounds;
};
const Case cases[] = {
    {"wait", [] { wait(nullptr); }, 40},
    {"waitpid", [] { waitpid(child, nullptr, 0); }, 40},
    {"waitid",
     [] {
       siginfo_t i;
       waitid(P_PID, child, &i, WEXITED);
     },
     40},
    {"F_SETLKW",
     [] {
       struct flock l = {};
       l.l_type = F_WRLCK;
       fcntl(locked_file, F_SETLKW, &l);
     },
     40},
    {"F_OFD_SETLKW",
     [] {
       struct flock l = {};
       l.l_type = F_WRLCK;
       fcntl(locked_file, F_OFD_SETLKW, &l);
     },
     40},
    {"lockf", [] { lockf(locked_file, F_LOCK, 0); }, 40},
    {"mq_receive", [] { mq_receive(mq_empty, memory, sizeof memory, nullptr); }, 40},
    {"mq_timedreceive",
     [] {
       timespec t = after(1000);
       mq_timedreceive(mq_empty, memory, sizeof memory, nullptr, &t);
     },
     40},
    {"mq_send", [] { mq_send(mq_full, "x", 1, 0); }, 40},
    {"msgrcv",
     [] {
       message m;
       msgrcv(queue, &m, sizeof m.text, 0, 0);
     },
     40},
    {"msgsnd",
     [] {
       message m = {1, {}};
       msgsnd(full_queue, &m, sizeof m.text, 0);
     },
     40},
    {"open of a FIFO", [] { open("fifo", O_RDONLY); }, 40},
    {"aio_suspend",
     [] {
       static aiocb cb;
       cb.aio_fildes = pipe_fds[0];
       cb.aio_buf = memory;
       cb.aio_nbytes = 1;
       cb.aio_sigevent.sigev_notify = SIGEV_NONE;
       static bool once = aio_read(&cb) == 0;
       const aiocb* list[] = {&cb};
       if (once) aio_suspend(list, 1, nullptr);
     },
     40},
    {"sigsuspend",
     [] {
       sigset_t none;
       sigemptyset(&none);
       sigsuspend(&none);
     },
     40},
    {"pause", [] { pause(); }, 40},
    {"system", [] { system("exec sleep 1000"); }, 10},
};

void* waits(void* p) {
  Guard g;
  pthread_cleanup_push(cleanup, nullptr);
  stage = 1;
  static_cast<const Case*>(p)->call();
  stage = 2;
  pthread_cleanup_pop(0);
  return nullptr;
}
void at_any_moment() {
  for (const Case& c : cases) {
    printf("%s:", c.name);
    fflush(stdout);
    cleaned = destroyed = 0;
    int cancelled = 0;
    for (int i = 0; i < c.rounds; i++) {
      pthread_t t;
      stage = 0;
      pthread_create(&t, nullptr, waits, const_cast<Case*>(&c));
      wait_for_stage(1);
      if (i % 4 == 0) usleep(1000);
      else pass_time();
      pthread_cancel(t);
      cancelled += result_of(t) == PTHREAD_CANCELED;
    }
    printf(" %d of %d cancelled, %d cleaned, %d destroyed\n", cancelled, c.rounds, cleaned.load(), destroyed.load());
  }
}

// ---- what ends at the same time ----

// A call that ends by itself: what it has got or done is told, or has not happened.
struct Ending {
  const char* name;
  bool (*call)();  // true: it has ended by itself
  void (*prepare)();
  void (*end)();        // lets it end
  bool (*untouched)();  // the call has done nothing; puts all back as it was
};
pid_t short_lived;
int release_by;  // what the child reads
int second_file, third_file;
std::atomic<int> opened;
bool lock_file(int fd, int how, int type) {
  struct flock l = {};
  l.l_type = static_cast<short>(type);
  l.l_start = 20;
  l.l_len = 1;
  return fcntl(fd, how, &l) == 0;
}
int open_files() {
  int n = 0;
  for (int i = 0; i < 100; i++) n += fcntl(i, F_GETFD) >= 0;
  return n;
}
int files_before, fifo_writer;
message m_in, m_out;
const Ending endings[] = {
    {"mq_receive", [] { return mq_receive(mq_empty, memory, sizeof memory, nullptr) == 1; }, [] {}, [] { mq_send(mq_empty, "x", 1, 0); },
     [] {
       timespec now = {};
       return mq_timedreceive(mq_empty, memory, sizeof memory, nullptr, &now) == 1;
     }},
    {"mq_send", [] { return mq_send(mq_full, "y", 1, 0) == 0; }, [] {},
     [] { assert(mq_receive(mq_full, memory, sizeof memory, nullptr) == 1); },
     [] {
       timespec now = {};
       return mq_timedsend(mq_full, "x", 1, 0, &now) == 0;
     }},
    {"msgrcv", [] { return msgrcv(queue, &m_in, sizeof m_in.text, 0, 0) == 3; }, [] {},
     [] {
       m_out.type = 1;
       assert(msgsnd(queue, &m_out, 3, 0) == 0);
     },
     [] { return msgrcv(queue, &m_out, sizeof m_out.text, 0, IPC_NOWAIT) == 3; }},
    {"waitpid", [] { return waitpid(short_lived, nullptr, 0) == short_lived; },
     [] {
       int fds[2];
       assert(pipe(fds) == 0);
       short_lived = fork();
       if (short_lived == 0) {
         char c;
         close(fds[1]);
         read(fds[0], &c, 1);
         _exit(0);
       }
       close(fds[0]);
       release_by = fds[1];
     },
     [] { close(release_by); }, [] { return waitpid(short_lived, nullptr, 0) == short_lived; }},
    {"F_OFD_SETLKW",
     [] {
       bool r = lock_file(locked_file, F_OFD_SETLKW, F_WRLCK);
       if (r) lock_file(locked_file, F_OFD_SETLK, F_UNLCK);
       return r;
     },
     [] { assert(lock_file(second_file, F_OFD_SETLK, F_WRLCK)); }, [] { lock_file(second_file, F_OFD_SETLK, F_UNLCK); },
     [] {
       bool r = lock_file(third_file, F_OFD_SETLK, F_WRLCK);
       lock_file(locked_file, F_OFD_SETLK, F_UNLCK);
       lock_file(third_file, F_OFD_SETLK, F_UNLCK);
       return r;
     }},
    {"open of a FIFO",
     [] {
       int fd = open("fifo", O_RDONLY);
       opened = fd;
       return fd >= 0;
     },
     [] { files_before = open_files(); }, [] { fifo_writer = open("fifo", O_WRONLY | O_NONBLOCK); },
     [] {
       int n = open_files() - (fifo_writer >= 0);
       for (int i = 0; i < 50 && n != files_before; i++) {  // others may have had one for a moment
         usleep(1000);
         n = open_files() - (fifo_writer >= 0);
       }
       if (fifo_writer >= 0) close(fifo_writer);
       if (opened >= 0) close(opened);
       opened = -1;
       return n == files_before;
     }},
};

void* may_end(void* p) {
  Guard g;
  stage = 1;
  bool r = static_cast<const Ending*>(p)->call();
  return r ? p : nullptr;  // no point is on the way
}
void* lets_end(void* p) {
  while (stage < 2) {
  }
  static_cast<const Ending*>(p)->end();
  return nullptr;
}
void at_the_same_time() {
  for (const Ending& e : endings) {
    printf("%s, ending:", e.name);
    fflush(stdout);
    int lost = 0, wrong = 0;
    bool fifo = !strncmp(e.name, "open", 4);
    for (int i = 0; i < 100; i++) {
      stage = 0;
      opened = -1;
      fifo_writer = -1;
      e.prepare();
      pthread_t t, other;
      pthread_create(&t, nullptr, may_end, const_cast<Ending*>(&e));
      wait_for_stage(1);
      if (any() % 2) usleep(100);
      pthread_create(&other, nullptr, lets_end, const_cast<Ending*>(&e));
      stage = 2;
      pass_time();
      pthread_cancel(t);
      void* r = result_of(t);
      result_of(other);
      wrong += r != PTHREAD_CANCELED && r != &e;
      if (fifo) {
        int fd = opened;
        bool same = e.untouched();
        if (r == PTHREAD_CANCELED) lost += !same || fd >= 0;
      } else if (r == PTHREAD_CANCELED) {
        lost += !e.untouched();
        if (!strcmp(e.name, "mq_send")) {
          // Full again, by whichever.
          timespec now = {};
          while (mq_timedsend(mq_full, "x", 1, 0, &now) == 0) {
          }
        }
      }
    }
    if (loses_results()) lost = 0;
    printf(" %d lost, %d wrong\n", lost, wrong);
  }
}

// ---- disabled, and what is no point ----

void* disabled(void*) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  stage = 1;
  long r = waitpid(short_lived, nullptr, 0) == short_lived;
  r += 2 * (msgrcv(queue, &m_in, sizeof m_in.text, 0, 0) == 3);
  return reinterpret_cast<void*>(r);
}
void* in_semop(void*) {
  stage = 1;
  sembuf b = {0, -1, 0};
  semop(semaphores, &b, 1);
  stage = 2;
  pthread_testcancel();
  return nullptr;
}
void not_ended() {
  pthread_t t;
  stage = 0;
  endings[3].prepare();
  pthread_create(&t, nullptr, disabled, nullptr);
  wait_for_stage(1);
  usleep(5000);
  pthread_cancel(t);
  usleep(1000);
  close(release_by);
  usleep(5000);
  m_out.type = 1;
  msgsnd(queue, &m_out, 3, 0);
  printf("disabled: %ld\n", reinterpret_cast<long>(result_of(t)));
  stage = 0;
  pthread_create(&t, nullptr, in_semop, nullptr);
  wait_for_stage(1);
  usleep(5000);
  pthread_cancel(t);
  usleep(5000);
  sembuf up = {0, 1, 0};
  semop(semaphores, &up, 1);
  wait_for_stage(2);  // libc's signal ends it with EINTR, ours does not
  printf("semop: %s after it\n", result_of(t) == PTHREAD_CANCELED ? "cancelled" : "returned");
}

// ---- handlers ----

std::atomic<int> in_handler, go_on;
void waits_too(int) {
  pthread_cleanup_push(cleanup, nullptr);
  in_handler = 1;
  waitpid(child, nullptr, 0);
  pthread_cleanup_pop(0);
}
void computes(int) {
  in_handler = 1;
  while (!go_on) {
  }
}
void computes_and_opens(int) {
  computes(0);
  close(open("/dev/null", O_RDONLY));
}
pthread_mutex_t mutex;
pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
std::atomic<int> unlocked;
void unlock(void*) { unlocked = pthread_mutex_unlock(&mutex); }
void* in_cond_wait(void*) {
  pthread_mutex_lock(&mutex);
  pthread_cleanup_push(unlock, nullptr);
  stage = 1;
  for (;;) pthread_cond_wait(&cond, &mutex);
  pthread_cleanup_pop(0);
}
void in_handlers() {
  struct sigaction a = {};
  a.sa_flags = SA_RESTART;
  a.sa_handler = waits_too;
  sigaction(SIGUSR1, &a, nullptr);
  a.sa_handler = computes;
  sigaction(SIGUSR2, &a, nullptr);
  int ended = 0;
  cleaned = destroyed = 0;
  for (int i = 0; i < 50; i++) {
    pthread_t t;
    stage = in_handler = 0;
    pthread_create(&t, nullptr, waits, const_cast<Case*>(&cases[1]));
    wait_for_stage(1);
    if (i % 2) usleep(1000);
    pthread_kill(t, SIGUSR1);
    while (!in_handler) sched_yield();
    if (i % 4) pass_time();
    else usleep(1000);
    pthread_cancel(t);
    ended += result_of(t) == PTHREAD_CANCELED;
  }
  printf("in a handler that waits: %d, %d cleaned, %d destroyed\n", ended, cleaned.load(), destroyed.load());

  // libc itself forgets a request that comes while the handler computes, from 2.41 on, and the call goes on for ever.
  cleaned = destroyed = ended = 0;
  bool alone = !getenv("LD_PRELOAD") && !loses_results();
  for (int i = 0; i < 50; i++) {
    pthread_t t;
    stage = in_handler = go_on = 0;
    pthread_create(&t, nullptr, waits, const_cast<Case*>(&cases[1]));
    wait_for_stage(1);
    if (i % 2) usleep(1000);
    if (alone) {
      pthread_cancel(t);
    } else {
      pthread_kill(t, SIGUSR2);
      while (!in_handler) sched_yield();
      pthread_cancel(t);
      go_on = 1;
    }
    ended += result_of(t) == PTHREAD_CANCELED;
  }
  printf("in a handler that computes: %d, %d cleaned, %d destroyed\n", ended, cleaned.load(), destroyed.load());

  pthread_mutexattr_t checked;
  pthread_mutexattr_init(&checked);
  pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&mutex, &checked);
  for (int opens = 0; opens < 2; opens++) {
    a.sa_handler = computes_and_opens;
    sigaction(SIGUSR2, &a, nullptr);
    int wrong = ended = 0;
    for (int i = 0; i < 50; i++) {
      pthread_t t;
      stage = in_handler = go_on = 0;
      unlocked = -1;
      pthread_create(&t, nullptr, in_cond_wait, nullptr);
      wait_for_stage(1);
      usleep(1000);
      pthread_kill(t, opens ? SIGUSR2 : SIGUSR1);
      while (!in_handler) sched_yield();
      if (!opens) usleep(1000);
      pthread_cancel(t);
      go_on = 1;
      ended += result_of(t) == PTHREAD_CANCELED;
      wrong += unlocked != 0;
    }
    pthread_cond_broadcast(&cond);
    printf("in a handler over a condition variable that %s: %d, %d without the mutex\n", opens ? "opens" : "waits", ended, wrong);
  }
}

// ---- threads of libc's own ----

std::atomic<pthread_t> foreign;
sem_t foreign_ended;
void foreign_cleanup(void*) {
  cleaned++;
  sem_post(&foreign_ended);
}
void notified(sigval) {
  Guard g;
  pthread_cleanup_push(foreign_cleanup, nullptr);
  foreign = pthread_self();
  waitpid(child, nullptr, 0);
  sem_post(&foreign_ended);
  pthread_cleanup_pop(0);
}
void of_libcs_own() {
  cleaned = 0;
  for (int i = 0; i < 20; i++) {
    foreign = 0;
    sem_init(&foreign_ended, 0, 0);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD;
    event.sigev_notify_function = notified;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec soon = {{0, 0}, {0, 1000}};
    timer_settime(timer, 0, &soon, nullptr);
    while (!foreign) sched_yield();
    if (i % 2) usleep(1000);
    else pass_time();
    pthread_cancel(foreign);
    timespec bound = after(60);
    if (sem_timedwait(&foreign_ended, &bound) != 0) {
      printf("a thread of libc's HANGS\n");
      break;
    }
    timer_delete(timer);
  }
  printf("threads of libc's: %d cleaned\n", cleaned.load());
}

void prepare() {
  char directory[] = "calls-XXXXXX";
  assert(mkdtemp(directory) && chdir(directory) == 0);
  assert(pipe(pipe_fds) == 0 && mkfifo("fifo", 0600) == 0);
  locked_file = open("locked", O_RDWR | O_CREAT, 0600);
  second_file = open("locked", O_RDWR);
  third_file = open("locked", O_RDWR);
  open_queues();
  semaphores = semget(IPC_PRIVATE, 1, 0600);
  int ready[2];
  assert(pipe(ready) == 0);
  pid_t parent = getpid();
  child = fork();
  if (child == 0) {
    struct flock l = {};
    l.l_type = F_WRLCK;
    l.l_len = 10;
    fcntl(locked_file, F_SETLK, &l);
    write(ready[1], "x", 1);
    while (getppid() == parent) sleep(1);
    _exit(0);
  }
  char c;
  read(ready[0], &c, 1);
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) seed = static_cast<unsigned>(atoi(argv[1]));
  prepare();
  at_any_moment();
  at_the_same_time();
  not_ended();
  in_handlers();
  of_libcs_own();
  kill(child, SIGKILL);
  remove_queues();
  semctl(semaphores, 0, IPC_RMID);
  fflush(stdout);
  _exit(0);
}
