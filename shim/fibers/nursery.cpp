// SPDX-License-Identifier: MIT
#include "fiberthread/nursery.h"

#include <errno.h>
#include <stdlib.h>

#include "sched/fiber.h"
#include "fiberthread/fiber_mutex.h"

namespace fiberthread {

// A child is in the list from before it runs until a thread takes it out to join it. That is a later spawn() if the child has ended by
// then, else wait(). Children that have ended stand in front.
struct NurseryInside {
  using Child = Nursery::Child;
  // Held for a few instructions for each child, and while a child is cancelled. A parent's mutex is taken before its children's.
  FiberMutex mutex;
  bool cancelled = false;
  int error = 0;
  Child* first = nullptr;
  Child* last = nullptr;
  std::atomic<size_t> alive{0};
  std::atomic<uint32_t> joining{0};  // children that spawn() has taken out and not yet given back
  FiberRecord* waiter = nullptr;     // the fiber that waits until `joining` is 0
  Nursery* parent = nullptr;
  NurseryInside* nested = nullptr;  // the nurseries whose parent this is
  NurseryInside* next = nullptr;
  NurseryInside** link = nullptr;

  static NurseryInside* of(Nursery& n) { return reinterpret_cast<NurseryInside*>(n.inside_); }
  static const NurseryInside* of(const Nursery& n) { return reinterpret_cast<const NurseryInside*>(n.inside_); }
  void cancel(int why, Child* but);
  void remove(Child* c);
  void add_last(Child* c);
  void add_first(Child* c);
  void end(Child* c, int e);
  int join(Child* c);
  void join_ended();
  static void* child_main(void* p);
};

namespace {

class NurseryLock {
 public:
  explicit NurseryLock(FiberMutex& m) : m_(m) { m_.lock(); }
  ~NurseryLock() { m_.unlock(); }
  NurseryLock(const NurseryLock&) = delete;

