// SPDX-License-Identifier: MIT
// Cords as programs see them: the scheduler fiber, callbacks, messages. sched/cord.h decides which fiber runs when.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include <new>

#include "sched/cord.h"
#include "sched/scheduler.h"
#include "fiberthread/deadline.h"
#include "fiberthread/fiber_futex.h"
#include "fiberthread/fiberthread.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

using namespace fiberthread;

namespace {

struct Callback {
  void (*function)(void*);
  void* argument;
  Callback* next;
};

struct Message {
  void* value;
  Message* next;
};

}  // namespace

// What a handle points to. The record comes first, so that fiber_start.cpp need not know the rest. All lists are under the lock of the
// queue of `messages`, on which receivers wait.
struct fiberthread_cord {
  CordRecord record;
  char name[16] = {};
  fiberthread_t fiber = nullptr;  // the scheduler fiber
  FiberRecord* scheduler = nullptr;
  FiberFutex begun;  // 1: it runs, or has failed with `error`
  int error = 0;
  std::atomic<uint32_t> work{0};  // counts what the scheduler fiber should look at
  std::atomic<bool> closed{false};
  Message* messages = nullptr;
  Message* last_message = nullptr;
  Callback* callbacks = nullptr;
  Callback* last_callback = nullptr;
};

namespace {

static_assert(offsetof(fiberthread_cord, record) == 0);

struct Receiver : Waiter {
  void* message = nullptr;
  bool closed = false;
};

void wake_scheduler(fiberthread_cord* c) {
  FiberRecord* scheduler = c->scheduler;
  c->work.fetch_add(1, std::memory_order_release);
  unpark(scheduler);
}

Callback* take_callbacks(fiberthread_cord* c) {
  LockedQueue q(&c->messages);
  Callback* all = c->callbacks;
  c->callbacks = c->last_callback = nullptr;
  return all;
}

// The scheduler fiber. It is cancelled for good, so a wait in a callback ends at once.
void* scheduler_main(void* p) {
  auto* c = static_cast<fiberthread_cord*>(p);
  c->scheduler = self();
  fiberthread_cancel(fiberthread_self());
  c->error = cord_begin(&c->record);
  bool failed = c->error != 0;
  if (!failed) raw_syscall(SYS_prctl, PR_SET_NAME, arg(c->name));
  c->begun.post();
  if (failed) return nullptr;
  for (;;) {
    uint32_t seen = c->work.load(std::memory_order_acquire);
    Callback* all = take_callbacks(c);
    if (!all) {
      if (c->closed.load(std::memory_order_acquire) && cord_end(&c->record)) return nullptr;
      park_if(&c->work, seen, {"cord", c});
      continue;
    }
    while (Callback* call = all) {
      all = call->next;
      // Relaxed: only this fiber and the threads that wake it look at this. Its parking publishes the store to them.
      c->record.alone.store(true, std::memory_order_relaxed);
      call->function(call->argument);
      c->record.alone.store(false, std::memory_order_relaxed);
      free(call);
    }
    give_way();  // between callbacks that make callbacks, other fibers get their turns
  }
}

}  // namespace

extern "C" {

FIBERTHREAD_API int fiberthread_cord_new(fiberthread_cord_t* cord, const char* name) {
  if (strlen(name) >= sizeof fiberthread_cord::name) return ERANGE;
  void* memory = aligned_alloc(alignof(fiberthread_cord), sizeof(fiberthread_cord));
  if (!memory) return EAGAIN;
  auto* c = new (memory) fiberthread_cord;
  strcpy(c->name, name);
  fiberthread_options_t options{};
  options.name = name;
  int e = fiberthread_spawn(&c->fiber, &options, scheduler_main, c);
  if (e == 0) {
    int was = fiberthread_set_cancellable(0);
    c->begun.wait(1);
    e = c->error;
    if (e) fiberthread_join(c->fiber, nullptr);
    fiberthread_set_cancellable(was);
  }
  if (e) free(c);
  else *cord = c;
  return e;
}

FIBERTHREAD_API fiberthread_cord_t fiberthread_cord_self(void) { return reinterpret_cast<fiberthread_cord_t>(cord_of(self())); }

FIBERTHREAD_API const char* fiberthread_cord_name(fiberthread_cord_t c) { return c->name; }

FIBERTHREAD_API fiberthread_t fiberthread_cord_find(fiberthread_cord_t c, uint64_t id) {
  struct Search {
    uint64_t id;
    fiberthread_t found;
  } search{id, nullptr};
  cord_each(
      &c->record,
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->identity.id == s->id) s->found = fiberthread_of(reinterpret_cast<pthread_t>(f->memory.tcb));
        return f->identity.id != s->id;
      },
      &search);
  return search.found;
}

