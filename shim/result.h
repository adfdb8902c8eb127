// SPDX-License-Identifier: MIT
// Results of system calls. The kernel returns negative errno values for errors. libc's names return -1 and set errno.
#pragma once
#include <errno.h>

namespace fiberthread {

// Turns a result of the kernel into what a name of libc returns.
inline long with_errno(long r) {
  if (r >= 0) return r;
  errno = static_cast<int>(-r);
  return -1;
}

// Turns the result of a name of libc into what the kernel returns. Some names return other negative values (fcntl's F_GETOWN).
inline long kernel_result(long r) { return r == -1 ? -errno : r; }

}  // namespace fiberthread
