// SPDX-License-Identifier: MIT
// The trace's records, and the file in which they lie while the program runs: FILE.raw, of chunks.
//
// A worker has one chunk, mapped from the file, and writes fixed records into it without a lock, text or system call; what it has
// written stays in the file however the process ends. A full chunk is copied to the file's end and begun anew. At the end of the
// process, or by `fiberthread trace` after it, trace_text.h makes FILE of all that. Sysmon and threads that are no workers share one
// chunk under a lock, which is nested in no other and has none inside.
#pragma once
#include "sched/spinlock.h"
#include "sched/observe/observe.h"

namespace fiberthread {

// What a slot holds. The first few are runs of a fiber, which began when the run before on that track ended, or at what a Began before
// it says; they tell how it left, what it then waits for, and what it had waited for before. Those that are Born were made by whom the
// Makes before them in the chunk names; one that has the time of the record before it came somewhat later.
enum class TraceKind : uint8_t { Park, Yield, Preempt, Done, GoesOn, Began, Time, Born, Makes, Stolen, HandedOver, Blocked, Lives };

constexpr uint32_t kTraceNamed = uint32_t{1} << 31;  // ids are less
constexpr uint32_t kTraceWords = 64, kTraceWord = 32;

struct TraceSlot {
  uint32_t time;   // of the end of what it tells, in cycles: the lowest bits
  uint32_t fiber;  // and kTraceNamed: a slot follows that is its name
  uint64_t rest;   // object or number (48 bits), word waited for (6), word waited for before (6), kind (4)
};
// Behind these kinds, before a name, a slot with one number more: cycles(), of the beginning.
constexpr bool trace_has_more(TraceKind k) { return k == TraceKind::Began || k == TraceKind::Time || k == TraceKind::Blocked; }

constexpr size_t kTraceChunk = 64 * 1024;  // what is copied costs less in large pieces

struct TraceChunk {
  static constexpr uint32_t kMagic = 0x46545243;
  static constexpr uint32_t kSlots = kTraceChunk / sizeof(TraceSlot) - 4;
  static constexpr uint32_t kMost = 8;  // slots of what is written with one look for room
  uint32_t magic;
  uint32_t track;
  uint32_t tid;
  uint32_t bound;
  std::atomic<uint32_t> n;
  uint64_t base;               // cycles() that the first record's time follows
  uint64_t left;               // when the run before ended
  uint64_t home;               // where in the file it was mapped from; copies are elsewhere
  std::atomic<uint64_t> copy;  // where it is being copied to. If that is complete, what is here is there too
  TraceSlot slots[kSlots];
  std::atomic<uint64_t> end;  // = base, when all before is written
};
static_assert(sizeof(TraceChunk) == kTraceChunk);

// The file's first chunk.
struct TraceHead {
  static constexpr uint32_t kMagic = 0x46545248;
  uint32_t magic;
  uint32_t pid;
  uint32_t main;
  std::atomic<uint64_t> scale;    // ns for 2^32 cycles, the best known
  uint64_t zero_cycles, zero_ns;  // the start, on both clocks
  std::atomic<uint64_t> ended;    // 0, or cycles(): what comes later is not shown
  char program[16];
  char words[kTraceWords][kTraceWord];  // what fibers wait for; 0 is nothing
};
static_assert(sizeof(TraceHead) <= kTraceChunk);

// Who writes into a chunk.
struct TraceBuffer {
  TraceChunk* chunk = nullptr;
  uint64_t last = 0;                // the time of its last record
  uint64_t left = 0;                // when its last run ended
  std::atomic<uint32_t> in_use{0};  // the chunk is being copied
  uint32_t maker = 0;               // of the last Makes
  uint32_t births = 0;              // since one had its own time, which was at
  uint64_t births_recent = 0;       // that recent_ns
  struct {
    const char* what;
    uint32_t word;
  } words[32] = {};
};
bool trace_make_buffer(TraceBuffer& b, uint32_t tid, bool bound);  // of a worker; false without memory
// True: there is room for kMost slots, of which the first may have the time `now`.
[[gnu::cold]] bool trace_make_room(TraceBuffer& b, uint64_t now);
[[gnu::cold]] uint32_t trace_new_word(TraceBuffer& b, const char* what);

inline bool trace_room(TraceBuffer& b, uint64_t now) {
  constexpr uint64_t kHalf = uint64_t{1} << 31;  // times of others' records may come a little late
  return __builtin_expect(
             b.chunk->n.load(std::memory_order_relaxed) <= TraceChunk::kSlots - TraceChunk::kMost && now - b.last + kHalf < 2 * kHalf, 1) ||
         trace_make_room(b, now);
}

inline uint32_t trace_word(TraceBuffer& b, const char* what) {
  auto p = reinterpret_cast<uintptr_t>(what);
  auto& known = b.words[(p ^ p >> 5) % (sizeof b.words / sizeof *b.words)];
  return __builtin_expect(known.what == what, 1) ? known.word : trace_new_word(b, what);
}

constexpr uint64_t trace_rest(TraceKind kind, uint64_t number = 0, uint32_t word = 0, uint32_t before = 0) {
  return number << 16 | word << 10 | before << 4 | static_cast<uint32_t>(kind);
}

// One record. trace_room() was true. With `named`, the fiber's name goes with it.
inline void trace_put(TraceBuffer& b, const FiberRecord* f, bool named, uint64_t at, uint64_t rest, uint64_t more = 0) {
  TraceChunk* c = b.chunk;
  uint32_t n = c->n.load(std::memory_order_relaxed);
  TraceSlot* s = c->slots + n++;
  named = named && f && *f->identity.name;
  *s++ = {static_cast<uint32_t>(at), (f ? f->identity.id : 0) | (named ? kTraceNamed : 0), rest};
  if (trace_has_more(static_cast<TraceKind>(rest & 15))) {
    *s++ = {0, 0, more};
    n++;
  }
  if (named) {
    __builtin_memcpy(s, f->identity.name, sizeof *s);
    n++;
  }
  b.last = at;
  c->n.store(n, std::memory_order_release);  // who reads the file later sees whole records
}

// Of all who have no buffer. Busy, or in worker context.
struct TraceOthers {
  TraceOthers();
  ~TraceOthers();
  TraceOthers(const TraceOthers&) = delete;
  TraceBuffer& buffer;
};

// What is known of one worker.
struct ObservedWorker {
  // cycles() when its present fiber began to run; or a little before, when the fiber before it left: one look at the clock is for
  // both. The fiber's traced_at may be later, if it was still running elsewhere then.
  uint64_t began = 0;
  TraceBuffer trace;
  static constexpr uint32_t kReasons = 32;
  struct {
    const char* what;
    uint64_t count;
  } reasons[kReasons] = {};
};

extern uint64_t cycles_per_us;
// When f, which runs there now, began. Later than when it left another worker, by a ns or two: else its wait would end as it begins.
inline uint64_t ran_since(const ObservedWorker& of, const FiberRecord* f, uint64_t now) {
  uint64_t began = __builtin_expect(of.began > f->traced.left_at, 1) ? of.began : f->traced.left_at + cycles_per_us / 1000 + 1;
  return began && began < now ? began : now;
}

}  // namespace fiberthread
