// SPDX-License-Identifier: MIT
// Records of foreign threads.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "sched/embedder.h"
#include "sched/life/fork.h"
#include "sched/life/join.h"
#include "sched/worker.h"

extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);

namespace fiberthread {

namespace {

FiberRecord* foreign_free = nullptr;
std::atomic<FiberRecord*> foreign_all{nullptr};  // linked by `list_next`
SpinLock foreign_lock;

uint32_t foreign_serial = 0;

void forget_foreign(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  tls_busy = 1;
  embedder().thread_ends(f);
  if (f->wait.called_by.load(std::memory_order_relaxed)) release_caller(f);
  tls_current = nullptr;
  Ending ending = join_end(f);
  if (ending.joiner) unpark(ending.joiner);
  if (!ending.detached) return;
  embedder().thread_unjoined(f);
  kernel_record_put(f);
}

}  // namespace

void kernel_record_each(bool (*visit)(FiberRecord*, void*), void* data) {
  for (FiberRecord* f = foreign_all.load(std::memory_order_acquire); f; f = f->run.list_next)
    if (f->join.valid.load(std::memory_order_acquire) && !visit(f, data)) return;
}

void kernel_record_put(FiberRecord* f) {
  f->join.valid.store(false, std::memory_order_release);
  SpinGuard guard(foreign_lock);
  f->run.queue_next = foreign_free;
  foreign_free = f;
}

FiberRecord* kernel_record_get() {
  FiberRecord* f;
  {
    SpinGuard guard(foreign_lock);
    f = foreign_free;
    if (f) foreign_free = f->run.queue_next;
  }
  if (!f) {
    constexpr size_t kSlab = 16;
    auto* slab = reinterpret_cast<FiberRecord*>(map_memory(sizeof(FiberRecord) * kSlab, PROT_READ | PROT_WRITE));
    if (!slab) {
      static const char kNoMemory[] = "fiberthread: no memory for a thread's record\n";
      raw_syscall(SYS_write, 2, arg(kNoMemory), sizeof kNoMemory - 1);
      _exit(127);
    }
    for (size_t i = 0; i < kSlab; i++) new (&slab[i]) FiberRecord;
    SpinGuard guard(foreign_lock);
    for (size_t i = 0; i < kSlab; i++) {
      slab[i].run.list_next = foreign_all.load(std::memory_order_relaxed);
      foreign_all.store(&slab[i], std::memory_order_release);
    }
    for (size_t i = 1; i < kSlab; i++) {
      slab[i].run.queue_next = foreign_free;
      foreign_free = &slab[i];
    }
    f = slab;
  }
  f->reset(__atomic_add_fetch(&foreign_serial, 1, __ATOMIC_RELAXED));
  f->run.kernel = true;
  f->identity.id = 0;
  f->identity.name[0] = f->identity.name[1] = 0;
  f->identity.start = nullptr;
  f->memory.tcb = nullptr;
  f->join.detached = true;
  f->run.state.store(State::Running, std::memory_order_release);
  return f;
}

void kernel_record_enter(FiberRecord* f) {
  tls_busy = tls_busy + 1;
  f->memory.tcb = reinterpret_cast<void*>(pthread_self());
  f->identity.id = static_cast<uint32_t>(raw_syscall(SYS_gettid));
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&f->run.sigmask), 8);
  f->join.valid.store(true, std::memory_order_release);
  tls_current = f;
  embedder().thread_adopted(f);
  __cxa_thread_atexit_impl(forget_foreign, f, &main_fiber);  // any address in this library
  tls_busy = tls_busy - 1;
}

void kernel_record_start(FiberRecord* f) {
  f->handle.fresh.store(0, std::memory_order_release);
  futex_wake(&f->handle.fresh, 1);
}

FiberRecord* adopt_kernel_thread() {
  tls_busy = tls_busy + 1;
  FiberRecord* f = kernel_record_get();
  kernel_record_enter(f);
  tls_busy = tls_busy - 1;
  return f;
}

bool kernel_records_exist() { return foreign_all.load(std::memory_order_relaxed) != nullptr; }

FIBERTHREAD_IN_FORK_CHILD(Foreign, foreign, [](FiberRecord* me) {
  foreign_lock.reset();
  foreign_free = nullptr;  // the fork may have come in the middle of a change
  for (FiberRecord* f = foreign_all.load(); f; f = f->run.list_next) {
    if (f == me) continue;
    f->join.valid.store(false);
    f->handle.fresh.store(0);
    f->join.in_child();
    f->run.queue_next = foreign_free;
    foreign_free = f;
  }
})

}  // namespace fiberthread
