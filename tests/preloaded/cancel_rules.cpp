// SPDX-License-Identifier: MIT
// When a cancellation request acts: at once or later, before the thread runs or after its end. Threads are cancelled twice, cancel one
// another, and are cancelled in pthread_join().
#include <atomic>

#include "thread_end.h"

namespace {

void* self_deferred(void*) {
  pthread_cancel(pthread_self());
  tell("still here");
  pthread_testcancel();
  tell("not here");
  return nullptr;
}
void* settings(void*) {
  int old = -1;
  char line[256] = "";
  auto add = [&](int e) { sprintf(line + strlen(line), "%d/%d ", e, old); };
  add(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old));
  add(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old));
  add(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old));
  add(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old));
  add(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old));
  add(pthread_setcancelstate(7, &old));
  add(pthread_setcanceltype(7, &old));
  add(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr));
  tell(line);
  return nullptr;
}
void* disabled_sleeps(void*) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  ready = 1;
  wait_for(go, 1);
  tell(usleep(1000) == 0 ? "slept" : "interrupted");
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  tell("enabled");
  usleep(1000);
  tell("not here");
  return nullptr;
}
void* never_started(void*) {
  tell("ran");
  pthread_testcancel();
  tell("not here");
  return nullptr;
}
void* stop(void*) {
  for (;;) pause();
}

// Cancels a thread twice and a third time later, then one that has ended, then threads that may not run yet.
void cancels_early_and_late() {
  *story = 0;
  pthread_t t;
  pthread_create(&t, nullptr, stop, nullptr);
  int a = pthread_cancel(t), b = pthread_cancel(t);
  usleep(20000);
  int c = pthread_cancel(t);
  printf("twice: %d %d %d %s\n", a, b, c, result_of(t));
  pthread_create(&t, nullptr, [](void*) -> void* { return (void*)5; }, nullptr);
  usleep(20000);
  printf("of an ended one: %d", pthread_cancel(t));
  printf(" %s\n", result_of(t));
  int n = 0;
  for (int i = 0; i < 200; i++) {
    pthread_create(&t, nullptr, never_started, nullptr);
    pthread_cancel(t);
    n += !strcmp(result_of(t), "cancelled");
    *story = 0;
  }
  printf("at once: %d of 200\n", n > 0);
}

// Two threads cancel the same thread, whose cleanup handler cancels a third one.
void cancels_in_a_chain() {
  pthread_t t;
  static pthread_t third;
  pthread_create(&third, nullptr, stop, nullptr);
  pthread_create(
      &t, nullptr,
      [](void*) -> void* {
        pthread_cleanup_push([](void*) { pthread_cancel(third); }, nullptr);
        for (;;) pause();
        pthread_cleanup_pop(0);
      },
      nullptr);
  pthread_t c1, c2;
  auto cancel = [](void* p) -> void* { return (void*)(long)pthread_cancel(*(pthread_t*)p); };
  pthread_create(&c1, nullptr, cancel, &t);
  pthread_create(&c2, nullptr, cancel, &t);
  pthread_join(c1, nullptr);
  pthread_join(c2, nullptr);
  printf("chain: %s", result_of(t));
  printf(" %s\n", result_of(third));
}

// A thread can still be joined after its joiner has been cancelled.
void cancels_a_joiner() {
  pthread_t t;
  static pthread_t target;
  static sem_t let_go;
  sem_init(&let_go, 0, 0);
  pthread_create(
      &target, nullptr,
      [](void*) -> void* {
        sem_wait(&let_go);
        return (void*)6;
      },
      nullptr);
  pthread_create(
      &t, nullptr,
      [](void*) -> void* {
        pthread_join(target, nullptr);
        return nullptr;
      },
      nullptr);
  usleep(2000);
  pthread_cancel(t);
  printf("cancelled joiner: %s", result_of(t));
  sem_post(&let_go);
  printf(" %s\n", result_of(target));
}

// Two threads that join one another are no deadlock if the one that waits has been cancelled, even if it does not act on that yet. (Without
// that, the second join may fail with EDEADLK, as with the library, or wait, as libc does since 2.34.)
void joins_a_cancelled_joiner() {
  static pthread_t first;
  static std::atomic<int> waits, disabled;
  first = pthread_self();
  for (int tries = 0; tries < 2; tries++) {
    disabled = tries;
    waits = 0;
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          pthread_setcancelstate(disabled ? PTHREAD_CANCEL_DISABLE : PTHREAD_CANCEL_ENABLE, nullptr);
          waits = 1;
          pthread_join(first, nullptr);
          return nullptr;
        },
        nullptr);
    while (!waits) usleep(1000);
    usleep(20000);  // most probably it waits by now, and the results are the same if it does not
    pthread_cancel(t);
    timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += disabled ? 0 : 60;
    printf("joins a cancelled joiner: %s\n", strerror(pthread_timedjoin_np(t, nullptr, &soon)));
  }
}

}  // namespace

int main() {
  run("self, deferred", self_deferred);
  run("settings", settings);
  run("disabled, sleeps", disabled_sleeps, true);
  cancels_early_and_late();
  cancels_in_a_chain();
  cancels_a_joiner();
  joins_a_cancelled_joiner();
  return 0;
}
