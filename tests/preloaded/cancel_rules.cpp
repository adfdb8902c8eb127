// SPDX-License-Identifier: MIT
// What a thread's end does, case by case: when a request acts, what runs in which order, what join gets.
// Above 500 lines, because all cases tell what ran by the same objects, handlers and keys.
#include <assert.h>
#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nptl.h"

namespace {

// What happened, in order.
char story[4096];
pthread_mutex_t story_mutex = PTHREAD_MUTEX_INITIALIZER;
void tell(const char* s) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  pthread_mutex_lock(&story_mutex);
  strcat(story, " ");
  strcat(story, s);
  pthread_mutex_unlock(&story_mutex);
  pthread_setcancelstate(old, nullptr);
}
void tells(void* s) { tell(static_cast<const char*>(s)); }

struct Object {
  const char* name;
  explicit Object(const char* n) : name(n) {}
  ~Object() { tell(name); }
};
struct Local {
  const char* name = nullptr;
  ~Local() {
    if (name) tell(name);
  }
};
thread_local Local first, second;

std::atomic<int> ready, go;
void wait_for(std::atomic<int>& a, int n) {
  while (a.load() < n) usleep(100);
}

const char* result_of(pthread_t t) {
  void* r = nullptr;
  timespec bound;
  clock_gettime(CLOCK_REALTIME, &bound);
  bound.tv_sec += 30;
  int e = pthread_timedjoin_np(t, &r, &bound);
  static char text[64];
  if (e) snprintf(text, sizeof text, "join: %s", strerror(e));
  else if (r == PTHREAD_CANCELED) snprintf(text, sizeof text, "cancelled");
  else snprintf(text, sizeof text, "%ld", (long)r);
  return text;
}

void run(const char* name, void* (*f)(void*), bool cancel = false, void* arg = nullptr) {
  *story = 0;
  ready = go = 0;
  pthread_t t;
  assert(pthread_create(&t, nullptr, f, arg) == 0);
  if (cancel) {
    wait_for(ready, 1);
    printf("%s: cancel %d,", name, pthread_cancel(t));
    go = 1;
  } else {
    printf("%s:", name);
  }
  printf(" %s,", result_of(t));
  printf("%s\n", story);
  fflush(stdout);
}

void in_child(const char* name, void (*f)()) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    int null = open("/dev/null", 1);
    dup2(null, 2);
    close(null);
    alarm(60);
    f();
    _exit(99);
  }
  int status;
  while (waitpid(pid, &status, 0) != pid) {
  }
  printf("%s: %#x\n", name, status & ~0x80);
}

[[gnu::noinline]] void deep(int n, void (*then)()) {
  Object o(n == 0 ? "d0" : n == 1 ? "d1" : "d2");
  pthread_cleanup_push(tells, (void*)(n == 0 ? "c0" : n == 1 ? "c1" : "c2"));
  if (n) deep(n - 1, then);
  else then();
  pthread_cleanup_pop(0);
}

// ---- settings ----

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

// ---- handlers, objects, frames ----

void* nested_cancel(void*) {
  deep(2, [] {
    ready = 1;
    for (;;) pause();
  });
  return nullptr;
}
void* nested_exit(void*) {
  deep(2, [] { pthread_exit((void*)42); });
  return nullptr;
}
void* popped(void*) {
  pthread_cleanup_push(tells, (void*)"one");
  pthread_cleanup_push(tells, (void*)"two");
  pthread_cleanup_push(tells, (void*)"three");
  pthread_cleanup_pop(0);
  pthread_cleanup_pop(1);
  pthread_exit(nullptr);
  pthread_cleanup_pop(0);
}
void* handler_sleeps(void*) {
  // Within handlers nothing cancels any more.
  pthread_cleanup_push(
      [](void*) {
        pthread_testcancel();
        tell(usleep(1000) == 0 ? "slept" : "did not sleep");
        int s;
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &s);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
        pthread_testcancel();
        tell(s == PTHREAD_CANCEL_ENABLE ? "enabled" : "disabled");
      },
      nullptr);
  ready = 1;
  for (;;) pause();
  pthread_cleanup_pop(0);
}
void* handler_sleeps_after_open(void*) {
  // Where libc itself has found the request.
  pthread_cleanup_push([](void*) { tell(usleep(1000) == 0 ? "slept" : "did not sleep"); }, nullptr);
  pthread_cancel(pthread_self());
  open("/dev/null", O_RDONLY);
  pthread_cleanup_pop(0);
  return nullptr;
}
void* handler_creates(void*) {
  pthread_cleanup_push(
      [](void*) {
        pthread_t t;
        pthread_create(
            &t, nullptr,
            [](void*) -> void* {
              tell("child");
              return nullptr;
            },
            nullptr);
        pthread_join(t, nullptr);
        tell("joined");
      },
      nullptr);
  ready = 1;
  for (;;) pause();
  pthread_cleanup_pop(0);
}
void* exit_in_destructor_of_key(void*) {
  static pthread_key_t k;
  static bool made = pthread_key_create(&k, [](void*) {
                       tell("destructor");
                       pthread_exit((void*)3);
                     }) == 0;
  (void)made;
  pthread_setspecific(k, (void*)1);
  return (void*)1;
}
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
void* catches_and_rethrows(void*) {
  try {
    Object o("object");
    ready = 1;
    for (;;) pause();
  } catch (...) {
    tell("caught");
    throw;
  }
}
void* catches_inside_handler(void*) {
  pthread_cleanup_push(
      [](void*) {
        try {
          throw 5;
        } catch (int n) {
          tell(n == 5 ? "own exception" : "?");
        }
      },
      nullptr);
  ready = 1;
  for (;;) pause();
  pthread_cleanup_pop(0);
}
void* while_exception(void*) {
  try {
    throw 1;
  } catch (int) {
    Object o("object");
    ready = 1;
    for (;;) pause();
  }
  return nullptr;
}
void* object_that_waits(void*) {
  struct Waits {
    ~Waits() { tell(usleep(1000) == 0 ? "slept" : "not"); }
  } w;
  ready = 1;
  for (;;) pause();
}

