// A TCB and TLS for every fiber: its own, kept over moves, as new after recycling, in the loader's list.
#include "sched/tcb.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "sched/arch.h"
#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {

thread_local int initialised = 42;
thread_local int zero;
thread_local char large[3000];
struct Destroyed {
  std::atomic<int>* count = nullptr;
  ~Destroyed() {
    if (count) ++*count;
  }
};
thread_local Destroyed destroyed;
std::atomic<int> destroyed_count{0}, bad{0};

void check(bool ok) { bad += !ok; }

void* look_and_spoil(void*) {
  check(errno == 0);
  check(tls_current && !tls_current->kernel && tls_current->tcb == reinterpret_cast<void*>(pthread_self()));
  void* tp = thread_pointer();
  int* where = &initialised;
  destroyed.count = &destroyed_count;
  initialised = 7;
  zero = 8;
  memset(large, 9, sizeof large);
  errno = 10;
  for (int i = 0; i < 5; i++) {
    sched_yield();
    check(errno == 10 && initialised == 7 && zero == 8 && large[0] == 9 && &initialised == where);
    check(thread_pointer() == tp);
  }
  return nullptr;
}

}  // namespace

// That a recycled fiber's TLS is as new is tested from outside (preloaded/tls.cpp): here it is the library's own module,
// which the library leaves alone.
Test(tcb, each_fiber_has_its_own) {
  constexpr int kThreads = 50;
  pthread_t t[kThreads];
  for (auto& x : t) cr_assert_eq(pthread_create(&x, nullptr, look_and_spoil, nullptr), 0);
  for (auto& x : t) cr_assert_eq(pthread_join(x, nullptr), 0);
  cr_assert_eq(bad.load(), 0);
  cr_assert_eq(destroyed_count.load(), kThreads);
}

Test(tcb, main_keeps_its_own) {
  void* tp = thread_pointer();
  errno = 5;
  initialised = 6;
  pthread_t t[10];
  for (auto& x : t) pthread_create(&x, nullptr, look_and_spoil, nullptr);
  for (auto& x : t) pthread_join(x, nullptr);
  cr_assert(thread_pointer() == tp);
  cr_assert_eq(errno, 5);
  cr_assert_eq(initialised, 6);
  cr_assert(sched_started());
}

Test(tcb, key_destructors_run_again_while_they_set_values) {
  static pthread_key_t key;
  static std::atomic<int> runs{0};
  pthread_key_create(&key, [](void* p) {
    runs++;
    if (runs < 3) pthread_setspecific(key, p);
  });
  pthread_t t;
  int value;
  pthread_create(&t, nullptr, [](void* p) -> void* { pthread_setspecific(key, p); return p; }, &value);
  pthread_join(t, nullptr);
  cr_assert_eq(runs.load(), 3);
}