 private:
  FiberMutex& m_;
};

}  // namespace

void NurseryInside::remove(Child* c) {
  if (c->next) c->next->prev = c->prev;
  else last = c->prev;
  if (c->prev) c->prev->next = c->next;
  else first = c->next;
}
void NurseryInside::add_last(Child* c) {
  c->next = nullptr;
  c->prev = last;
  if (last) last->next = c;
  else first = c;
  last = c;
}
void NurseryInside::add_first(Child* c) {
  c->prev = nullptr;
  c->next = first;
  if (first) first->prev = c;
  else last = c;
  first = c;
}

// Called under the mutex.
void NurseryInside::cancel(int why, Child* but) {
  if (why && !error) __atomic_store_n(&error, why, __ATOMIC_RELEASE);
  if (cancelled) return;
  __atomic_store_n(&cancelled, true, __ATOMIC_RELEASE);
  for (Child* c = first; c; c = c->next)
    if (c != but && !c->ended) fiberthread_cancel(c->fiber);
  for (NurseryInside* n = nested; n; n = n->next) {
    NurseryLock l(n->mutex);
    n->cancel(0, nullptr);
  }
}

void* NurseryInside::child_main(void* p) {
  auto* c = static_cast<Child*>(p);
  NurseryInside* n = of(*c->nursery);
  n->end(c, c->run(c));
  return nullptr;
}

void NurseryInside::end(Child* c, int e) {
  c->destroy(c);
  NurseryLock l(mutex);
  if (e && !(cancelled && e == ECANCELED)) cancel(e, c);
  remove(c);
  add_first(c);
  c->ended = true;
  alive.fetch_sub(1, std::memory_order_relaxed);
}

// Joins a child that was taken out, or that no other thread can take out. Returns 0. Returns ECANCELED without joining if the caller was
// cancelled.
int NurseryInside::join(Child* c) {
  if (fiberthread_join(c->fiber, nullptr) == ECANCELED) return ECANCELED;
  if (!c->ended) end(c, ECANCELED);  // it ended by force, so child_main() has not done this
  return 0;
}

// Joins children that have ended. So a nursery can live long and have many children one after the other.
void NurseryInside::join_ended() {
  Child* ended = nullptr;
  {
    NurseryLock l(mutex);
    for (int most = 2; most-- && first && first->ended && !first->claimed;) {
      Child* c = first;
      remove(c);
      c->next = ended;
      ended = c;
    }
    if (!ended) return;
    joining.fetch_add(1, std::memory_order_relaxed);
  }
  int was = fiberthread_set_cancellable(0);
  while (Child* c = ended) {
    ended = c->next;
    join(c);
    free(c);
  }
  fiberthread_set_cancellable(was);
  NurseryLock l(mutex);
  if (joining.fetch_sub(1, std::memory_order_release) == 1 && waiter) unpark(waiter);
}

// ---- Nursery ----

static_assert(sizeof(NurseryInside) <= 96);

Nursery::Nursery(Nursery* parent) {
  auto* n = new (inside_) NurseryInside;
  if (!parent) return;
  n->parent = parent;
  NurseryInside* p = NurseryInside::of(*parent);
  NurseryLock l(p->mutex);
  n->cancelled = p->cancelled;
  n->next = p->nested;
  n->link = &p->nested;
  if (n->next) n->next->link = &n->next;
  p->nested = n;
}

Nursery::~Nursery() {
  wait();
  auto* n = NurseryInside::of(*this);
  if (!n->parent) return;
  NurseryLock l(NurseryInside::of(*n->parent)->mutex);
  *n->link = n->next;
  if (n->next) n->next->link = n->link;
}

Nursery::Child* Nursery::make(size_t size) {
  void* memory = malloc(sizeof(Child) + size);
  return memory ? new (memory) Child : nullptr;
}

void Nursery::ended_by_force(Child* c) { NurseryInside::of(*c->nursery)->end(c, ECANCELED); }

int Nursery::start(Child* c, const fiberthread_options_t* options) {
  NurseryInside* n = NurseryInside::of(*this);
  n->join_ended();
  c->nursery = this;
  int detached = PTHREAD_CREATE_JOINABLE;
  if (options && options->attr) pthread_attr_getdetachstate(options->attr, &detached);
  bool joinable = !(options && options->detached) && detached == PTHREAD_CREATE_JOINABLE;
  int e = joinable ? fiberthread_new(&c->fiber, options, NurseryInside::child_main) : EINVAL;
  if (e == 0) {
    NurseryLock l(n->mutex);
    if (!n->cancelled) {
      n->add_last(c);
      n->alive.fetch_add(1, std::memory_order_relaxed);
      return fiberthread_start(c->fiber, c);
    }
    e = ECANCELED;
  } else {
    c->fiber = nullptr;
  }
  if (c->fiber) fiberthread_discard(c->fiber);
  c->destroy(c);
  free(c);
  return e;
}

int Nursery::wait() {
  NurseryInside* n = NurseryInside::of(*this);
  int was = -1, result;
  for (;;) {
    Child* c;
    {
      NurseryLock l(n->mutex);
      n->waiter = self();
      c = n->first;
      if (c) c->claimed = true;
      result = n->error ? n->error : n->cancelled ? ECANCELED : 0;
    }
    if (!c) {
      uint32_t others = n->joining.load(std::memory_order_acquire);
      if (!others) break;
      park_if(&n->joining, others, {"nursery", this});
      continue;
    }
    if (n->join(c) == ECANCELED) {
      cancel();
      was = fiberthread_set_cancellable(0);
      continue;
    }
    {
      NurseryLock l(n->mutex);
      n->remove(c);
    }
    free(c);
  }
  // A spawn() that joined for us may still hold the mutex. Once we have had the mutex, that spawn() no longer touches the nursery.
  {
    NurseryLock l(n->mutex);
  }
  if (was >= 0) fiberthread_set_cancellable(was);
  return result;
}

void Nursery::cancel(int error) {
  NurseryInside* n = NurseryInside::of(*this);
  NurseryLock l(n->mutex);
  n->cancel(error, nullptr);
}

bool Nursery::cancelled() const { return __atomic_load_n(&NurseryInside::of(*this)->cancelled, __ATOMIC_ACQUIRE); }
int Nursery::error() const { return __atomic_load_n(&NurseryInside::of(*this)->error, __ATOMIC_ACQUIRE); }
size_t Nursery::children() const { return NurseryInside::of(*this)->alive.load(std::memory_order_relaxed); }

}  // namespace fiberthread

using namespace fiberthread;

static_assert(sizeof(Nursery) <= sizeof(fiberthread_nursery_t) && alignof(Nursery) <= alignof(fiberthread_nursery_t));

namespace {
Nursery& in(fiberthread_nursery_t* n) { return *reinterpret_cast<Nursery*>(n); }
}  // namespace

extern "C" {

FIBERTHREAD_API void fiberthread_nursery_init(fiberthread_nursery_t* n, fiberthread_nursery_t* parent) {
  new (n) Nursery(parent ? &in(parent) : nullptr);
}
FIBERTHREAD_API int fiberthread_nursery_spawn(fiberthread_nursery_t* n, const fiberthread_options_t* options, int (*function)(void*),
                                              void* argument) {
  return in(n).spawn([function, argument] { return function(argument); }, options);
}
FIBERTHREAD_API int fiberthread_nursery_wait(fiberthread_nursery_t* n) { return in(n).wait(); }
FIBERTHREAD_API void fiberthread_nursery_cancel(fiberthread_nursery_t* n, int error) { in(n).cancel(error); }
FIBERTHREAD_API int fiberthread_nursery_end(fiberthread_nursery_t* n) {
  int e = in(n).wait();
  in(n).~Nursery();
  return e;
}

}  // extern "C"
