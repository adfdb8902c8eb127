// SPDX-License-Identifier: MIT
// Calls that no poller can end: they wait in the kernel, and the slot goes to others meanwhile.
#pragma once
#include "sched/arch/arch.h"
#include "sched/fiber.h"
#include "shim/cancel.h"
#include "shim/result.h"

namespace fiberthread {

// Is the caller a fiber whose slot others may want? Not in the child of a vfork, whose memory is its parent's.
bool has_slot_to_give();

// Makes a call that waits for a disk. No fiber's progress can be needed to end that (files that the process serves to itself aside,
// for which the wait for a turn is a short one), so there are not more kernel threads in such calls than serve a disk. The call is
// one that may unwind: the turn then stays for the next one.
bool take_disk_turn();  // false: without
void leave_disk();      // a thread that ends, or jumps out of the call, does it too
template <class Call>
long wait_for_disk(Call call) {
  if (!take_disk_turn()) return call();
  long r;
  {
    Blocking blocking(true, true);
    r = call();
  }
  leave_disk();
  return r;
}

// Reads and unbuffered writes of files wait for a disk, or not: mostly they find all in memory, and then pay for two looks at the
// cycle counter. Once one has taken its time, the next ones are expected to do so too.
bool files_are_slow();
void note_file_time(uint64_t begun);  // cycles()

// `plain` is libc's call, `raw` the kernel's. nowait() makes it without waiting, and answers -EAGAIN if it has not got all.
template <class Plain, class Raw, class Nowait>
long file_call(Plain plain, Raw raw, Nowait nowait) {
  uint64_t begun = cycles();
  if (__builtin_expect(!files_are_slow(), 1)) {
    long r = plain();
    note_file_time(begun);
    return r;
  }
  test_cancel();
  long r = nowait();
  if (r == -EAGAIN) r = wait_for_disk(raw);
  note_file_time(begun);
  return with_errno(r);
}

}  // namespace fiberthread
