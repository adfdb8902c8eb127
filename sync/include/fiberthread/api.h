// SPDX-License-Identifier: MIT
// Marks what the library exports of its own C and C++ interface. Public headers include nothing of `sched`: a FiberRecord is
// only a name to them.
#pragma once
#define FIBERTHREAD_API __attribute__((visibility("default")))
