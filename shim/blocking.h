// SPDX-License-Identifier: MIT
// Calls whose end no poller can report. They wait in the kernel, and their slot goes to other fibers meanwhile.
#pragma once
#include "sched/arch/arch.h"
#include "sched/fiber.h"
#include "shim/cancel.h"
#include "shim/result.h"

namespace fiberthread {

// Returns true if the caller is a fiber whose slot other fibers may want. False in the child of a vfork, whose memory is its parent's.
bool has_slot_to_give();

// Makes a call that waits for a disk. At most as many kernel threads are in such calls as serve a disk well. No other fiber has to run for
// such a call to end, so waiting for a turn cannot deadlock. (The exception is a file that the process serves to itself, and for its sake
// the wait for a turn is short.) The call may unwind its caller. The turn then stays with the thread for its next call.
bool take_disk_turn();  // false: no turn is needed
void leave_disk();      // also called by a thread that ends, or that jumps out of the call
template <class Call>
long wait_for_disk(Call call) {
  if (!take_disk_turn()) return call();
  long r;
  {
    Blocking blocking(Blocking::Sleep::Short);
    r = call();
  }
  leave_disk();
  return r;
}

// A read or an unbuffered write of a file waits for a disk only sometimes. Mostly it finds everything in memory. So only the first of
// every eight of a thread's calls pays for two looks at the cycle counter. Once such a call has been slow, the next ones of all threads are
// expected to be slow too, and all are timed.
constexpr uint8_t kTimedFileCall = 8;
extern thread_local constinit uint8_t tls_file_calls __attribute__((tls_model("initial-exec")));
bool files_are_slow();
void note_file_time(uint64_t begun);  // `begun`: cycles() at the begin of the call

// `plain` is libc's call, `raw` is the kernel's. nowait() makes the call without waiting, and returns -EAGAIN if it did not get everything.
template <class Plain, class Raw, class Nowait>
long file_call(Plain plain, Raw raw, Nowait nowait) {
  bool slow = files_are_slow();
  if (__builtin_expect(!slow && tls_file_calls++ % kTimedFileCall != 0, 1)) return plain();
  uint64_t begun = cycles();
  if (__builtin_expect(!slow, 1)) {
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
