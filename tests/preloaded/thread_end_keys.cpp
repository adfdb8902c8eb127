// SPDX-License-Identifier: MIT
// What runs, in which order, once a thread has left its frames: destructors of thread_local objects and of keys, and what these set anew.
#include "thread_end.h"

namespace {

void* cancelled_in_destructor_of_key(void*) {
  static pthread_key_t k;
  static bool made = pthread_key_create(&k, [](void*) {
                       tell("destructor");
                       pthread_testcancel();
                       tell(usleep(10) == 0 ? "slept" : "not");
                     }) == 0;
  (void)made;
  pthread_setspecific(k, (void*)1);
  pthread_cancel(pthread_self());
  return (void*)1;
}
void* locals_and_keys(void* how) {
  static pthread_key_t a, b;
  static bool made = pthread_key_create(&a, tells) == 0 && pthread_key_create(&b, tells) == 0;
  (void)made;
  first.name = "first";
  second.name = "second";
  pthread_setspecific(b, "key b");
  pthread_setspecific(a, "key a");
  Object o("object");
  pthread_cleanup_push(tells, (void*)"handler");
  if (how == (void*)1) pthread_exit((void*)8);
  if (how == (void*)2) {
    ready = 1;
    for (;;) pause();
  }
  pthread_cleanup_pop(0);
  return (void*)7;
}
void* key_again_and_again(void*) {
  static pthread_key_t k;
  static int times;
  times = 0;
  pthread_key_create(&k, [](void* p) {
    times++;
    pthread_setspecific(k, p);
  });
  pthread_setspecific(k, (void*)1);
  static pthread_key_t report;
  pthread_key_create(&report, [](void* p) {
    char line[32];
    snprintf(line, sizeof line, "times %d", times);
    if (times == PTHREAD_DESTRUCTOR_ITERATIONS) tell(line);
    else pthread_setspecific(report, p);
  });
  pthread_setspecific(report, (void*)1);
  return nullptr;
}
void* key_sets_other(void*) {
  static pthread_key_t x, y;
  static bool made = pthread_key_create(&x, [](void*) { tell("x"); }) == 0 && pthread_key_create(&y, [](void*) {
                                                                                tell("y");
                                                                                pthread_setspecific(x, (void*)1);
                                                                              }) == 0;
  (void)made;
  pthread_setspecific(y, (void*)1);
  return nullptr;
}
void* key_deleted(void*) {
  pthread_key_t k;
  pthread_key_create(&k, tells);
  pthread_setspecific(k, "not here");
  pthread_key_delete(k);
  return nullptr;
}
void* many_keys(void*) {
  static pthread_key_t keys[200];
  static std::atomic<int> n;
  n = 0;
  for (auto& k : keys) {
    if (pthread_key_create(&k, [](void* p) { n += (int)(long)p; }) != 0) tell("no key");
    pthread_setspecific(k, (void*)1);
  }
  static pthread_t inner;
  pthread_create(
      &inner, nullptr,
      [](void*) -> void* {
        for (auto k : keys) pthread_setspecific(k, (void*)2);
        return nullptr;
      },
      nullptr);
  pthread_join(inner, nullptr);
  tell(n == 400 ? "400" : "not 400");
  for (auto k : keys) {
    if (pthread_getspecific(k) != (void*)1) tell("lost");
    pthread_setspecific(k, nullptr);
    pthread_key_delete(k);
  }
  return nullptr;
}
void* local_with_key(void*) {
  static pthread_key_t k;
  static bool made = pthread_key_create(&k, tells) == 0;
  (void)made;
  struct Sets {
    bool on = false;
    ~Sets() {
      if (on) tell("local"), pthread_setspecific(k, "key");
    }
  };
  static thread_local Sets s;
  s.on = true;
  return nullptr;
}
void* key_makes_local(void*) {
  static pthread_key_t k;
  static bool made = pthread_key_create(&k, [](void*) {
                       tell("key");
                       static thread_local Local l;
                       l.name = "local";
                     }) == 0;
  (void)made;
  pthread_setspecific(k, (void*)1);
  return nullptr;
}

}  // namespace

int main() {
  run("cancelled in a key's destructor", cancelled_in_destructor_of_key);
  run("locals and keys, return", locals_and_keys);
  run("locals and keys, exit", locals_and_keys, false, (void*)1);
  run("locals and keys, cancelled", locals_and_keys, true, (void*)2);
  run("key again and again", key_again_and_again);
  run("key sets another", key_sets_other);
  run("key deleted", key_deleted);
  run("many keys", many_keys);
  run("thread_local sets a key", local_with_key);
  run("key makes a thread_local", key_makes_local);
  return 0;
}
