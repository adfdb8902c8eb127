// SPDX-License-Identifier: MIT
// What a handle of a fiber is, for the files that have the C interface (sync/include/fiberthread/fiberthread.h).
//
// A handle is the address of the fiber's record. Some bits of such an address are always the same, and they hold a part of the record's
// serial number. Records are type-stable, so what an old handle points to can be read for ever, and the serial tells whether the fiber is
// still there. If that has to stay so for a while, the caller looks under join.lock.
//
// Where threads are NPTL's, a fiber is a kernel thread with a record. libc's pthread_create makes the thread when the fiber is made, and
// the thread waits until it is started. Its record stays until the fiber is joined or, not joinable, has ended.
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

// Returns true if `h` is the handle of `f` and `f` has not been given back. Under join.lock this stays true as long as `f` cannot be given
// back. That is while it has not ended, and while it is not detached and no thread joins it. A caller that relies on this loads `done`,
// `joiner` or `detached` first. For a later fiber in the record these would be written after the serial.
inline bool is_still(FiberRecord* f, fiberthread_t h) {
  // A child of fork has the records of its parent's fibers, but no TCBs. A fiber that is being started becomes valid before it is no longer
  // fresh. So these are loaded in the other order.
  return f && (f->run.kernel || f->memory.tcb) &&
         (f->handle.fresh.load(std::memory_order_acquire) || f->join.valid.load(std::memory_order_acquire)) && handle_of(f) == h;
}

// Returns true if this interface made the fiber, on NPTL. All other records of kernel threads are main's or foreign threads'.
inline bool is_nptl(const FiberRecord* f) { return f->run.kernel && f->identity.start && !f->memory.block && !f->identity.is_main; }

// ---- on NPTL ----

// libc's calls may set errno on their way, so it is kept. A thread that has ended has no name any more (ENOENT).
template <class Call>
int on_nptl(Call call) {
  int saved = errno, e = call();
  errno = saved;
  return e;
}

// Makes a fiber that is a kernel thread and waits until it is started. Returns 0, or the error of pthread_create.
int make_nptl(const fiberthread_options_t& o, void* (*start)(void*), FiberRecord** made);

}  // namespace fiberthread
