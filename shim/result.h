// SPDX-License-Identifier: MIT
// Results of system calls: the kernel's are negative errno values for errors, those of libc's names -1 and errno.
#pragma once
#include <errno.h>

namespace fiberthread {

// A result of the kernel's, as a name returns it.
inline long with_errno(long r) {
  if (r >= 0) return r;
  errno = static_cast<int>(-r);
  return -1;
}

// A result of a name, as the kernel returns it. Some names return other negative values (fcntl's F_GETOWN).
inline long kernel_result(long r) { return r == -1 ? -errno : r; }

}  // namespace fiberthread
