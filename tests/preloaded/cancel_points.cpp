// SPDX-License-Identifier: MIT
// Each cancellation point, cancelled before the call, during its wait, and (disabled) after it.
// libs: -lrt
#include "cancel_points.h"

namespace {

volatile int stage;  // 1: about to call, 2: returned
bool cleaned;
int state_seen;  // what the cleanup handler saw

void cleanup(void*) {
  cleaned = true;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_seen);
}

struct Guard {
  bool* destroyed;
  ~Guard() { *destroyed = true; }
};
bool destroyed;

void* pending(void* p) {
  auto* c = static_cast<const Case*>(p);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  Guard g{&destroyed};
  pthread_cleanup_push(cleanup, nullptr);
  c->call();
  pthread_cleanup_pop(0);
  return nullptr;
}

void* waiting(void* p) {
  auto* c = static_cast<const Case*>(p);
  Guard g{&destroyed};
  pthread_cleanup_push(cleanup, nullptr);
  __atomic_store_n(&stage, 1, __ATOMIC_SEQ_CST);
  c->call();
  __atomic_store_n(&stage, 2, __ATOMIC_SEQ_CST);
  pthread_cleanup_pop(0);
  return nullptr;
}

void* disabled(void* p) {
  auto* c = static_cast<const Case*>(p);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  pthread_cancel(pthread_self());
  c->call();
  __atomic_store_n(&stage, 2, __ATOMIC_SEQ_CST);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  pthread_testcancel();
  return nullptr;
}

const char* end_of(pthread_t t) {
  void* r;
  timespec bound = later();
  bound.tv_sec += 20 - 100;
  if (pthread_timedjoin_np(t, &r, &bound) != 0) return "HANGS";
  return r == PTHREAD_CANCELED ? "cancelled" : "returned";
}

// Gives the thread time to begin its wait. With too little time the test is weaker, but still right.
void let_it_wait() {
  while (__atomic_load_n(&stage, __ATOMIC_SEQ_CST) == 0) sched_yield();
  usleep(3000);
}

void forget() {
  cleaned = destroyed = mutex_held_in_cleanup = false;
  state_seen = -1;
}
void print_seen() { printf(" %d%d%d%d", cleaned, destroyed, mutex_held_in_cleanup, state_seen); }

void try_case(const Case& c) {
  pthread_t t;
  forget();
  stage = 0;
  printf("%s:", c.name);
  fflush(stdout);
  if (!strstr(c.name, "aio")) {
    pthread_create(&t, nullptr, pending, (void*)&c);
    printf(" %s", end_of(t));
    print_seen();
  }
  if (c.waits) {
    forget();
    pthread_create(&t, nullptr, waiting, (void*)&c);
    let_it_wait();
    bool in_it = stage == 1;
    pthread_cancel(t);
    printf(", waiting %d: %s", in_it, end_of(t));
    print_seen();
  } else {
    pthread_create(&t, nullptr, disabled, (void*)&c);
    const char* e = end_of(t);
    printf(", disabled %d: %s", stage, e);
  }
  puts("");
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  prepare();
  for (const Case& c : cases)
    if (argc < 2 || strcmp(argv[1], c.name) == 0) try_case(c);
  kill(child, SIGKILL);
  remove_queues();
  semctl(semaphores, 0, IPC_RMID);
  fflush(stdout);
  _exit(0);
}
