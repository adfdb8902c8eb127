#include "sched/reaper.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "sched/stack.h"
#include "sched/tcb.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

std::atomic<Fiber*> pending{nullptr};
std::atomic<uint32_t> work{0};     // futex: grows with each list
std::atomic<bool> running{false};

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
using Join = int (*)(pthread_t, void**);

// Exits as the thread of the block: libc's own end of a thread runs on the block's TCB and TLS.
void* adopt(void* p) {
  set_thread_pointer(static_cast<Fiber*>(p)->context.tp);
  return nullptr;
}

void release(Fiber* f, Create create, Join join) {
  if (!tcb_is_pristine(*f)) {
    tcb_prepare_adoption(*f);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    pthread_t thread;
    bool made = create(&thread, &attr, adopt, f) == 0;
    pthread_attr_destroy(&attr);
    if (!made) {  // no kernel thread to be had: keep the block, it is usable as it is
      block_keep(f);
      return;
    }
    join(thread, nullptr);
  }
  tcb_release(*f);
  block_unborn(f);
}

void* reap(void*) {
  tls_busy = 1;  // no program code ever runs here
  auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  auto join = reinterpret_cast<Join>(dlsym(RTLD_NEXT, "pthread_join"));
  for (;;) {
    uint32_t seen = work.load(std::memory_order_acquire);
    Fiber* list = pending.exchange(nullptr, std::memory_order_acquire);
    if (!list) {
      futex_wait(&work, seen);
      continue;
    }
    while (list) {
      Fiber* f = list;
      list = f->queue_next;
      release(f, create, join);
    }
  }
}

}  // namespace

void reaper_take(Fiber* list) {
  Fiber* last = list;
  while (last->queue_next) last = last->queue_next;
  Fiber* head = pending.load(std::memory_order_relaxed);
  do last->queue_next = head;
  while (!pending.compare_exchange_weak(head, list, std::memory_order_release, std::memory_order_relaxed));
  work.fetch_add(1, std::memory_order_release);
  if (running.load(std::memory_order_acquire)) futex_wake(&work, 1);
}

void reaper_start_if_needed() {
  if (__builtin_expect(running.load(std::memory_order_relaxed), 0) || running.exchange(true, std::memory_order_acq_rel)) return;
  uint64_t old;
  sched_block_signals(&old);
  auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 * 1024);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (create(&thread, &attr, reap, nullptr) != 0) running.store(false, std::memory_order_release);
  pthread_attr_destroy(&attr);
  sched_restore_signals(old);
}

void reaper_reset_after_fork() {
  pending.store(nullptr);
  running.store(false);
}

}  // namespace fiberthread
