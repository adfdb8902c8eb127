// SPDX-License-Identifier: MIT
#pragma once

namespace fiberthread {

constexpr bool kCanStep = true;
constexpr uint64_t kStepFlag = 0x100;  // TF in rflags

[[gnu::always_inline]] inline void begin_stepping() {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n\t"  // past the red zone
      "pushfq\n\t"
      "orl $0x100, (%%rsp)\n\t"
      "popfq\n\t"
      "lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
}

}  // namespace fiberthread
