// SPDX-License-Identifier: MIT
// Signals to the process that no thread takes: they wait in the process's queue, and go to a thread with the next one of their number.
#include <csignal>
#include <cstring>

#include "shim/signal_parts.h"
#include "tests/test.h"

#include "tests/fibers.h"

using namespace fiberthread;
using namespace fiberthread::signals;

// The next one is dropped, as a signal of that number is pending. But the thread must be told, because it has not heard of the first.
Test(signal_queue, a_thread_is_told_of_what_came_before) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  cr_assert_eq(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  fibers::join(fibers::spawn([](void* p) { return p; }));  // the scheduler has started
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = SIGUSR1;
  info.si_code = SI_USER;
  FiberRecord *nobody = nullptr, *me = self();
  cr_assert(record(nobody, info, SentTo::Process));
  cr_assert(!record(nobody, info, SentTo::Process));
  cr_assert(record(me, info, SentTo::Process));
  cr_assert(!record(me, info, SentTo::Process));
  cr_assert(take_any(me, bit(SIGUSR1), &info));
  cr_assert(!take_any(me, bit(SIGUSR1), &info));
}
