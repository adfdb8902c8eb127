// SPDX-License-Identifier: MIT
// Where the library's data lie. `fiberthread dump` and `top`, the gdb script and other debuggers use it to look at a process or a core from
// outside. They need neither our headers nor debug information, only this one symbol.
#pragma once
#include <cstdint>

namespace fiberthread {

// A name with a number: an offset, a size, or the address of a variable. The meaning of a name never changes, and new names may be added.
// So a reader need only know the names that it uses. An empty name ends the list. The names of saved registers are in
// sched/arch/<cpu>/registers.h, and all others in debug_layout.cpp.
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
