// SPDX-License-Identifier: MIT
#define FEATURES 0xc0000000                     // AArch64 feature_1_and
#define LANDING_PADS 1                          // BTI
#include "sched/arch/asm_end.h"
