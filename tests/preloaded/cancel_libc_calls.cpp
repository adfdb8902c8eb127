// SPDX-License-Identifier: MIT
// Cancellation of threads in system calls of libc's own, at any moment of the call. Also of threads that libc has made.
// libs: -lrt
#include <aio.h>
#include <semaphore.h>

#include "cancel_calls.h"

namespace {

int pipe_fds[2];
char memory[8192];

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

}  // namespace

int main(int argc, char** argv) {
  begin(argc, argv);
  assert(pipe(pipe_fds) == 0);
  at_any_moment();
  of_libcs_own();
  end();
}
