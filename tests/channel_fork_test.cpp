// SPDX-License-Identifier: MIT
// Channels across fork: the child can destroy the channels that it inherits, and make and use new ones.
#include "fiberthread/channel.h"

#include "tests/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "fiberthread/fiber.h"
#include "sched/observe/report.h"
#include "sync/channel_core.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

void destroy(ChannelCore* c) {
  channel_release(c, true);
  channel_release(c, false);
}

// Runs in the child of a fork: destroys the inherited channels, then makes, uses and reports new ones. Ends the child with 0.
[[noreturn]] void child_uses_channels(std::initializer_list<ChannelCore*> inherited) {
  alarm(60);
  for (ChannelCore* c : inherited) destroy(c);
  for (size_t capacity : {0, 1, 4}) {
    auto c = Channel<int>::make(capacity);
    Fiber f = Fiber::spawn([&] {
      for (int i = 0; i < 20; i++) c.sender.send(i);
    });
    for (int i = 0; i < 20; i++)
      if (c.receiver.receive() != i) _exit(1);
    f.join();
    Output out(open("/dev/null", O_WRONLY | O_CLOEXEC));
    ChannelCore::tell_all(out);
  }
  _exit(0);
}

void child_ends_well(pid_t child) {
  int status;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0, "status %x", static_cast<unsigned>(status));
}

// fork() copies page by page while other threads run, so the child may inherit a torn list of channels. In the worst case a channel's
// page is missing.
Test(channel, a_child_of_fork_relies_on_no_other_channel) {
#ifndef __x86_64__
  return;  // for the reason of the next test
#endif
  for (bool kernel : {false, true}) {
    auto body = [] {
      ChannelCore* before = channel_make(0, sizeof(int), nullptr);
      ChannelCore* gone = channel_make(64, 1 << 20, nullptr);  // on pages of its own
      ChannelCore* after = channel_make(0, sizeof(int), nullptr);
      void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(gone) & ~uintptr_t{4095});
      cr_assert_eq(madvise(page, 4096, MADV_DONTFORK), 0);
      pid_t child = fork();
      if (child == 0) child_uses_channels({before, after});
      child_ends_well(child);
      for (ChannelCore* c : {before, gone, after}) destroy(c);
    };
    Threads t;
    kernel ? t.kernel(body) : t.fiber(body);
  }
}

Test(channel, children_of_forks_while_others_make_and_destroy_them, .timeout = 120) {
#ifndef __x86_64__
  return;  // the emulator's own locks stay locked in the child if other threads held them at the fork
#endif
  std::atomic<bool> over{false};
  auto come_and_go = [&] {
    ChannelCore* last = channel_make(0, sizeof(int), nullptr);
    while (!over) {
      ChannelCore* next = channel_make(0, sizeof(int), nullptr);
      destroy(last);
      last = next;
      give_way();
    }
    destroy(last);
  };
  Threads t;
  t.fiber(come_and_go);
  t.fiber(come_and_go);
  t.kernel(come_and_go);
  for (int round = 0; round < 20; round++) {
    ChannelCore* mine = channel_make(0, sizeof(int), nullptr);
    pid_t child = fork();
    if (child == 0) child_uses_channels({mine});
    child_ends_well(child);
    destroy(mine);
  }
  over = true;
}

}  // namespace
