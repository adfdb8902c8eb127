// SPDX-License-Identifier: MIT
// Unit tests are written for Criterion. Where that is missing (AArch64, under an emulator), a runner with the same macros replaces it.
#pragma once
#if defined(__x86_64__)
#include <criterion/criterion.h>
#else
#include "tests/mini_criterion.h"
#endif
