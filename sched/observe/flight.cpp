// SPDX-License-Identifier: MIT
#include "sched/observe/flight.h"

#include <sys/mman.h>

namespace fiberthread {

FlightClocks flight_zero;

namespace {
uint64_t bytes = 256 << 10;
constexpr uint64_t kOfBound = 16 << 10;  // threads with kernel threads of their own may be many
}  // namespace

void flight_bytes(uint64_t n) { bytes = n; }

void flight_start(Worker* w) {
  if (w->flight.ring || !bytes) return;
  uint64_t n = w->bond.fiber && bytes > kOfBound ? kOfBound : bytes, size = sizeof(FlightRecord);
  while (size * 2 <= n) size *= 2;
  char* mem = map_memory(size, PROT_READ | PROT_WRITE);
  if (!mem) return;
  w->flight.mask = static_cast<uint32_t>(size / sizeof(FlightRecord) - 1);
  w->flight.ring = reinterpret_cast<FlightRecord*>(mem);
}

void flight_clocks() { flight_zero = {cycles(), now_ns(), cycles_per_us}; }

}  // namespace fiberthread
