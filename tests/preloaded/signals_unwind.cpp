// SPDX-License-Identifier: MIT
// C++ exceptions leave handlers of faults and of signals that were sent, on several threads. Some handlers have waited before.
#if !defined(__clang__)
#pragma GCC optimize("non-call-exceptions")
#endif
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

static std::atomic<long> destroyed{0}, caught{0};
struct Local {
  long canary = 42;
  ~Local() {
    assert(canary == 42);
    destroyed++;
  }
};

static void fault(int sig, siginfo_t* info, void*) {
  long a = reinterpret_cast<long>(info->si_addr);
  if (a % 3 == 0) sched_yield();
  if (a % 128 == 0) usleep(10);
  throw std::runtime_error("at " + std::to_string(a));
}
static void sent(int, siginfo_t* info, void*) {
  if (info->si_value.sival_int % 4 == 0) sched_yield();
  throw info->si_value.sival_int;
}
#if defined(__clang__)
// To Clang, only a call can throw.
static long (*volatile read_at)(volatile int*) = [](volatile int* p) { return long{*p}; };
#else
static long read_at(volatile int* p) { return *p; }
#endif
__attribute__((noinline)) static long load(volatile int* p) {
  Local here;
  return read_at(p);
}
// The header promises that pthread_sigqueue() throws nothing. This pointer does not.
static int (*volatile queue)(pthread_t, int, const sigval) = pthread_sigqueue;
__attribute__((noinline)) static void send_to_self(int n) {
  Local here;
  queue(pthread_self(), SIGUSR1, sigval{n});
}

static void work(long seed) {
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGSEGV);
  sigaddset(&both, SIGUSR1);
  for (long i = 0; i < 300; i++) {
    long a = 8 * (1 + (seed * 7 + i) % 500);  // a multiple of 8, since qemu 10 rounds the address of a misaligned access
    double kept = a * 0.5;
    try {
      Local outer;
      load(reinterpret_cast<volatile int*>(a));
      assert(!"not reached");
    } catch (std::exception& e) {
      assert(e.what() == "at " + std::to_string(a) && kept == a * 0.5);
      caught++;
    }
    sigset_t now;
    pthread_sigmask(SIG_UNBLOCK, &both, &now);
    assert(sigismember(&now, SIGSEGV) && !sigismember(&now, SIGUSR1));  // the handler did not return, so its mask is still set
    try {
      Local outer;
      send_to_self(static_cast<int>(i));
      assert(!"not reached");
    } catch (int n) {
      assert(n == i);
      caught++;
    }
    pthread_sigmask(SIG_UNBLOCK, &both, &now);
    assert(sigismember(&now, SIGUSR1));
  }
}

int main() {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_flags = SA_SIGINFO;
  sa.sa_sigaction = fault;
  sigaction(SIGSEGV, &sa, nullptr);
  sa.sa_sigaction = sent;
  sigaction(SIGUSR1, &sa, nullptr);
  std::vector<std::thread> threads;
  for (long i = 0; i < 8; i++) threads.emplace_back(work, i);
  work(8);
  for (auto& t : threads) t.join();
  printf("caught %ld, destroyed %ld\n", caught.load(), destroyed.load());
}
