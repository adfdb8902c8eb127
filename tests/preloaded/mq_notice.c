// SPDX-License-Identifier: MIT
// The signal of mq_notify comes, also if many threads fall asleep in the kernel between the request and the message. Sysmon then looks at them,
// and closes no copy of the queue's descriptor, which would end the request.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 8 };
static char fifo[64];
static sem_t began, came;

static void on_message(int sig, siginfo_t* info, void* context) {
  (void)context;
  if (sig == SIGUSR1 && info->si_code == SI_MESGQ) sem_post(&came);
}

static void* opens(void* p) {
  sem_post(&began);
  int fd = open(fifo, O_RDONLY);  // until somebody opens it to write
  assert(fd >= 0);
  close(fd);
  return p;
}

static void try_one(const char* how, long (*notify)(mqd_t, const struct sigevent*), mqd_t q) {
  pthread_t t[kThreads];
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_SIGNAL;
  e.sigev_signo = SIGUSR1;
  assert(notify(q, &e) == 0);
  for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, opens, NULL) == 0);
  for (int i = 0; i < kThreads; i++)
    while (sem_wait(&began)) {
    }
  usleep(20000);
  assert(mq_send(q, "x", 1, 0) == 0);
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  int r;
  while ((r = sem_timedwait(&came, &until)) && errno == EINTR) {
  }
  printf("%s: %s\n", how, r ? "no signal" : "signal");
  char c;
  assert(mq_receive(q, &c, 1, NULL) == 1);
  int fd = open(fifo, O_RDWR);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  close(fd);
}

static long by_name(mqd_t q, const struct sigevent* e) { return mq_notify(q, e); }
static long by_syscall(mqd_t q, const struct sigevent* e) { return syscall(SYS_mq_notify, q, e); }

int main(void) {
  snprintf(fifo, sizeof fifo, "/tmp/fiberthread-mq-%d", getpid());
  struct mq_attr a = {.mq_maxmsg = 1, .mq_msgsize = 1};
  mqd_t q = mq_open("/fiberthread-notice", O_CREAT | O_RDWR, 0600, &a);
  if (q < 0) {
    puts("no message queues");
    return 0;
  }
  mq_unlink("/fiberthread-notice");
  assert(mkfifo(fifo, 0600) == 0 && sem_init(&began, 0, 0) == 0 && sem_init(&came, 0, 0) == 0);
  assert(sigaction(SIGUSR1, &(struct sigaction){.sa_sigaction = on_message, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL) == 0);
  try_one("by name", by_name, q);
  fflush(stdout);
  pid_t child = fork();  // which has no reader of its own yet
  if (child == 0) {
    try_one("by system call, in a child", by_syscall, q);
    return 0;
  }
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  unlink(fifo);
}
