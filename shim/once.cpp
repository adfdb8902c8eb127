// SPDX-License-Identifier: MIT
// pthread_once. An initialiser that does not return, because it throws or its thread ends, leaves the object as it was.
#include <pthread.h>
#include <setjmp.h>
#include <unwind.h>

#include "sched/syscall.h"
#include "shim/export.h"
#include "sync/parking_lot.h"

extern "C" {
// Calls fn. Unwinding through its frame asks the function below. In sched/arch/<cpu>/posix/watched_call.S.
void fiberthread_once_call(void (*fn)(void*), void* argument) __attribute__((visibility("hidden")));
_Unwind_Reason_Code fiberthread_once_personality(int, _Unwind_Action actions, _Unwind_Exception_Class, _Unwind_Exception*, _Unwind_Context*)
    __attribute__((visibility("hidden")));
}

namespace fiberthread {
namespace {

// The word is 0, kDone as in glibc, or kRunning with the id of the process whose thread runs the initialiser. In the child of a fork no
// thread runs it.
constexpr uint32_t kRunning = 1, kDone = 2;

uint32_t running_here() { return static_cast<uint32_t>(raw_syscall(SYS_getpid)) << 2 | kRunning; }

// The initialisers that this thread is in, innermost first.
//
// Two things notice that one is left: the personality of fiberthread_once_call(), and a target that libc jumps to when the thread ends. An
// exception does not know the target. The end of a thread does not reach the personality if the initialiser has no unwind tables.
struct Frame {
  std::atomic<uint32_t>* word;
  Frame* outer;
  __pthread_unwind_buf_t target;
};
thread_local constinit Frame* frames = nullptr;

void settle(std::atomic<uint32_t>& word, uint32_t value) {
  WakeList list;
  {
    LockedQueue q(&word);
    while (Waiter* w = q.first()) list.add(q, *w);
    // Release: a thread that finds kDone sees what the initialiser did. Stored under the lock, as our last access. Afterwards another
    // object may be at this address, with waiters of its own, which we must not wake.
    word.store(value, std::memory_order_release);
  }
  list.wake_all();
}

// The thread leaves its innermost initialiser, `frame`, which has not returned.
void abandon(Frame& frame) {
  Busy busy;  // a handler that ended the thread in between would leave the word as it is
  __pthread_unregister_cancel(&frame.target);
  frames = frame.outer;
  settle(*frame.word, 0);
}

// Runs the initialiser if the word is still `w`. Returns false if it is not. Under Busy, the target is registered just as long as the frame
// is in the list and the word is `running`. So no handler can end the thread between these steps.
[[gnu::noinline]] bool run(std::atomic<uint32_t>& word, uint32_t w, uint32_t running, void (*fn)()) {
  Frame frame{&word, frames, {}};
  if (__sigsetjmp(reinterpret_cast<__jmp_buf_tag*>(&frame.target), 0) != 0) {
    if (frames == &frame) abandon(frame);
    __pthread_unwind_next(&frame.target);
  }
  {
    Busy busy;
    if (!word.compare_exchange_strong(w, running, std::memory_order_acquire)) return false;
    __pthread_register_cancel(&frame.target);
    frames = &frame;
  }
  fiberthread_once_call([](void* p) { reinterpret_cast<void (*)()>(p)(); }, reinterpret_cast<void*>(fn));
  Busy busy;
  frames = frame.outer;
  __pthread_unregister_cancel(&frame.target);
  settle(word, kDone);
  return true;
}

[[gnu::noinline]] void run_or_wait(std::atomic<uint32_t>& word, void (*fn)()) {
  uint32_t running = running_here();
  uint32_t w = word.load(std::memory_order_acquire);
  while (w != kDone) {
    if (w != running) {
      if (run(word, w, running, fn)) return;
    } else {
      Waiter waiter;
      park(&word, waiter, [&] { return word.load(std::memory_order_relaxed) == running; }, {"once", &word});
    }
    w = word.load(std::memory_order_acquire);
  }
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

_Unwind_Reason_Code fiberthread_once_personality(int, _Unwind_Action actions, _Unwind_Exception_Class, _Unwind_Exception*,
                                                 _Unwind_Context*) {
  if (actions & _UA_CLEANUP_PHASE) abandon(*frames);
  return _URC_CONTINUE_UNWIND;
}

FIBERTHREAD_EXPORT int pthread_once(pthread_once_t* once, void (*fn)()) {
  auto& word = *reinterpret_cast<std::atomic<uint32_t>*>(once);
  if (__builtin_expect(word.load(std::memory_order_acquire) != kDone, 0)) run_or_wait(word, fn);
  return 0;
}

FIBERTHREAD_ALIAS(__pthread_once, pthread_once);
