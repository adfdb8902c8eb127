// The C interface of fibers (sync/include/fiberthread/fiberthread.h), on which the C++ one stands.
//
// A handle is the address of the fiber's record, whose bits that are always the same have part of the record's serial number in them.
// Records are type-stable, so what an old handle points to can be looked at for ever, and the serial tells whether the fiber is
// still there. Where that has to stay so while something is done, it is looked at under join_lock.
//
// Where threads are NPTL's, a fiber is a kernel thread with a record, made by libc's pthread_create when the fiber is made: it
// waits until it is started. Its record stays until it is joined or, not joinable, has ended.
#include "fiberthread/fiberthread.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "sched/cord.h"
#include "sched/stack.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/scheduling.h"
#include "shim/thread.h"
#include "shim/thread_names.h"

namespace fiberthread {
namespace {

constexpr uint64_t kAddress = 0x0000'ffff'ffff'ffc0;
static_assert(alignof(FiberRecord) == 64);

fiberthread_t handle_of(const FiberRecord* f) {
  uint64_t serial = f->serial;
  return reinterpret_cast<fiberthread_t>(reinterpret_cast<uint64_t>(f) | (serial & 63) | serial >> 6 << 48);
}

FiberRecord* record_of(fiberthread_t h) { return reinterpret_cast<FiberRecord*>(reinterpret_cast<uint64_t>(h) & kAddress); }

// Is `h` f's, and has it not been given back? Under join_lock the answer holds as long as f cannot be given back: while it has not
// ended, and while nobody joins it and it is not detached. Who concludes that looks at `done`, `joiner` or `detached` first: of a
// later fiber they would be written after the serial.
bool is_still(FiberRecord* f, fiberthread_t h) {
  // A child of fork has the records of its parent's fibers, but no TCBs. One that is being started becomes valid before it is no longer
  // fresh, so they are looked at the other way round.
  return f && (f->kernel || f->tcb) &&
         (f->fresh.load(std::memory_order_acquire) || f->valid.load(std::memory_order_acquire)) && handle_of(f) == h;
}

bool lives(FiberRecord* f, const void* handle) {
  bool done = f->done.load(std::memory_order_acquire);
  return is_still(f, *static_cast<const fiberthread_t*>(handle)) && !done;
}

// Made by this interface, on NPTL. All other records of kernel threads are main's or foreign threads'.
bool is_nptl(const FiberRecord* f) { return f->kernel && f->start && !f->block && !f->is_main; }

uint64_t deadline_after(uint64_t timeout) {
  if (timeout == FIBERTHREAD_FOREVER) return kNever;
  uint64_t deadline;
  if (__builtin_add_overflow(now_ns(), timeout, &deadline) || deadline >= kNever - 2) return kNever;
  return (deadline + 1) & ~kFollowsRealtime;
}

bool ended_by_cancel(FiberRecord* me) { return me->interrupts.load(std::memory_order_relaxed) & kInterruptEnd; }

// ---- on NPTL ----

// libc's calls may set errno on their way. A thread that has ended has no name any more (ENOENT).
template <class Call>
int on_nptl(Call call) {
  int saved = errno, e = call();
  errno = saved;
  return e;
}

void* run_nptl(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  kernel_record_enter(f);
  while (uint32_t fresh = f->fresh.load(std::memory_order_acquire)) {
    if (fresh == kDiscarded) return nullptr;
    futex_wait(&f->fresh, fresh);  // not parked: that would end its caller's wait
  }
  return f->start(f->arg);
}

// Attributes are asked for one by one: they cannot be copied. `stack_size` goes before that of `from`.
int copy_attr(pthread_attr_t* to, const pthread_attr_t* from, size_t stack_size) {
  pthread_attr_init(to);
  if (from) {
    size_t guard, size;
    void* stack;
    int inherit, policy;
    sched_param priority;
    sigset_t mask;
    cpu_set_t cpus;
    pthread_attr_getguardsize(from, &guard);
    pthread_attr_setguardsize(to, guard);
    pthread_attr_getstack(from, &stack, &size);
    if (reinterpret_cast<uintptr_t>(stack) + size != 0) {
      pthread_attr_setstack(to, stack, size);
      stack_size = 0;
    } else if (pthread_attr_getstacksize(from, &size) == 0) {
      pthread_attr_setstacksize(to, size);
    }
    pthread_attr_getinheritsched(from, &inherit);
    pthread_attr_setinheritsched(to, inherit);
    pthread_attr_getschedpolicy(from, &policy);
    pthread_attr_setschedpolicy(to, policy);
    pthread_attr_getschedparam(from, &priority);
    pthread_attr_setschedparam(to, &priority);
    if (pthread_attr_getsigmask_np(from, &mask) == 0) pthread_attr_setsigmask_np(to, &mask);
    CPU_ZERO(&cpus);
    if (pthread_attr_getaffinity_np(from, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < CPU_SETSIZE)
      pthread_attr_setaffinity_np(to, sizeof cpus, &cpus);
  }
  return stack_size ? pthread_attr_setstacksize(to, stack_size) : 0;
}

int make_nptl(const fiberthread_options_t& o, void* (*start)(void*), FiberRecord** made) {
  pthread_attr_t attr;
  if (int e = copy_attr(&attr, o.attr, o.stack_size)) {
    pthread_attr_destroy(&attr);  // it may have a set of CPUs
    return e;
  }
  int state = PTHREAD_CREATE_JOINABLE;
  if (o.attr) pthread_attr_getdetachstate(o.attr, &state);
  FiberRecord* f = kernel_record_get();
  f->start = start;
  f->detached = state == PTHREAD_CREATE_DETACHED;
  f->fresh.store(kFresh, std::memory_order_relaxed);
  f->valid.store(true, std::memory_order_release);
  pthread_t thread;
  int e = on_nptl([&] { return REAL(pthread_create)(&thread, &attr, run_nptl, f); });
  pthread_attr_destroy(&attr);
  if (e) {
    f->fresh.store(0, std::memory_order_relaxed);
    kernel_record_put(f);
    return e;
  }
  f->tcb = reinterpret_cast<void*>(thread);  // it writes the same
  *made = f;
  return 0;
}

// ---- making ----

int join_cord(FiberRecord* f, const fiberthread_options_t& o) {
  if (o.bound || f->bound.load(std::memory_order_relaxed)) return EINVAL;
  return cord_admit(reinterpret_cast<CordRecord*>(o.cord), f) ? 0 : EPIPE;
}

int make(const fiberthread_options_t* options, void* (*start)(void*), FiberRecord** made) {
  static constexpr fiberthread_options_t kDefault{};
  const fiberthread_options_t& o = options ? *options : kDefault;
  if (!start) return EINVAL;
  if (o.name && strlen(o.name) >= sizeof FiberRecord::name) return ERANGE;
  FiberRecord* f;
  if (!thread_start_scheduler()) {
    if (int e = make_nptl(o, start, &f)) return e;
    if (o.name) on_nptl([&] { return REAL(pthread_setname_np)(reinterpret_cast<pthread_t>(f->tcb), o.name); });
  } else {
    if (int e = thread_make(o.attr, o.stack_size, &f)) return e;
    f->start = start;
    if (o.cord)
      if (int e = join_cord(f, o)) {
        sched_discard(f);
        return e;
      }
    if (o.bound)
      if (int e = sched_bind(f)) {
        sched_discard(f);
        return e;
      }
    if (o.name) set_name(f, o.name);
  }
  if (o.detached) f->detached = true;
  *made = f;
  return 0;
}

void begin(FiberRecord* f, void* argument) {
  f->arg = argument;
  if (f->kernel) {
    f->fresh.store(0, std::memory_order_release);
    futex_wake(&f->fresh, 1);
    return;
  }
  thread_begin(f);
  if (f->fresh.load(std::memory_order_relaxed)) f->fresh.store(0, std::memory_order_release);
  sched_spawn(f);
}

// 0: it was new, and the caller alone shall start or discard it.
int claim(FiberRecord* f, fiberthread_t h) {
  if (!is_still(f, h)) return ESRCH;
  Busy busy;
  SpinGuard guard(f->join_lock);
  // It stays fresh under the lock, so it is this fiber if it was after the serial was looked at.
  uint32_t fresh = f->fresh.load(std::memory_order_acquire);
  if (fresh != kFresh) return is_still(f, h) && fresh != kDiscarded ? EALREADY : ESRCH;
  if (!is_still(f, h)) return ESRCH;
  f->fresh.store(kClaimed, std::memory_order_relaxed);
  return 0;
}

// ---- waiting ----

int wait_for_wakeup(FiberRecord* me, uint64_t deadline, const char* what) {
  uint32_t mark = me->serial + 1;
  for (;;) {
    uint32_t woken = me->woken.load(std::memory_order_relaxed);
    if (woken == mark) {
      me->woken.exchange(0, std::memory_order_acquire);  // what the waker did before is seen
      return 0;
    }
    if (ended_by_cancel(me)) return ECANCELED;
    if (passed(me, deadline)) return ETIMEDOUT;
    park_if(&me->woken, woken, {what}, deadline);
  }
}

int yield_until(uint64_t deadline, const char* what) {
  FiberRecord* me = self();
  if (in_cord_callback()) return EPERM;
  if (deadline == 0) yield();
  int e = wait_for_wakeup(me, deadline, what);
  // Its caller runs on at the first yield, even if there was nothing to wait for.
  if (__builtin_expect(me->called_by.load(std::memory_order_relaxed) != nullptr, 0)) yield();
  return e;
}

// 0, or why the caller must not wait for the fiber. On 0 it is registered as the joiner, and the record stays.
int become_joiner(FiberRecord* me, FiberRecord* f, fiberthread_t h) {
  if (f == me) return EDEADLK;
  Busy busy;
  // Both: two that join each other at the same time look one after the other.
  SpinPairGuard guard(me->join_lock, f->join_lock);
  FiberRecord* joiner = __atomic_load_n(&f->joiner, __ATOMIC_ACQUIRE);
  bool detached = __atomic_load_n(&f->detached, __ATOMIC_ACQUIRE);
  if (!is_still(f, h)) return ESRCH;
  if (joiner || detached || (f->kernel && !is_nptl(f))) return EINVAL;
  if (me->joiner == f) return EDEADLK;
  f->joiner = me;
  me->queued++;  // while we are that
  return 0;
}

int join(fiberthread_t h, void** result, uint64_t deadline) {
  FiberRecord* f = record_of(h);
  if (!is_still(f, h)) return ESRCH;
  FiberRecord* me = self();
  if (int e = become_joiner(me, f, h)) return e;
  if (!f->done.load(std::memory_order_acquire) && ended_by_cancel(me)) {
    // sched_join() looks at interrupts that come from now on.
    bool done;
    {
      Busy busy;
      SpinGuard guard(f->join_lock);
      done = f->done.load(std::memory_order_relaxed);
      if (!done) f->joiner = nullptr;
    }
    if (!done) {
      wait_over(me);
      return ECANCELED;
    }
  }
  bool nptl = f->kernel;
  void* value;
  bool joined = sched_join(f, &value, deadline, kInterruptEnd | kInterruptLeave);
  wait_over(me);
  if (!joined) return ended_by_cancel(me) ? ECANCELED : ETIMEDOUT;
  if (nptl) {
    REAL(pthread_join)(reinterpret_cast<pthread_t>(f->tcb), &value);  // it is on its way out
    kernel_record_put(f);
  }
  if (result) *result = value;
  return 0;
}

// ---- all of them ----

struct Visit {
  int (*visit)(fiberthread_t, void*);
  void* data;
  int result = 0;
};

bool visit_one(FiberRecord* f, void* p) {
  auto* v = static_cast<Visit*>(p);
  fiberthread_t h = handle_of(f);
  if (!f->valid.load(std::memory_order_acquire) || f->fresh.load(std::memory_order_relaxed) || f->done.load(std::memory_order_acquire) || !is_still(f, h)) return true;
  v->result = v->visit(h, v->data);
  return v->result == 0;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int fiberthread_spawn(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*), void* argument) {
  FiberRecord* f;
  if (int e = fiberthread::make(options, start, &f)) return e;
  *fiber = handle_of(f);  // before it runs
  begin(f, argument);
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_new(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*)) {
  FiberRecord* f;
  if (int e = fiberthread::make(options, start, &f)) return e;
  f->fresh.store(kFresh, std::memory_order_release);
  *fiber = handle_of(f);
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_start(fiberthread_t fiber, void* argument) {
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  begin(f, argument);
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_call(fiberthread_t fiber, void* argument) {
  if (in_cord_callback()) return EPERM;
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  f->arg = argument;
  if (!f->kernel) {
    thread_begin(f);
    f->fresh.store(0, std::memory_order_release);
  }
  return sched_call(f, kInterruptEnd | kInterruptLeave);
}

FIBERTHREAD_EXPORT int fiberthread_discard(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  if (f->kernel) {
    f->detached = true;
    f->fresh.store(kDiscarded, std::memory_order_release);
    futex_wake(&f->fresh, 1);
  } else {
    f->fresh.store(0, std::memory_order_release);
    sched_discard(f);
  }
  return 0;
}

FIBERTHREAD_EXPORT fiberthread_t fiberthread_self(void) { return handle_of(self()); }

FIBERTHREAD_EXPORT uint64_t fiberthread_id(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!f) return 0;
  uint64_t id = f->id;
  return is_still(f, fiber) ? id : 0;
}

FIBERTHREAD_EXPORT fiberthread_t fiberthread_find(uint64_t id) {
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

FIBERTHREAD_EXPORT int fiberthread_set_name(fiberthread_t fiber, const char* name) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (strlen(name) >= sizeof f->name) return ERANGE;
  if (f->kernel) {
    int e = on_nptl([&] { return REAL(pthread_setname_np)(reinterpret_cast<pthread_t>(f->tcb), name); });
    return e == ENOENT ? ESRCH : e;
  }
  set_name(f, name);
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_get_name(fiberthread_t fiber, char* name, size_t size) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  char known[sizeof f->name];
  if (f->kernel) {
    int e = on_nptl([&] { return REAL(pthread_getname_np)(reinterpret_cast<pthread_t>(f->tcb), known, sizeof known); });
    if (e) return e == ENOENT ? ESRCH : e;
  } else if (has_name(f)) {
    memcpy(known, f->name, sizeof known);
  } else {
    raw_syscall(SYS_prctl, PR_GET_NAME, arg(known));
  }
  known[sizeof known - 1] = 0;
  if (strlen(known) >= size) return ERANGE;
  strcpy(name, known);
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_each(int (*visit)(fiberthread_t, void*), void* data) {
  self();
  Visit v{visit, data};
  if (!main_fiber->block && !visit_one(main_fiber, &v)) return v.result;
  block_each(visit_one, &v);
  if (v.result == 0) kernel_record_each([](FiberRecord* f, void* p) { return f == main_fiber || visit_one(f, p); }, &v);
  return v.result;
}

FIBERTHREAD_EXPORT int fiberthread_pthread(fiberthread_t fiber, pthread_t* thread) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  *thread = reinterpret_cast<pthread_t>(f->tcb);
  return 0;
}

FIBERTHREAD_EXPORT fiberthread_t fiberthread_of(pthread_t thread) {
  if (FiberRecord* f = fiber_of(thread)) return handle_of(f);
  struct Search {
    void* tcb;
    FiberRecord* found;
  } search{reinterpret_cast<void*>(thread), nullptr};
  kernel_record_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->tcb == s->tcb) s->found = f;
        return !s->found;
      },
      &search);
  return search.found ? handle_of(search.found) : nullptr;
}

FIBERTHREAD_EXPORT int fiberthread_yield(void) { return yield_until(kNever, "yield"); }

FIBERTHREAD_EXPORT int fiberthread_yield_timeout(uint64_t timeout_ns) {
  return yield_until(timeout_ns ? deadline_after(timeout_ns) : 0, "yield (timed)");
}

FIBERTHREAD_EXPORT int fiberthread_wakeup(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (f == tls_current || f->fresh.load(std::memory_order_relaxed) || f->done.load(std::memory_order_relaxed)) return 0;
  // Of this very fiber: should it end just now, the next one to have its record takes no notice; and a wake-up of that one must not
  // be written over: so the serial is looked at after `seen`.
  uint32_t mark = static_cast<uint32_t>(f->serial) + 1, seen = f->woken.load(std::memory_order_acquire);
  do {
    if (handle_of(f) != fiber) return 0;
  } while (!f->woken.compare_exchange_weak(seen, mark, std::memory_order_seq_cst, std::memory_order_acquire));
  if (seen != mark) unpark_in_order(f);
  return 0;
}

FIBERTHREAD_EXPORT void fiberthread_reschedule(void) { fiberthread::yield(); }

FIBERTHREAD_EXPORT int fiberthread_sleep(uint64_t timeout_ns) {
  static const std::atomic<uint32_t> never{0};
  FiberRecord* me = self();
  if (in_cord_callback()) return EPERM;
  uint64_t deadline = timeout_ns ? deadline_after(timeout_ns) : 0;
  if (timeout_ns == 0) fiberthread::yield();
  for (;;) {
    if (ended_by_cancel(me)) return ECANCELED;
    if (passed(me, deadline)) return 0;
    park_if(&never, 0, {"sleep"}, deadline);
  }
}

FIBERTHREAD_EXPORT int fiberthread_cancel(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (end_waits_of(f, lives, &fiber)) return 0;
  return is_still(f, fiber) ? 0 : ESRCH;  // 0: it has ended, and was not joined
}

FIBERTHREAD_EXPORT int fiberthread_cancelled(void) { return ended_by_cancel(self()); }

FIBERTHREAD_EXPORT int fiberthread_set_cancellable(int cancellable) { return !hold_end(self(), !cancellable); }

FIBERTHREAD_EXPORT int fiberthread_set_joinable(fiberthread_t fiber, int joinable) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  bool ended;
  {
    Busy busy;
    SpinGuard guard(f->join_lock);
    FiberRecord* joiner = __atomic_load_n(&f->joiner, __ATOMIC_ACQUIRE);
    bool detached = __atomic_load_n(&f->detached, __ATOMIC_ACQUIRE);
    ended = f->done.load(std::memory_order_acquire);
    if (!is_still(f, fiber) || (detached && ended)) return ESRCH;
    if (f == main_fiber || (f->kernel && !is_nptl(f))) return EINVAL;
    if (joiner) return EBUSY;
    __atomic_store_n(&f->detached, !joinable, __ATOMIC_RELEASE);
    if (joinable || !ended) return 0;
    f->valid.store(false, std::memory_order_release);
  }
  if (f->kernel) {
    REAL(pthread_detach)(reinterpret_cast<pthread_t>(f->tcb));
    kernel_record_put(f);
  } else {
    Busy busy;
    block_put(f);
  }
  return 0;
}