FIBERTHREAD_API int fiberthread_cord_each(fiberthread_cord_t c, int (*visit)(fiberthread_t, void*), void* data) {
  // Makes a list first, since no lock may be held while `visit` runs.
  struct List {
    fiberthread_t* all;
    size_t n, room;
  } list{nullptr, 0, 0};
  do {
    free(list.all);
    list.n = 0;
    list.room = list.room * 2 + 16 + __atomic_load_n(&c->record.fibers, __ATOMIC_RELAXED);
    list.all = static_cast<fiberthread_t*>(malloc(list.room * sizeof *list.all));
    if (!list.all) return -1;
    cord_each(
        &c->record,
        [](FiberRecord* f, void* p) {
          auto* l = static_cast<List*>(p);
          if (l->n == l->room) return false;
          if (fiberthread_t h = fiberthread_of(reinterpret_cast<pthread_t>(f->memory.tcb))) l->all[l->n++] = h;
          return true;
        },
        &list);
  } while (list.n == list.room);
  int r = 0;
  for (size_t i = 0; i < list.n && r == 0; i++) r = visit(list.all[i], data);
  free(list.all);
  return r;
}

FIBERTHREAD_API int fiberthread_cord_send(fiberthread_cord_t c, void* value) {
  auto* m = static_cast<Message*>(malloc(sizeof(Message)));
  if (!m) return ENOMEM;
  *m = {value, nullptr};
  int e = 0;
  WakeList list;
  {
    LockedQueue q(&c->messages);
    if (c->closed.load(std::memory_order_relaxed)) {
      e = EPIPE;
    } else if (auto* r = static_cast<Receiver*>(q.first())) {
      r->message = value;
      list.add(q, *r);
    } else {
      (c->messages ? c->last_message->next : c->messages) = m;
      c->last_message = m;
      m = nullptr;
    }
  }
  list.wake_all();
  free(m);
  return e;
}

FIBERTHREAD_API int fiberthread_cord_receive(void** value, uint64_t timeout_ns) {
  FiberRecord* me = self();
  fiberthread_cord_t c = fiberthread_cord_self();
  if (!c || in_cord_callback()) return EPERM;
  if (me->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd) return ECANCELED;
  Message* m;
  Receiver r;
  {
    LockedQueue q(&c->messages);
    m = c->messages;
    if (m) c->messages = m->next;
    else if (c->closed.load(std::memory_order_relaxed)) return EPIPE;
    else if (timeout_ns == 0) return ETIMEDOUT;
    else q.add(r);
  }
  if (m) {
    *value = m->value;
    free(m);
    return 0;
  }
  switch (fiberthread::wait(r, {"message", c}, deadline_in(timeout_ns), kInterruptEnd)) {
    case WakeReason::TimedOut: return ETIMEDOUT;
    case WakeReason::Interrupted: return ECANCELED;
    default: break;
  }
  if (r.closed) return EPIPE;
  *value = r.message;
  return 0;
}

FIBERTHREAD_API int fiberthread_cord_call(fiberthread_cord_t c, void (*function)(void*), void* argument) {
  auto* call = static_cast<Callback*>(malloc(sizeof(Callback)));
  if (!call) return ENOMEM;
  *call = {function, argument, nullptr};
  FiberRecord* scheduler = c->scheduler;
  {
    LockedQueue q(&c->messages);
    if (c->closed.load(std::memory_order_relaxed)) {
      free(call);
      return EPIPE;
    }
    (c->callbacks ? c->last_callback->next : c->callbacks) = call;
    c->last_callback = call;
    c->work.fetch_add(1, std::memory_order_relaxed);
  }
  unpark(scheduler);
  return 0;
}

FIBERTHREAD_API void fiberthread_cord_close(fiberthread_cord_t c) {
  WakeList list;
  {
    LockedQueue q(&c->messages);
    c->closed.store(true, std::memory_order_release);
    while (auto* r = static_cast<Receiver*>(q.first())) {
      r->closed = true;
      list.add(q, *r);
    }
  }
  list.wake_all();
  wake_scheduler(c);
}

FIBERTHREAD_API int fiberthread_cord_join(fiberthread_cord_t c, uint64_t timeout_ns) {
  if (fiberthread_cord_self() == c) return EDEADLK;
  fiberthread_cord_close(c);
  int e = fiberthread_join_timeout(c->fiber, nullptr, timeout_ns);
  if (e == ETIMEDOUT || e == ECANCELED) return e;
  while (Message* m = c->messages) {
    c->messages = m->next;
    free(m);
  }
  free(c);
  return e;
}

}  // extern "C"
