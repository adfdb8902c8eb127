// The trace's records, between watch.cpp, which makes them, and trace.cpp, which writes them.
//
// A worker fills a buffer of its own, without a lock, and writes it as text when it is full, or has not been written for a while. At
// the end who ends the process does that for all: then `over` is set, and a membarrier proves that each worker either sees it or is
// seen to be in its buffer. Sysmon and threads that are no workers share one buffer under a lock, which is nested in no other and
// has none inside.
#pragma once
#include "sched/watch.h"

namespace fiberthread {

struct TraceRecord {
  enum Kind : uint8_t { Born, Ran, Stolen, HandedOver, Blocked } kind;
  Leave leave;                     // of Ran
  uint32_t fiber;
  union {
    const char* waited;            // Ran: for what, until then; or null
    uint64_t other;                // Born: who made it. Stolen: the slot. HandedOver: the worker's track
  };
  uint64_t at, until;              // cycles(); `until` of Ran and Blocked
  const char* what;                // of a park
  const void* object;              // of a park; Born: where it starts
  char name[16];
};

struct TraceBuffer {
  static constexpr uint32_t kRecords = 4096;
  static constexpr size_t kText = 64 * 1024, kPlace = 48;
  std::atomic<uint32_t> in_use{0};  // its owner is in it
  uint32_t track = 0;
  uint32_t n = 0;
  int tid = 0;
  bool bound = false, named = false;
  uint8_t place_size = 0;
  char place[kPlace];               // "pid" and "tid" of its events, as text
  uint64_t written_at = 0;          // cycles()
  TraceBuffer* next = nullptr;
  TraceRecord records[kRecords];
  char text[kText];
};

TraceBuffer* trace_make_buffer(int tid, bool bound);  // of a worker; null without memory

// One event, on `b` or, if that is null, in the buffer of all others. It is there when this ends; until then, its fields are to be
// filled in: `at`, and those that its kind has. Busy, or in worker context.
class TraceEvent {
 public:
  TraceEvent(TraceBuffer* b, TraceRecord::Kind kind, const FiberRecord* f);
  ~TraceEvent();
  TraceEvent(const TraceEvent&) = delete;
  TraceRecord* operator->() { return &r_; }

 private:
  TraceBuffer* b_;
  bool shared_;
  TraceRecord& r_;
};

// What is known of one worker.
struct Watched {
  // cycles() when its present fiber began to run; or a little before, when the fiber before it left: one look at the clock is for
  // both. The fiber's traced_at may be later, if it was still running elsewhere then.
  uint64_t began = 0;
  TraceBuffer* buffer = nullptr;
  static constexpr uint32_t kReasons = 32;
  struct {
    const char* what;
    uint64_t count;
  } reasons[kReasons] = {};
};
uint64_t ran_since(const Watched& of, const FiberRecord* f, uint64_t now);  // f, which runs there now

}  // namespace fiberthread
