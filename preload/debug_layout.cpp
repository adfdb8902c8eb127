// SPDX-License-Identifier: MIT
#include "preload/debug_layout.h"

#include <pthread.h>

#include "sched/arch/context.h"
#include FIBERTHREAD_CPU(registers.h)
#include "sched/memory/extents.h"
#include "sched/observe/stall.h"
#include "sched/worker.h"
#include "sync/parking_lot.h"

using namespace fiberthread;

#define ADDRESS(name, variable) \
  { \
    name, { .address = &(variable) } \
  }
#define NUMBER(name, n) \
  { \
    name, { .number = (n) } \
  }
#define OFFSET(name, type, field) \
  { \
    name, { .number = offsetof(type, field) } \
  }
#define SAVED(register, number) OFFSET("frame." #register, SavedFrame, register),

// Readers outside know these values and sizes.
static_assert(static_cast<int>(State::Created) == 0 && static_cast<int>(State::Queued) == 1 && static_cast<int>(State::Running) == 2 &&
              static_cast<int>(State::Parked) == 3 && static_cast<int>(State::Done) == 4);
static_assert(sizeof(FiberRecord::Identity::name) == 16 && sizeof(FiberRecord::Identity::id) == 4 && sizeof(bool) == 1);

// Each bool is a byte, and each counter of a worker or of the statistics has 8 bytes. Pointers have their usual size. Other sizes stand
// beside the entry.
constexpr DebugEntry fiberthread_debug_layout[] = {
    NUMBER("version", 1),
    // Addresses of two pointers: to the main fiber's record, which may have no block, and to the first worker. worker.next links the
    // workers.
    ADDRESS("main_fiber", main_fiber),
    ADDRESS("workers", worker_list),
    ADDRESS("recent_ns", recent_ns),         // CLOCK_MONOTONIC as of sysmon's last look
    ADDRESS("spawned", statistics.spawned),  // by kernel threads that are no workers, as the next two
    ADDRESS("ended", statistics.ended),
    ADDRESS("handovers", statistics.handovers),

    // Chunks of blocks: chunk_count (4 bytes) of them, each of chunk.size bytes. chunk.opened (4 bytes) of a chunk's extents are in use.
    // An extent has extent.records records and a mask of unborn ones (8 bytes). If the mask has all bits that stand for a block of the
    // chunk, no record of the extent was ever used. Else the records with a TCB were used.
    ADDRESS("chunks", chunks),
    ADDRESS("chunk_count", chunk_count),
    NUMBER("chunk.size", sizeof(Chunk)),
    OFFSET("chunk.records", Chunk, fibers),
    OFFSET("chunk.blocks", Chunk, blocks),  // 4 bytes
    OFFSET("chunk.opened", Chunk, opened),
    OFFSET("chunk.extents", Chunk, extents),
    NUMBER("extent.size", sizeof(Extent)),
    NUMBER("extent.records", kPerExtent),
    OFFSET("extent.unborn", Extent, unborn),

    NUMBER("record.size", sizeof(FiberRecord)),
    OFFSET("record.sp", FiberRecord, context.sp),    // the address of the saved frame, unless the fiber runs
    OFFSET("record.tp", FiberRecord, context.tp),    // the thread pointer, always
    OFFSET("record.state", FiberRecord, run.state),  // 4 bytes, State
    OFFSET("record.kernel", FiberRecord, run.kernel),
    OFFSET("record.id", FiberRecord, identity.id),      // 4 bytes
    OFFSET("record.name", FiberRecord, identity.name),  // 16 bytes, zero-terminated if shorter
    OFFSET("record.start", FiberRecord, identity.start),
    OFFSET("record.tcb", FiberRecord, memory.tcb),
    OFFSET("record.block", FiberRecord, memory.block),
    OFFSET("record.guard", FiberRecord, memory.guard),
    OFFSET("record.guard_size", FiberRecord, memory.guard_size),
    OFFSET("record.stack_low", FiberRecord, memory.stack_low),
    OFFSET("record.stack_high", FiberRecord, memory.stack_high),
    OFFSET("record.worker", FiberRecord, run.worker),  // while it runs
    OFFSET("record.bound", FiberRecord, run.bound),
    OFFSET("record.preempted", FiberRecord, turns.preempted),  // 4 bytes
    // Why the fiber waits, while it is parked.
    OFFSET("record.what", FiberRecord, wait.reason.what),
    OFFSET("record.object", FiberRecord, wait.reason.object),
    OFFSET("record.owner", FiberRecord, wait.reason.owner),
    OFFSET("record.file", FiberRecord, wait.reason.file),
    OFFSET("record.line", FiberRecord, wait.reason.line),
    OFFSET("record.since", FiberRecord, wait.since),  // 8 bytes, CLOCK_MONOTONIC

    // The frame at record.sp: registers by their usual names, and the address where the fiber goes on. The fiber's stack pointer will then
    // be record.sp + frame.size.
    OFFSET("frame.pc", SavedFrame, FIBERTHREAD_SAVED_PC),
    NUMBER("frame.size", sizeof(SavedFrame)),
    FIBERTHREAD_SAVED_REGISTERS(SAVED)

        OFFSET("worker.next", Worker, thread.all_next),
    OFFSET("worker.tid", Worker, thread.tid),                // 4 bytes
    OFFSET("worker.kernel_tid", Worker, thread.kernel_tid),  // 4 bytes; 0 once the thread has ended, unless it is the initial one
    OFFSET("worker.initial", Worker, thread.initial),
    OFFSET("worker.running", Worker, run.running),
    OFFSET("worker.idle", Worker, idle.listed),
    OFFSET("worker.bound", Worker, bond.fiber),
    OFFSET("worker.slot", Worker, run.slot),
    OFFSET("worker.spawned", Worker, counts.spawned),
    OFFSET("worker.ended", Worker, counts.ended),
    OFFSET("worker.switches", Worker, counts.switches),
    OFFSET("worker.parks", Worker, counts.parks),
    OFFSET("worker.steals", Worker, counts.steals),
    OFFSET("worker.preemptions", Worker, counts.preemptions),

    // The flight recorder. A ring is an array of worker.flight_mask + 1 (4 bytes) records of two words; worker.flight_next (4 bytes) records
    // were ever written, modulo 2^32. A record says that the worker began to run the fiber whose record stands in the first word above 16
    // bits, or went idle if that is 0; and in the second word above 32 bits why the fiber before went: 0 no fiber, 1 yield, 2 preempted,
    // 3 ended, else the low half of the address of what it waits for. The other bits are the time in cycles, 16 high ones and 32 low ones, or 0.
    // flight.clocks has three words: cycles and CLOCK_MONOTONIC in ns at the same time, and cycles in a microsecond.
    ADDRESS("flight.clocks", flight_zero),
    OFFSET("worker.flight_ring", Worker, flight.ring),
    OFFSET("worker.flight_mask", Worker, flight.mask),
    OFFSET("worker.flight_next", Worker, flight.next),

    // The stall watch's sample of one fiber: 8 bytes each, but for the stack.
    ADDRESS("sample", stall_sample),
    OFFSET("sample.fiber", StallSample, fiber),
    OFFSET("sample.name", StallSample, name),            // 16 bytes
    OFFSET("sample.main", StallSample, is_main),         // 1 byte
    OFFSET("sample.registers", StallSample, registers),  // 33, by DWARF's numbers
    OFFSET("sample.known", StallSample, known),          // a bit for each of them
    OFFSET("sample.pc", StallSample, pc),
    OFFSET("sample.stack_size", StallSample, size),
    OFFSET("sample.stack", StallSample, stack),  // its bytes from the stack pointer on

    // What record.object points to, by record.what. "mutex": a word that holds the owner's record (and bit 0). It is part of a
    // pthread_mutex_t if the tid beside it is the owner's. "cond": a Waiter, which has the address that the fiber waits on now, and whether
    // that is a mutex's. "rwlock…": if bit 0 of the object's first word is set, the object has its writer's tid.
    OFFSET("mutex.word", pthread_mutex_t, __data.__list),
    OFFSET("mutex.tid", pthread_mutex_t, __data.__owner),
    OFFSET("waiter.address", Waiter, address),
    OFFSET("waiter.requeued", Waiter, requeued),
    OFFSET("rwlock.tid", pthread_rwlock_t, __data.__cur_writer),
    {},
};
