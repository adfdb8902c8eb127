#include "shim/fork.h"

#include <pthread.h>
#include <unistd.h>

#include "sched/stack.h"
#include "sched/tcb.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/ids.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

// Between prepare and parent or child the fiber is Busy: it stays on its kernel thread, and nothing of ours is locked that
// the child needs but by it. All other locks of ours are made anew in the child.
void prepare() {
  self();
  tls_busy = tls_busy + 1;
  block_lock_for_fork();
  tcb_lock_for_fork();
}

void in_parent() {
  tcb_unlock_after_fork();
  block_unlock_after_fork(false, nullptr);
  { Busy leave; tls_busy = tls_busy - 1; }
}

void in_child() {
  Fiber* me = tls_current;
  tcb_unlock_after_fork();
  bool was_fiber = !me->kernel;
  uint64_t mask = me->sigmask;
  parking_lot_reset_after_fork();
  signal_after_fork_child();
  ids_reset_after_fork();
  thread_reset_after_fork();
  sched_after_fork_child();
  block_unlock_after_fork(true, me);
  me->id = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  me->sigmask = mask;
  if (was_fiber) sched_apply_mask();
  tls_busy = tls_busy - 1;
}

}  // namespace

long fork_by(long nr, long a, long b, long c, long d, long e) {
  prepare();
  long r = raw_syscall(nr, a, b, c, d, e);
  if (r == 0) in_child();
  else in_parent();
  return r;
}

void fork_init() { pthread_atfork(prepare, in_parent, in_child); }

}  // namespace fiberthread

using namespace fiberthread;

// Without the handlers of pthread_atfork, ours are needed all the same.
FIBERTHREAD_EXPORT pid_t _Fork() noexcept {
  prepare();
  pid_t pid = REAL(_Fork)();
  if (pid == 0) in_child();
  else in_parent();
  return pid;
}
