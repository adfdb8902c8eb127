// SPDX-License-Identifier: MIT
// Threads whose end ends the process because a rule is broken, and the end of the main thread.
#include "thread_end.h"

#include "nptl.h"

namespace {

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

// Each of these must end the process by SIGABRT.
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
    // The main thread's objects are destroyed only if it is the last thread. Here it is not, but under an emulator NPTL's once was.
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
  ends_of_the_process();
  main_is_cancelled();
  main_exits();
  return 0;
}
