// SPDX-License-Identifier: MIT
// What -DFIBERTHREAD_DEBUG_CHECKS catches. Each misuse prints one line on stderr, and ends the process by SIGABRT.
// alone: sync
#ifndef FIBERTHREAD_DEBUG_CHECKS
#define FIBERTHREAD_DEBUG_CHECKS
#endif
#include "tests/test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "fiberthread/fair_fiber_mutex.h"
#include "fiberthread/fiber_event.h"
#include "fiberthread/fiber_futex.h"
#include "fiberthread/fiber_future.h"
#include "fiberthread/fiber_mutex.h"
#include "fiberthread/fiber_sequencer.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// wrong() in a child: it must say "fiberthread: TYPE 0x… WHAT" and abort.
template <class F>
void caught(const char* type, const char* what, F wrong) {
  int end[2];
  cr_assert_eq(pipe(end), 0);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    alarm(100);
    dup2(end[1], 2);
    wrong();
    _exit(0);
  }
  close(end[1]);
  char said[400] = {};
  size_t n = 0;
  for (ssize_t r; n < sizeof said - 1 && (r = read(end[0], said + n, sizeof said - 1 - n)) > 0;) n += static_cast<size_t>(r);
  close(end[0]);
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s %s: status %d", type, what, status);
  char start[100] = "fiberthread: ";
  strcat(strcat(start, type), " 0x");
  cr_assert(strstr(said, start) && strstr(said, what) && strchr(said, '\n'), "%s %s: it says: %s", type, what, said);
}

// An object whose destructor runs only when the test calls it.
template <class T>
struct Box {
  alignas(T) unsigned char memory[sizeof(T)];
  T& it = *new (memory) T;
  ~Box() = default;
};

struct Nothing : SubscribeCallback {
  Nothing() : SubscribeCallback{[](SubscribeCallback*, int) {}} {}
};

// Destroys the object while a fiber waits. The child has one thread, and its waiters are fibers of its own, so fork's reset does not help
// it.
template <class T, class Wait>
void destroyed_in_use(const char* type, const char* what, Wait wait) {
  caught(type, what, [&] {
    Box<T> box;
    Threads t;
    std::atomic<FiberRecord*> who{nullptr};
    t.fiber([&] {
      who = self();
      wait(box.it);
    });
    while (!who || who.load()->run.state.load() != State::Parked) give_way();
    box.it.~T();
    _exit(0);
  });
}

Test(misuse, destroyed_in_use) {
  destroyed_in_use<FiberFuture>("FiberFuture", "is destroyed while somebody waits", [](FiberFuture& f) { f.wait(); });
  destroyed_in_use<FiberFutex>("FiberFutex", "is destroyed while somebody waits", [](FiberFutex& f) { f.wait(); });
  destroyed_in_use<FiberSequencer>("FiberSequencer", "is destroyed while somebody waits", [](FiberSequencer& s) { s.wait(1); });
  destroyed_in_use<FiberEvent>("FiberSequencer", "is destroyed while somebody waits", [](FiberEvent& e) { e.wait(); });
  caught("FiberFuture", "is destroyed while somebody waits", [] {
    Nothing n;
    FiberFuture f;
    f.subscribe(&n);
  });
  caught("FiberMutex", "is destroyed while it is locked", [] {
    FiberMutex m;
    m.lock();
  });
  caught("FairFiberMutex", "is destroyed while it is locked", [] {
    FairFiberMutex m;
    m.lock();
  });
  caught("FiberSequencer::Future", "is destroyed while it waits", [] {
    Box<FiberSequencer> s;
    FiberSequencer::Future f;
    s.it.wait(1, &f);
  });
}

template <class T, class Use>
void used_after_its_end(const char* type, const char* what, Use use) {
  caught(type, what, [&] {
    Box<T> box;
    box.it.~T();
    use(box.it);
  });
}