FIBERTHREAD_EXPORT int fiberthread_join(fiberthread_t fiber, void** result) { return fiberthread::join(fiber, result, kNever); }

FIBERTHREAD_EXPORT int fiberthread_join_timeout(fiberthread_t fiber, void** result, uint64_t timeout_ns) {
  return fiberthread::join(fiber, result, deadline_after(timeout_ns));
}

FIBERTHREAD_EXPORT int fiberthread_key_create(fiberthread_key_t* key, void (*destructor)(void*)) { return pthread_key_create(key, destructor); }
FIBERTHREAD_EXPORT int fiberthread_key_delete(fiberthread_key_t key) { return pthread_key_delete(key); }
FIBERTHREAD_EXPORT int fiberthread_set_local(fiberthread_key_t key, const void* value) { return pthread_setspecific(key, value); }
FIBERTHREAD_EXPORT void* fiberthread_get_local(fiberthread_key_t key) { return pthread_getspecific(key); }

FIBERTHREAD_EXPORT void fiberthread_get_statistics(fiberthread_statistics_t* s) {
  uint64_t live = live_fibers();  // main included; before the others, so that `ended` is never too large
  s->spawned = fibers_spawned();
  s->ended = s->spawned + 1 > live ? s->spawned + 1 - live : 0;
  s->recycled = fibers_recycled();
  s->workers = statistics.workers.load(std::memory_order_relaxed);
}
