// SPDX-License-Identifier: MIT
// The registry of the library's own descriptors.
// alone: sched
#include "sched/own_descriptors.h"

#include "tests/test.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

using namespace fiberthread;

namespace {

// Programs that close all descriptors they do not know would close one that is not in the registry.
Test(own_descriptors, each_is_known_or_refused) {
  static std::atomic<int> own[40];
  int refused = 0;
  for (auto& o : own) {
    o = -1;
    int fd = eventfd(0, EFD_CLOEXEC);
    cr_assert(fd >= 0);
    own_fd_take(fd, o);
    if (o != fd) cr_assert_eq(fcntl(fd, F_GETFD), -1, "it is moved, or closed");
    if (o < 0) refused++;
    else cr_assert(is_own_fd(o));
  }
  cr_assert(refused > 0 && refused < 40, "%d refused", refused);
  // A variable that has a place keeps it.
  own_fd_close(own[0]);
  cr_assert_eq(own[0], -1);
  own_fd_take(eventfd(0, EFD_CLOEXEC), own[0]);
  cr_assert(is_own_fd(own[0]));
}

}  // namespace