Test(misuse, used_after_its_end) {
  used_after_its_end<FiberFuture>("FiberFuture", "is waited for after it was destroyed", [](FiberFuture& f) { f.wait(); });
  used_after_its_end<FiberFuture>("FiberFuture", "is set after it was destroyed", [](FiberFuture& f) { f.set(); });
  used_after_its_end<FiberFuture>("FiberFuture", "is reset after it was destroyed", [](FiberFuture& f) { f.reset(); });
  used_after_its_end<FiberFuture>("FiberFuture", "is destroyed twice", [](FiberFuture& f) { f.~FiberFuture(); });
  used_after_its_end<FiberFutex>("FiberFutex", "is waited for after it was destroyed", [](FiberFutex& f) { f.wait(); });
  used_after_its_end<FiberFutex>("FiberFutex", "is posted after it was destroyed", [](FiberFutex& f) { f.post(); });
  used_after_its_end<FiberFutex>("FiberFutex", "is destroyed twice", [](FiberFutex& f) { f.~FiberFutex(); });
  used_after_its_end<FiberMutex>("FiberMutex", "is locked after it was destroyed", [](FiberMutex& m) { m.lock(); });
  used_after_its_end<FiberMutex>("FiberMutex", "is destroyed twice", [](FiberMutex& m) { m.~FiberMutex(); });
  used_after_its_end<FiberSequencer>("FiberSequencer", "is used after it was destroyed", [](FiberSequencer& s) { s.wait(~0ull); });
  used_after_its_end<FiberSequencer>("FiberSequencer", "is counted up after it was destroyed", [](FiberSequencer& s) { s.increment(); });
  used_after_its_end<FiberSequencer>("FiberSequencer", "is destroyed twice", [](FiberSequencer& s) { s.~FiberSequencer(); });
  used_after_its_end<FairFiberMutex>("FairFiberMutex", "is locked after it was destroyed", [](FairFiberMutex& m) { m.lock(); });
  used_after_its_end<FairFiberMutex>("FairFiberMutex", "is unlocked after it was destroyed", [](FairFiberMutex& m) { m.unlock(); });
  used_after_its_end<FiberEvent>("FiberSequencer", "is used after it was destroyed", [](FiberEvent& e) { e.wait(); });
}

Test(misuse, second_use_during_a_wait) {
  caught("FiberFuture", "is waited for by two", [] {
    Nothing a, b;
    FiberFuture f;
    f.subscribe(&a);
    f.subscribe(&b);
  });
  caught("FiberFuture", "is waited for by two", [] {
    Nothing a;
    FiberFuture f;
    f.subscribe(&a);
    f.wait();
  });
  caught("FiberFuture", "is reset while somebody waits", [] {
    Nothing a;
    FiberFuture f;
    f.subscribe(&a);
    f.reset();
  });
  caught("FiberFuture", "waited for by two", [] {
    Nothing a;
    FiberFuture f, g;
    FiberFuture* both[] = {&f, &g};
    g.subscribe(&a);
    FiberFuture::waitForMultiple(both, 2);
  });
  caught("FiberSequencer::Future", "is given to a second wait", [] {
    Box<FiberSequencer> s;
    Box<FiberSequencer::Future> f;
    s.it.wait(1, &f.it);
    s.it.wait(2, &f.it);
  });
}

// Right use of all of them reports nothing.
Test(misuse, right_use_is_silent) {
  for (int i = 0; i < 3; i++) {
    FiberFuture f;
    f.set(i);
    cr_assert_eq(f.wait(), i);
    f.reset();
    FiberFutex x;
    x.post();
    cr_assert_eq(x.wait(1), 0);
    FiberMutex m;
    m.lock();
    m.unlock();
    FairFiberMutex fair;
    FairFiberMutex::Future mine;
    fair.lock(&mine);
    fair.unlock();
    FiberSequencer s;
    FiberSequencer::Future g, h;
    s.wait(1, &g);
    s.wait(1, &h);
    cr_assert(g.cancel());
    s.increment();
    cr_assert_eq(h.wait(), 0);
    FiberEvent e;
    e.set();
    cr_assert_eq(e.wait(), 0);
  }
}

}  // namespace
