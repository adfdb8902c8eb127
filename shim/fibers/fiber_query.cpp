// SPDX-License-Identifier: MIT
// What is known of fibers by their handles: ids, names, threads and the list of all. Also the fibers' local values.
#include <string.h>
#include <sys/prctl.h>

#include "sched/memory/block.h"
#include "shim/thread_names.h"
#include "shim/fibers/fiber_handle.h"
#include "shim/real.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

struct Visit {
  int (*visit)(fiberthread_t, void*);
  void* data;
  int result = 0;
};

bool visit_one(FiberRecord* f, void* p) {
  auto* v = static_cast<Visit*>(p);
  fiberthread_t h = handle_of(f);
  if (!f->join.valid.load(std::memory_order_acquire) || f->handle.fresh.load(std::memory_order_relaxed) ||
      f->join.done.load(std::memory_order_acquire) || !is_still(f, h))
    return true;
  v->result = v->visit(h, v->data);
  return v->result == 0;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_API fiberthread_t fiberthread_self(void) { return handle_of(self()); }

FIBERTHREAD_API uint64_t fiberthread_id(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!f) return 0;
  uint64_t id = f->identity.id;
  return is_still(f, fiber) ? id : 0;
}

FIBERTHREAD_API fiberthread_t fiberthread_find(uint64_t id) {
  if (id == 0 || id > INT32_MAX) return nullptr;
  struct Search {
    uint64_t id;
    fiberthread_t found;
  } search{id, nullptr};
  auto look = [](fiberthread_t h, void* p) -> int {
    auto* s = static_cast<Search*>(p);
    if (fiberthread_id(h) != s->id) return 0;
    s->found = h;
    return 1;
  };
  fiberthread_each(look, &search);
  return search.found;
}

FIBERTHREAD_API int fiberthread_set_name(fiberthread_t fiber, const char* name) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (strlen(name) >= sizeof f->identity.name) return ERANGE;
  if (f->run.kernel) {
    int e = on_nptl([&] { return REAL(pthread_setname_np)(reinterpret_cast<pthread_t>(f->memory.tcb), name); });
    return e == ENOENT ? ESRCH : e;
  }
  set_name(f, name);
  return 0;
}

FIBERTHREAD_API int fiberthread_get_name(fiberthread_t fiber, char* name, size_t size) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  char known[sizeof f->identity.name];
  if (f->run.kernel) {
    int e = on_nptl([&] { return REAL(pthread_getname_np)(reinterpret_cast<pthread_t>(f->memory.tcb), known, sizeof known); });
    if (e) return e == ENOENT ? ESRCH : e;
  } else {
    name_of(f, known);
  }
  known[sizeof known - 1] = 0;
  if (strlen(known) >= size) return ERANGE;
  strcpy(name, known);
  return 0;
}

FIBERTHREAD_API int fiberthread_each(int (*visit)(fiberthread_t, void*), void* data) {
  self();
  Visit v{visit, data};
  if (!main_fiber->memory.block && !visit_one(main_fiber, &v)) return v.result;
  block_each(visit_one, &v);
  if (v.result == 0) kernel_record_each([](FiberRecord* f, void* p) { return f == main_fiber || visit_one(f, p); }, &v);
  return v.result;
}

FIBERTHREAD_API int fiberthread_pthread(fiberthread_t fiber, pthread_t* thread) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  *thread = reinterpret_cast<pthread_t>(f->memory.tcb);
  return 0;
}

FIBERTHREAD_API fiberthread_t fiberthread_of(pthread_t thread) {
  if (FiberRecord* f = fiber_of(thread)) return handle_of(f);
  struct Search {
    void* tcb;
    FiberRecord* found;
  } search{reinterpret_cast<void*>(thread), nullptr};
  kernel_record_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->memory.tcb == s->tcb) s->found = f;
        return !s->found;
      },
      &search);
  return search.found ? handle_of(search.found) : nullptr;
}

FIBERTHREAD_API int fiberthread_key_create(fiberthread_key_t* key, void (*destructor)(void*)) {
  return pthread_key_create(key, destructor);
}
FIBERTHREAD_API int fiberthread_key_delete(fiberthread_key_t key) { return pthread_key_delete(key); }
FIBERTHREAD_API int fiberthread_set_local(fiberthread_key_t key, const void* value) { return pthread_setspecific(key, value); }
FIBERTHREAD_API void* fiberthread_get_local(fiberthread_key_t key) { return pthread_getspecific(key); }

FIBERTHREAD_API void fiberthread_get_statistics(fiberthread_statistics_t* s) {
  uint64_t live = live_fibers();  // main included. Read first, so that `ended` is never too large.
  s->spawned = fibers_spawned();
  s->ended = s->spawned + 1 > live ? s->spawned + 1 - live : 0;
  s->recycled = fibers_recycled();
  s->workers = workers_made();
}
