// SPDX-License-Identifier: MIT
// System calls by number: signals, with the bookkeeping of the names.
#include <sys/signalfd.h>

#include "shim/signal.h"
#include "shim/signal_parts.h"
#include "shim/syscall_parts.h"

namespace fiberthread::calls {

long tkill(int tid, int sig) { return -thread_kill_tid(-1, tid, sig, nullptr); }

long tgkill(int tgid, int tid, int sig) { return tgid <= 0 ? -EINVAL : -thread_kill_tid(tgid, tid, sig, nullptr); }

long rt_tgsigqueueinfo(int tgid, int tid, int sig, const siginfo_t* user_info) {
  siginfo_t info;
  if (!copy_user(&info, user_info)) return -EFAULT;
  return -thread_kill_tid(tgid, tid, sig, &info);
}

// libc's two signals are refused here too, because one of them preempts.
long rt_sigaction(int sig, const kernel_handler* act, kernel_handler* old, size_t size) {
  if (size != 8 || is_libcs_signal(sig)) return -EINVAL;
  kernel_handler k;
  struct sigaction wanted, before;
  if (act) {
    if (!copy_user(&k, act)) return -EFAULT;
    memset(&wanted, 0, sizeof wanted);
    wanted.sa_sigaction = k.handler;
    wanted.sa_flags = static_cast<int>(k.flags);
    memcpy(&wanted.sa_mask, &k.mask, sizeof k.mask);
  }
  if (sigaction(sig, act ? &wanted : nullptr, &before) != 0) return -errno;
  if (!old) return 0;
  memset(&k, 0, sizeof k);
  k.handler = before.sa_sigaction;
  k.flags = static_cast<unsigned>(before.sa_flags);
  memcpy(&k.mask, &before.sa_mask, sizeof k.mask);
  return copy_user(old, &k) ? 0 : -EFAULT;
}

long rt_sigprocmask(int how, const uint64_t* set, uint64_t* old, size_t size) {
  if (size != 8) return -EINVAL;
  uint64_t wanted, before;
  if (set && !copy_user(&wanted, set)) return -EFAULT;
  if (int e = signal_mask_raw(how, set ? &wanted : nullptr, &before)) return -e;
  return !old || copy_user(old, &before) ? 0 : -EFAULT;
}

long rt_sigpending(uint64_t* user_set, size_t size) {
  if (size != 8) return program_syscall(SYS_rt_sigpending, arg(user_set), static_cast<long>(size));
  uint64_t set = signal_pending_set(self());
  return copy_user(user_set, &set) ? 0 : -EFAULT;
}

long rt_sigsuspend(const uint64_t* mask, size_t size) {
  sigset_t set;
  if (long error = copy_mask(mask, size, set)) return error;
  return not_cancelled([&] { return sigsuspend(&set); });
}

long rt_sigtimedwait(const uint64_t* user_set, siginfo_t* user_info, const timespec* timeout, size_t size) {
  sigset_t set;
  timespec t;
  siginfo_t info;
  if (long error = copy_mask(user_set, size, set)) return error;
  if (timeout && !copy_user(&t, timeout)) return -EFAULT;
  long r = not_cancelled([&] { return sigtimedwait(&set, &info, timeout ? &t : nullptr); });
  return r > 0 && user_info && !copy_user(user_info, &info) ? -EFAULT : r;
}

long signalfd4(int fd, const uint64_t* mask, size_t size, int flags) {
  sigset_t set;
  if (long error = copy_mask(mask, size, set)) return error;
  return kernel_result(::signalfd(fd, &set, flags));
}

long signalfd(int fd, const uint64_t* mask, size_t size) { return signalfd4(fd, mask, size, 0); }

}  // namespace fiberthread::calls
