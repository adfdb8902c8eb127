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
  Leave leave = Leave::Yield;      // of Ran
  bool waited = false;             // Ran: a wait ended with it
  uint32_t fiber = 0;
  uint32_t other = 0;              // Born: who made it. Stolen: the slot. HandedOver: the worker's track
  uint64_t at = 0, until = 0;      // cycles()
  const char* what = nullptr;      // of a park
  const void* object = nullptr;    // of a park; Born: where it starts
  char name[16] = {};
};

struct TraceBuffer;
TraceBuffer* trace_make_buffer(int tid, bool bound);  // of a worker; null without memory
uint32_t trace_track(const TraceBuffer* b);
void trace_put(TraceBuffer* b, const TraceRecord& r);  // null: that of all others. Busy, or in worker context

// What is known of one worker.
struct Watched {
  uint64_t began = 0;              // cycles() when its present fiber began to run
  TraceBuffer* buffer = nullptr;
  static constexpr uint32_t kReasons = 32;
  struct {
    const char* what;
    uint64_t count;
  } reasons[kReasons] = {};
};

}  // namespace fiberthread
