// SPDX-License-Identifier: MIT
// usage: misuse CASE: makes a misuse that a build with FIBERTHREAD_DEBUG_CHECKS must catch. "none" makes correct calls, which it must not
// catch. --list lists all cases.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <new>

#include "fiberthread/mutex.h"
#include "fiberthread/once.h"
#include "fiberthread/rw_lock.h"
#include "fiberthread/semaphore.h"
#include "fiberthread/wait_group.h"

using namespace fiberthread;

namespace {

// An object whose memory remains when it is destroyed.
template <class T>
struct Remains {
  alignas(T) unsigned char bytes[sizeof(T)];
  T* object;
  template <class... Args>
  explicit Remains(Args... args) : object(::new(bytes) T(args...)) {}
  T* destroyed() {
    object->~T();
    return object;
  }
};

// Lets another fiber begin to wait. If it does not wait yet, the test fails; it cannot pass by mistake.
template <class Wait>
void in_another(Wait) {
  pthread_t t;
  pthread_create(&t, nullptr, [](void*) -> void* { return Wait()(), nullptr; }, nullptr);
  Semaphore never(0);
  for (int i = 0; i < 20; i++) never.acquire_for(2'000'000);
}

Mutex m;

struct Case {
  const char* name;
  const char* says;
  void (*run)();
} cases[] = {
    {"none", "",
     [] {
       Remains<Mutex> a;
       a.object->lock();
       a.object->unlock();
       a.destroyed();
       Remains<Semaphore> b(1);
       b.object->acquire();
       b.object->release();
       b.destroyed();
       Remains<RwLock> c;
       c.object->lock_shared();
       c.object->unlock_shared();
       c.destroyed();
       Remains<WaitGroup> d(1u);
       d.object->wait_for(1);
       d.object->done();
       d.object->wait();
       d.destroyed();
       Remains<Barrier> e(1u);
       e.object->arrive_and_wait();
       e.destroyed();
       Remains<ConditionVariable> f;
       m.lock();
       f.object->wait_for(m, 1);
       m.unlock();
       f.destroyed();
       Remains<Once> g;
       g.object->call([] {});
       g.destroyed();
     }},
    {"mutex-destroyed-locked", "Mutex is destroyed while it is locked",
     [] {
       Remains<Mutex> r;
       r.object->lock();
       r.destroyed();
     }},
    {"mutex-locked-after", "Mutex is locked after it was destroyed", [] { Remains<Mutex>().destroyed()->lock(); }},
    {"mutex-unlocked-free", "Mutex is unlocked but was not locked", [] { Remains<Mutex>().object->unlock(); }},
    {"mutex-destroyed-twice", "Mutex is destroyed twice", [] { Remains<Mutex>().destroyed()->~Mutex(); }},
    {"condition-destroyed-waiting", "ConditionVariable is destroyed while somebody waits",
     [] {
       static Remains<ConditionVariable> r;
       in_another([] {
         m.lock();
         r.object->wait(m);
       });
       r.destroyed();
     }},
    {"condition-waited-after", "ConditionVariable is waited for after it was destroyed",
     [] {
       m.lock();
       Remains<ConditionVariable>().destroyed()->wait(m);
     }},
    {"semaphore-destroyed-waiting", "Semaphore is destroyed while somebody waits",
     [] {
       static Remains<Semaphore> r(0);
       in_another([] { r.object->acquire(); });
       r.destroyed();
     }},
    {"semaphore-waited-after", "Semaphore is waited for after it was destroyed", [] { Remains<Semaphore>(3).destroyed()->acquire(); }},
    {"semaphore-released-after", "Semaphore is released after it was destroyed", [] { Remains<Semaphore>(3).destroyed()->release(); }},
    {"rwlock-destroyed-locked", "RwLock is destroyed while it is locked",
     [] {
       Remains<RwLock> r;
       r.object->lock_shared();
       r.destroyed();
     }},
    {"rwlock-destroyed-waiting", "RwLock is destroyed while somebody waits",
     [] {
       static Remains<RwLock> r;
       r.object->lock();
       in_another([] { r.object->lock(); });
       r.destroyed();
     }},
    {"rwlock-locked-after", "RwLock is locked after it was destroyed", [] { Remains<RwLock>().destroyed()->lock(); }},
    {"rwlock-read-after", "RwLock is locked after it was destroyed", [] { Remains<RwLock>().destroyed()->lock_shared(); }},
    {"group-destroyed-waiting", "WaitGroup is destroyed while somebody waits",
     [] {
       static Remains<WaitGroup> r(1u);
       in_another([] { r.object->wait(); });
       r.destroyed();
     }},
    {"group-waited-after", "WaitGroup is waited for after it was destroyed", [] { Remains<WaitGroup>().destroyed()->wait(); }},
    {"group-below-0", "WaitGroup counts below 0, or too far", [] { WaitGroup().done(); }},
    {"barrier-destroyed-waiting", "Barrier is destroyed while somebody waits",
     [] {
       static Remains<Barrier> r(2u);
       in_another([] { r.object->arrive_and_wait(); });
       r.destroyed();
     }},
    {"barrier-used-after", "Barrier is used after it was destroyed", [] { Remains<Barrier>(1u).destroyed()->arrive(); }},
    {"once-used-after", "Once is used after it was destroyed", [] { Remains<Once>().destroyed()->call([] {}); }},
};

}  // namespace

int main(int argc, char** argv) {
  for (auto& c : cases) {
    if (argc < 2) printf("%s\t%s\n", c.name, c.says);
    else if (!strcmp(argv[1], c.name)) c.run();
  }
  fflush(stdout);
  return 0;
}
