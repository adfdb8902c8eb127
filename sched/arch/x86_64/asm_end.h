// SPDX-License-Identifier: MIT
#define FEATURES 0xc0000002                     // x86 feature_1_and
#define LANDING_PADS 1                          // IBT
#include "sched/arch/asm_end.h"
