// SPDX-License-Identifier: MIT
// The trace's records, and the file of chunks that has them while the program runs: FILE.raw.
//
// A worker has one chunk, mapped from the file. It writes records of fixed form into the chunk without a lock, text or system call. The
// records stay in the file however the process ends. A full chunk is copied to the file's end and begun anew. trace_text.h makes FILE of
// all chunks, at the end of the process or in `fiberthread trace` afterwards. Sysmon and threads that are no workers share one chunk under
// a lock, which is nested in no other lock and has none inside.
#pragma once
#include "sched/spinlock.h"
#include "sched/observe/observe.h"

namespace fiberthread {

// The kind of a record. Park to GoesOn are runs of a fiber. A run began when the run before it on that track ended, or at the time in a
// Began record before it. It tells how the run ended, what the fiber waits for then, and what it had waited for before. The fiber in a Born
// record was made by the fiber in the last Makes record of the chunk. A birth with the time of the record before it came somewhat later.
enum class TraceKind : uint8_t { Park, Yield, Preempt, Done, GoesOn, Began, Time, Born, Makes, Stolen, HandedOver, Blocked, Lives };

constexpr uint32_t kTraceNamed = uint32_t{1} << 31;  // ids are smaller
constexpr uint32_t kTraceWords = 64, kTraceWord = 32;

struct TraceEntry {
  uint32_t time;   // when the event ended: the lowest bits of cycles()
  uint32_t fiber;  // its id; with kTraceNamed, a slot with its name follows
  uint64_t rest;   // object or number (48 bits), word waited for (6), word waited for before (6), kind (4)
};
// Returns true for kinds with one more slot, before that of a name. Its `rest` has all bits of cycles(): when the event began, or (Time)
// now.
constexpr bool trace_has_more(TraceKind k) { return k == TraceKind::Began || k == TraceKind::Time || k == TraceKind::Blocked; }

constexpr size_t kTraceChunk = 64 * 1024;  // large, because copies in large pieces cost less

struct TraceChunk {
  static constexpr uint32_t kMagic = 0x46545243;
  static constexpr uint32_t kEntries = kTraceChunk / sizeof(TraceEntry) - 4;
  static constexpr uint32_t kMost = 8;  // most slots that are written after one trace_room()
  uint32_t magic;
  uint32_t track;
  uint32_t tid;
  uint32_t bound;
  std::atomic<uint32_t> n;
  uint64_t base;               // cycles() that the first record's time follows
  uint64_t left;               // when the run before the first record ended
  uint64_t home;               // its own place in the file; a copy has the same `home` and stands elsewhere
  std::atomic<uint64_t> copy;  // the place of its copy. A complete copy has all that the chunk has
  TraceEntry entries[kEntries];
  std::atomic<uint64_t> end;  // equal to `base` in a complete copy
};
static_assert(sizeof(TraceChunk) == kTraceChunk);

// The file's first chunk.
struct TraceHead {
  static constexpr uint32_t kMagic = 0x46545248;
  uint32_t magic;
  uint32_t pid;
  uint32_t main;
  std::atomic<uint64_t> scale;    // ns for 2^32 cycles, as exact as is known
  uint64_t zero_cycles, zero_ns;  // the start, on both clocks
  std::atomic<uint64_t> ended;    // 0, or cycles() at the end; later records are not shown
  char program[16];
  char words[kTraceWords][kTraceWord];  // what fibers wait for; number 0 means nothing
};
static_assert(sizeof(TraceHead) <= kTraceChunk);

// A writer of a chunk: one worker, or all other threads together.
struct TraceBuffer {
  TraceChunk* chunk = nullptr;
  uint64_t last = 0;                // the time of its last record
  uint64_t left = 0;                // when its last run ended
  std::atomic<uint32_t> in_use{0};  // the chunk is being copied
  uint32_t maker = 0;               // the fiber of the last Makes record
  uint32_t births = 0;              // births since one had a time of its own
  uint64_t births_recent = 0;       // recent_ns at that birth
  struct {
    const char* what;
    uint32_t word;
  } words[32] = {};
};
// Gives a worker's buffer its chunk. Returns false without memory or room in the file, or if there is no trace.
bool trace_make_buffer(TraceBuffer& b, uint32_t tid, bool bound);
// Makes room for kMost slots, of which the first may have the time `now`. Returns false if the trace has ended.
[[gnu::cold]] bool trace_make_room(TraceBuffer& b, uint64_t now);
[[gnu::cold]] uint32_t trace_new_word(TraceBuffer& b, const char* what);

inline bool trace_room(TraceBuffer& b, uint64_t now) {
  constexpr uint64_t kHalf = uint64_t{1} << 31;  // in the shared chunk, a time may be a little before the last one
  return __builtin_expect(
             b.chunk->n.load(std::memory_order_relaxed) <= TraceChunk::kEntries - TraceChunk::kMost && now - b.last + kHalf < 2 * kHalf,
             1) ||
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

// Writes one record, after trace_room() has returned true. The record has the fiber's number. If the fiber is to be Named and has a name, a
// slot with the name follows.
enum class TraceFiber { Numbered, Named };
inline void trace_put(TraceBuffer& b, const FiberRecord* f, TraceFiber as, uint64_t at, uint64_t rest, uint64_t more = 0) {
  TraceChunk* c = b.chunk;
  uint32_t n = c->n.load(std::memory_order_relaxed);
  TraceEntry* s = c->entries + n++;
  bool named = as == TraceFiber::Named && f && *f->identity.name;
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
  c->n.store(n, std::memory_order_release);  // a reader of the file sees whole records only
}

// The buffer of all threads that have none, with its lock. Busy, or in worker context.
struct TraceOthers {
  TraceOthers();
  ~TraceOthers();
  TraceOthers(const TraceOthers&) = delete;
  TraceBuffer& buffer;
};

// What observing keeps for one worker.
struct ObservedWorker {
  // cycles() when its present fiber began to run, or a little before, when the fiber before it left: one look at the clock serves for both.
  // FiberRecord::traced.left_at may be later, if the fiber was still running elsewhere then.
  uint64_t began = 0;
  TraceBuffer trace;
  static constexpr uint32_t kReasons = 32;
  struct {
    const char* what;
    uint64_t count;
  } reasons[kReasons] = {};
  uint64_t delays[kDelays] = {}, delays_ns = 0;
  // For names.h: what its kernel thread is called, if `named`, unless another thread has renamed it since it saw that count.
  char name[16] = {};
  bool named = false;
  uint32_t renamed = 0;
};
ObservedWorker* observed_worker(Worker* w);  // makes it at the first call; null without memory. Called by w

extern uint64_t cycles_per_us;
// Returns when f, which runs on that worker now, began. That is at least a nanosecond or two after it left another worker. Otherwise its
// wait would end at the moment when it begins.
inline uint64_t ran_since(const ObservedWorker& of, const FiberRecord* f, uint64_t now) {
  uint64_t began = __builtin_expect(of.began > f->traced.left_at, 1) ? of.began : f->traced.left_at + cycles_per_us / 1000 + 1;
  return began && began < now ? began : now;
}

}  // namespace fiberthread
