// SPDX-License-Identifier: MIT
// Threads whose stacks have what unwinders find hard: inlined functions, a signal handler, an exception being caught, a deep recursion.
// Prints "ready" when all wait, and ends when its stdin does.
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

namespace {

sem_t never, arrived;
volatile int turns;

template <class T>
struct Waits {
  [[gnu::always_inline]] static inline void innermost(T& t) {
    sem_post(&arrived);
    while (sem_wait(&t)) turns = turns + 1;
    turns = turns + 1;
  }
  [[gnu::always_inline]] static inline void middle(T& t) {
    innermost(t);
    turns = turns + 1;
  }
  [[gnu::noinline]] static void outer(T& t) {
    turns = turns + 1;
    middle(t);
    turns = turns + 1;
  }
};

void* in_inlined(void*) {
  Waits<sem_t>::outer(never);
  return nullptr;
}

void handler(int) {
  sem_post(&arrived);
  sem_wait(&never);
  turns = turns + 1;
}

[[gnu::noinline]] void interrupted() {
  for (;;) turns = turns + 1;
}
void* in_handler(void*) {
  interrupted();
  return nullptr;
}

[[gnu::noinline]] int recursion(int n) {
  if (n == 0) {
    sem_post(&arrived);
    sem_wait(&never);
    return 1;
  }
  int r = recursion(n - 1) + 1;
  turns = turns + 1;
  return r;
}
void* in_recursion(void*) { return reinterpret_cast<void*>(static_cast<long>(recursion(300))); }

struct Waiter {
  virtual ~Waiter() = default;
  [[gnu::noinline]] virtual void operator()(std::unique_lock<std::mutex>& lock) = 0;
};
struct OfCondition : Waiter {
  std::condition_variable changed;
  void operator()(std::unique_lock<std::mutex>& lock) override {
    sem_post(&arrived);
    for (;;) changed.wait(lock);
  }
};
[[gnu::noinline]] void in_catch(Waiter& w) {
  std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  try {
    throw turns;
  } catch (int) {
    w(lock);
  }
}

}  // namespace

int main() {
  sem_init(&never, 0, 0);
  sem_init(&arrived, 0, 0);
  signal(SIGUSR1, handler);
  pthread_t t;
  pthread_create(&t, nullptr, in_inlined, nullptr);
  pthread_create(&t, nullptr, in_recursion, nullptr);
  std::thread([] {
    OfCondition c;
    in_catch(c);
  }).detach();
  pthread_create(&t, nullptr, in_handler, nullptr);
  for (int i = 0; i < 3; i++) sem_wait(&arrived);
  usleep(100'000);
  pthread_kill(t, SIGUSR1);
  sem_wait(&arrived);
  usleep(100'000);
  puts("ready");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  _exit(0);
}
