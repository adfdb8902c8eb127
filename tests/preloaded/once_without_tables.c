// SPDX-License-Identifier: MIT
// An initialiser of pthread_once() that has no unwind tables is cancelled, or ends its thread. The thread that waits for it runs it.
// libs: -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-exceptions
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

static pthread_once_t once, inner;
static sem_t begun, go_on;
static int calls, way;
enum { kCancelled, kExits, kCancelledInside, kWays };

static void wait_for_the_end(void) {
  sem_post(&begun);
  for (;;) sem_wait(&go_on);
}
static void initialise(void) {
  if (++calls == 2) return;
  if (way == kCancelledInside) pthread_once(&inner, wait_for_the_end);
  if (way == kCancelled) wait_for_the_end();
  sem_post(&begun);
  sem_wait(&go_on);
  pthread_exit((void*)7);
}
static void cleanup(void* what) { printf("cleanup of %s\n", (char*)what); }
static void* call(void* name) {
  pthread_cleanup_push(cleanup, name);
  pthread_once(&once, initialise);
  pthread_cleanup_pop(0);
  return name;
}

int main() {
  sem_init(&begun, 0, 0), sem_init(&go_on, 0, 0);
  for (way = 0; way < kWays; way++) {
    once = inner = PTHREAD_ONCE_INIT;
    calls = 0;
    pthread_t first, second;
    pthread_create(&first, NULL, call, "the first");
    sem_wait(&begun);
    pthread_create(&second, NULL, call, "the second");
    usleep(2000);
    if (way == kExits) sem_post(&go_on);
    else pthread_cancel(first);
    void* result;
    pthread_join(first, &result);
    printf("%s", result == PTHREAD_CANCELED ? "cancelled" : result == (void*)7 ? "exited" : "?");
    pthread_join(second, &result);
    printf(", %s has returned, calls: %d\n", (char*)result, calls);
    pthread_once(&once, initialise);
    printf("done, calls: %d\n", calls);
  }
  return 0;
}
