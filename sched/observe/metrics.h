// SPDX-License-Identifier: MIT
// Metrics in Prometheus' text form, for FIBERTHREAD_METRICS. Sysmon serves them, or writes them to a file every few seconds.
#pragma once
#include <cstdint>

namespace fiberthread {

// `where` is the value of FIBERTHREAD_METRICS, which lasts. Called before the scheduler starts.
void metrics_to(const char* where);
void metrics_every(uint32_t seconds);
bool metrics_wanted();

void metrics_start();  // at the scheduler's start
// Called by sysmon at each look. Returns when it wants to be called next at the latest.
uint64_t metrics_look(uint64_t now);
// What sysmon's sleep shall wait for, or -1; `events` gets poll()'s events.
int metrics_descriptor(short& events);
// Writes the file a last time, or removes the socket. Called when the process ends.
void metrics_end();

}  // namespace fiberthread
