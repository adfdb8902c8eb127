// SPDX-License-Identifier: MIT
// What runs, in which order, while a thread that exits or is cancelled leaves its frames: cleanup handlers, destructors and catch blocks.
#include "thread_end.h"

namespace {

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
  // Within cleanup handlers no request acts any more.
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
  // Here libc's open() finds the request.
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

}  // namespace

int main() {
  run("nested, cancelled", nested_cancel, true);
  run("nested, exit", nested_exit);
  run("popped", popped);
  run("handler sleeps", handler_sleeps, true);
  run("handler sleeps after open", handler_sleeps_after_open);
  run("handler creates a thread", handler_creates, true);
  run("catch and rethrow", catches_and_rethrows, true);
  run("an exception in a handler", catches_inside_handler, true);
  run("in a catch block", while_exception, true);
  run("a destructor waits", object_that_waits, true);
  return 0;
}
