// SPDX-License-Identifier: MIT
// What a handle of a fiber is, for the files that have the C interface (sync/include/fiberthread/fiberthread.h).
//
// A handle is the address of the fiber's record, whose bits that are always the same have part of the record's serial number in them.
// Records are type-stable, so what an old handle points to can be looked at for ever, and the serial tells whether the fiber is
// still there. Where that has to stay so while something is done, it is looked at under join.lock.
//
// Where threads are NPTL's, a fiber is a kernel thread with a record, made by libc's pthread_create when the fiber is made: it
// waits until it is started. Its record stays until it is joined or, not joinable, has ended.
#pragma once
#include <errno.h>

#include "fiberthread/fiberthread.h"
#include "sched/scheduler.h"

namespace fiberthread {

constexpr uint64_t kHandleAddress = 0x0000'ffff'ffff'ffc0;
static_assert(alignof(FiberRecord) == 64);

inline fiberthread_t handle_of(const FiberRecord* f) {
  uint64_t serial = f->identity.serial;
  return reinterpret_cast<fiberthread_t>(reinterpret_cast<uint64_t>(f) | (serial & 63) | serial >> 6 << 48);
}

inline FiberRecord* record_of(fiberthread_t h) { return reinterpret_cast<FiberRecord*>(reinterpret_cast<uint64_t>(h) & kHandleAddress); }

// Is `h` f's, and has it not been given back? Under join_lock the answer holds as long as f cannot be given back: while it has not
// ended, and while nobody joins it and it is not detached. Who concludes that looks at `done`, `joiner` or `detached` first: of a
// later fiber they would be written after the serial.
inline bool is_still(FiberRecord* f, fiberthread_t h) {
  // A child of fork has the records of its parent's fibers, but no TCBs. One that is being started becomes valid before it is no longer
  // fresh, so they are looked at the other way round.
  return f && (f->run.kernel || f->memory.tcb) &&
         (f->handle.fresh.load(std::memory_order_acquire) || f->join.valid.load(std::memory_order_acquire)) && handle_of(f) == h;
}

// Made by this interface, on NPTL. All other records of kernel threads are main's or foreign threads'.
inline bool is_nptl(const FiberRecord* f) { return f->run.kernel && f->identity.start && !f->memory.block && !f->identity.is_main; }

// ---- on NPTL ----

// libc's calls may set errno on their way. A thread that has ended has no name any more (ENOENT).
template <class Call>
int on_nptl(Call call) {
  int saved = errno, e = call();
  errno = saved;
  return e;
}

// A fiber that is a kernel thread, and that waits until it is started. 0, or what pthread_create says.
int make_nptl(const fiberthread_options_t& o, void* (*start)(void*), FiberRecord** made);

}  // namespace fiberthread
