// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace fiberthread {

// A module that has instrumented code has been loaded. `pc` is in it.
void module_instrumented(uintptr_t pc);
bool is_instrumented(uintptr_t pc);

}  // namespace fiberthread
