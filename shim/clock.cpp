// Calls that name a thread to the kernel: timers that signal one, and prctl's names.
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/scheduling.h"

using namespace fiberthread;

// A timer for one fiber becomes one for the process: the kernel cannot follow a fiber. The main fiber takes such signals first.
FIBERTHREAD_EXPORT int timer_create(clockid_t clock, struct sigevent* event, timer_t* timer) noexcept {
  if (event && event->sigev_notify == SIGEV_THREAD_ID && sched_started() && fiber_of_tid(event->_sigev_un._tid)) {
    struct sigevent for_process = *event;
    for_process.sigev_notify = SIGEV_SIGNAL;
    return REAL(timer_create)(clock, &for_process, timer);
  }
  return REAL(timer_create)(clock, event, timer);
}

FIBERTHREAD_EXPORT int prctl(int option, ...) noexcept {
  va_list list;
  va_start(list, option);
  unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
  unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
  va_end(list);
  Fiber* me = sched_started() ? tls_current : nullptr;
  if (me && me->block && !me->kernel) {
    if (option == PR_SET_NAME) {
      strncpy(me->name, reinterpret_cast<const char*>(a), sizeof me->name - 1);
      me->name[sizeof me->name - 1] = 0;
      return 0;
    }
    if (option == PR_GET_NAME && *me->name) {
      memcpy(reinterpret_cast<char*>(a), me->name, sizeof me->name);
      return 0;
    }
  }
  return REAL(prctl)(option, a, b, c, d);
}