// ---- the end ----

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

void* never_started(void*) {
  tell("ran");
  pthread_testcancel();
  tell("not here");
  return nullptr;
}
void* stop(void*) {
  for (;;) pause();
}

// Twice, after the end, and at once: often before it runs.
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

// Two at the same thread, which cancels a third.
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

// A joiner that is cancelled leaves its thread joinable.
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

void each_in_a_thread() {
  run("self, deferred", self_deferred);
  run("settings", settings);
  run("disabled, sleeps", disabled_sleeps, true);
  run("nested, cancelled", nested_cancel, true);
  run("nested, exit", nested_exit);
  run("popped", popped);
  run("handler sleeps", handler_sleeps, true);
  run("handler sleeps after open", handler_sleeps_after_open);
  run("handler creates a thread", handler_creates, true);
  run("cancelled in a key's destructor", cancelled_in_destructor_of_key);
  run("catch and rethrow", catches_and_rethrows, true);
  run("an exception in a handler", catches_inside_handler, true);
  run("in a catch block", while_exception, true);
  run("a destructor waits", object_that_waits, true);
  run("locals and keys, return", locals_and_keys);
  run("locals and keys, exit", locals_and_keys, false, (void*)1);
  run("locals and keys, cancelled", locals_and_keys, true, (void*)2);
  run("key again and again", key_again_and_again);
  run("key sets another", key_sets_other);
  run("key deleted", key_deleted);
  run("many keys", many_keys);
  run("thread_local sets a key", local_with_key);
  run("key makes a thread_local", key_makes_local);
}

// What ends the process.
void ends_of_the_process() {
  in_child("catch without rethrow", [] {
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          try {
            for (;;) pause();
          } catch (...) {
          }
          return nullptr;
        },
        nullptr);
    pthread_cancel(t);
    pthread_join(t, nullptr);
    _exit(1);
  });
  in_child("catch without rethrow, exit", [] {
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          try {
            pthread_exit(nullptr);
          } catch (...) {
          }
          return nullptr;
        },
        nullptr);
    pthread_join(t, nullptr);
    _exit(1);
  });
  in_child("noexcept", [] {
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          []() noexcept {
            for (;;) pause();
          }();
          return nullptr;
        },
        nullptr);
    pthread_cancel(t);
    pthread_join(t, nullptr);
    _exit(1);
  });
  in_child("exception leaves the thread", [] {
    pthread_t t;
    pthread_create(&t, nullptr, [](void*) -> void* { throw 1; }, nullptr);
    pthread_join(t, nullptr);
    _exit(1);
  });
}

void main_is_cancelled() {
  in_child("main cancelled", [] {
    static pthread_t self = pthread_self();
    atexit([] {
      fputs("main cancelled: atexit\n", stdout);
      fflush(stdout);
    });
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          pthread_cancel(self);
          void* r;
          int e = pthread_join(self, &r);
          printf("main cancelled: join %d %d%s\n", e, r == PTHREAD_CANCELED, story);
          return nullptr;
        },
        nullptr);
    Object o("object");
    first.name = "first";
    pthread_cleanup_push(tells, (void*)"handler");
    for (;;) pause();
    pthread_cleanup_pop(0);
  });
  in_child("main cancelled, found by libc", [] {
    static pthread_t self = pthread_self();
    atexit([] {
      fputs("main cancelled, found by libc: atexit\n", stdout);
      fflush(stdout);
    });
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          void* r;
          int e = pthread_join(self, &r);
          printf("main cancelled, found by libc: join %d %d%s\n", e, r == PTHREAD_CANCELED, story);
          return nullptr;
        },
        nullptr);
    pthread_cleanup_push(tells, (void*)"handler");
    pthread_cancel(self);
    open("/dev/null", O_RDONLY);
    pthread_cleanup_pop(0);
  });
}

void main_exits() {
  in_child("main exits, alone", [] {
    atexit([] {
      fputs("main exits, alone: atexit\n", stdout);
      fflush(stdout);
    });
    pthread_exit((void*)3);
  });
  in_child("main exits from nested frames", [] {
    static pthread_t self = pthread_self();
    atexit([] {
      printf("main exits from nested frames: atexit%s\n", story);
      fflush(stdout);
    });
    pthread_t t;
    pthread_create(
        &t, nullptr,
        [](void*) -> void* {
          void* r;
          int e = pthread_join(self, &r);
          printf("main exits from nested frames: join %d %ld\n", e, (long)r);
          return nullptr;
        },
        nullptr);
    // Main's own objects go only if main is the last: not here. Under an emulator NPTL's main was once the last all the same.
    if (!nptl_release()) first.name = "first";
    static pthread_key_t k;
    pthread_key_create(&k, tells);
    pthread_setspecific(k, "key");
    deep(2, [] { pthread_exit((void*)42); });
  });
  in_child("exit in a key's destructor", [] {
    pthread_t t;
    void* r;
    pthread_create(&t, nullptr, exit_in_destructor_of_key, nullptr);
    pthread_join(t, &r);
    printf("exit in a key's destructor: %ld%s\n", (long)r, story);
    fflush(stdout);
    _exit(0);
  });
}

}  // namespace

int main() {
  each_in_a_thread();
  cancels_early_and_late();
  cancels_in_a_chain();
  cancels_a_joiner();
  ends_of_the_process();
  main_is_cancelled();
  main_exits();
  return 0;
}
