// SPDX-License-Identifier: MIT
#include "shim/exec.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/export.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal_parts.h"

namespace fiberthread {
namespace {

class Executing {
 public:
  Executing() : me_(signals::ours()) {
    if (!me_) return;
    if (!tls_busy) signals::run_unblocked(me_);  // what would have come before
    tls_busy = tls_busy + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    sched_apply_mask();
    signals::pending_in_kernel(me_);  // takes out pokes that came late
    preempt_begin_exec(me_->run.worker);
    moved_ = signals::all_to_kernel(me_, static_cast<int>(raw_syscall(SYS_gettid)));
  }
  ~Executing() {  // the call has failed
    if (!me_) return;
    int error = errno;
    preempt_end_exec(me_->run.worker);
    if (moved_) signal_adopt_pending(me_);
    {
      Busy leave;
      tls_busy = tls_busy - 1;
    }
    errno = error;
  }
  Executing(const Executing&) = delete;

 private:
  FiberRecord* me_;  // null: a kernel thread, or the child of a fork that has made no thread
  bool moved_ = false;
};

size_t count_of(va_list list) {
  va_list again;
  va_copy(again, list);
  size_t n = 1;
  while (va_arg(again, char*)) n++;
  va_end(again);
  return n;
}

// Calls `call` with the arguments as an array, and what follows them. They may be too many for the stack, as they are for libc's.
template <class Call>
int with_array(const char* first, va_list list, Call call) {
  size_t n = first ? count_of(list) : 0;
  auto** arguments = static_cast<char**>(__builtin_alloca((n + 1) * sizeof(char*)));
  arguments[0] = const_cast<char*>(first);
  for (size_t i = 1; i <= n; i++) arguments[i] = va_arg(list, char*);
  return call(arguments, list);
}

}  // namespace

void exec_init() {
  (void)REAL(fexecve);
  (void)REAL(execvpe);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int execve(const char* path, char* const arguments[], char* const environment[]) noexcept {
  Executing executing;
  return static_cast<int>(with_errno(program_syscall(SYS_execve, arg(path), arg(arguments), arg(environment))));
}

FIBERTHREAD_EXPORT int execveat(int fd, const char* path, char* const arguments[], char* const environment[], int flags) noexcept {
  Executing executing;
  return static_cast<int>(with_errno(program_syscall(SYS_execveat, fd, arg(path), arg(arguments), arg(environment), flags)));
}

FIBERTHREAD_EXPORT int fexecve(int fd, char* const arguments[], char* const environment[]) noexcept {
  Executing executing;
  return REAL(fexecve)(fd, arguments, environment);
}

FIBERTHREAD_EXPORT int execv(const char* path, char* const arguments[]) noexcept { return execve(path, arguments, environ); }

FIBERTHREAD_EXPORT int execvp(const char* file, char* const arguments[]) noexcept { return execvpe(file, arguments, environ); }

FIBERTHREAD_EXPORT int execvpe(const char* file, char* const arguments[], char* const environment[]) noexcept {
  Executing executing;
  return REAL(execvpe)(file, arguments, environment);
}

FIBERTHREAD_EXPORT int execl(const char* path, const char* first, ...) noexcept {
  va_list list;
  va_start(list, first);
  int r = with_array(first, list, [&](char** arguments, va_list) { return execv(path, arguments); });
  va_end(list);
  return r;
}

FIBERTHREAD_EXPORT int execlp(const char* file, const char* first, ...) noexcept {
  va_list list;
  va_start(list, first);
  int r = with_array(first, list, [&](char** arguments, va_list) { return execvp(file, arguments); });
  va_end(list);
  return r;
}

FIBERTHREAD_EXPORT int execle(const char* path, const char* first, ...) noexcept {
  va_list list;
  va_start(list, first);
  int r = with_array(first, list, [&](char** arguments, va_list rest) { return execve(path, arguments, va_arg(rest, char**)); });
  va_end(list);
  return r;
}
