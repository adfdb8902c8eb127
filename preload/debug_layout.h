// SPDX-License-Identifier: MIT
// Where the library's data lie, for those who look at a process or a core from outside: `fiberthread dump` and `top`, the
// gdb script, other debuggers. They need neither our headers nor debug information, only this one symbol.
#pragma once
#include <cstdint>

namespace fiberthread {

// A name with a number: an offset, a size, or the address of a variable. The meaning of a name never changes, new ones are
// added as needed, and an empty one ends the list; so a reader need only know those that it uses. All names are in debug_layout.cpp,
// but for those of saved registers, which are in sched/arch/<cpu>/registers.h.
struct DebugEntry {
  char name[24];
  union {
    uint64_t number;
    const void* address;
  };
};
static_assert(sizeof(DebugEntry) == 32);

}  // namespace fiberthread

extern "C" __attribute__((visibility("default"))) const fiberthread::DebugEntry fiberthread_debug_layout[];
