// SPDX-License-Identifier: MIT
#include "sched/observe/flight.h"

namespace fiberthread {

FlightClocks flight_zero;

namespace {
uint32_t records = (256 << 10) / sizeof(FlightRecord);  // of a ring: a power of two, of a page at least; 0: no recorder
constexpr uint32_t kPage = 4096 / sizeof(FlightRecord);
constexpr uint32_t kOfBound = 1024;  // threads with kernel threads of their own may be many
}  // namespace

void flight_bytes(uint64_t n) {
  records = n ? kPage : 0;
  while (records && uint64_t{records} * 2 * sizeof(FlightRecord) <= n) records *= 2;
}

size_t flight_room() { return size_t{records} * sizeof(FlightRecord); }

void flight_start(Worker* w) { w->flight.mask = (w->bond.fiber && records > kOfBound ? kOfBound : records) - 1; }

void flight_clocks() { flight_zero = {cycles(), now_ns(), cycles_per_us}; }

}  // namespace fiberthread
