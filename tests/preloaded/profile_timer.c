// SPDX-License-Identifier: MIT
// setitimer()'s signals of CPU time come to the threads that use it, and find them where they use it: gprof, gperftools and others profile
// by that. Threads that wait get none.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define SAMPLES 200

static volatile int samples, inside, waiting, stop;
static __thread volatile int computes;
extern char __start_computing[], __stop_computing[];

static void on_signal(int sig, siginfo_t* info, void* context) {
  ucontext_t* uc = context;
#ifdef __x86_64__
  char* pc = (char*)uc->uc_mcontext.gregs[REG_RIP];
#else
  char* pc = (char*)uc->uc_mcontext.pc;
#endif
  (void)sig, (void)info;
  if (__atomic_load_n(&stop, __ATOMIC_RELAXED)) return;
  if (!computes) __atomic_add_fetch(&waiting, 1, __ATOMIC_RELAXED);
  if (pc >= __start_computing && pc < __stop_computing) __atomic_add_fetch(&inside, 1, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&samples, 1, __ATOMIC_RELAXED) >= SAMPLES) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
}

__attribute__((section("computing"), noinline)) static void compute(void) {
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
    for (int i = 0; i < 100000; i++) __asm__ volatile("" : "+r"(i));
}

static void* run(void* p) {
  computes = 1;
  compute();
  return p;
}

// Once for all CPU time, and once for that in user mode. What a thread did shortly before or after a tick may count, so some signals may come
// elsewhere.
static void profile(int which, int sig) {
  struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct itimerval every = {{0, 1000}, {0, 1000}}, off = {0};
  pthread_t t[5];
  samples = inside = waiting = stop = 0;
  sigaction(sig, &a, 0);
  setitimer(which, &every, 0);
  for (int i = 0; i < 5; i++) pthread_create(&t[i], 0, run, 0);
  for (int i = 0; i < 5; i++) pthread_join(t[i], 0);
  setitimer(which, &off, 0);
  if (inside * 10 < samples * 9 || waiting * 10 > samples) {
    printf("signal %d: %d samples, %d of them in compute(), %d in threads that wait\n", sig, samples, inside, waiting);
    exit(1);
  }
}

int main(void) {
  profile(ITIMER_PROF, SIGPROF);
  profile(ITIMER_VIRTUAL, SIGVTALRM);
  puts("done");
  return 0;
}
