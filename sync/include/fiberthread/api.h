// SPDX-License-Identifier: MIT
// Marks the names of the C and C++ interface that the library exports. Public headers include nothing of `sched`; FiberRecord is only a
// name to them.
#pragma once
#define FIBERTHREAD_API __attribute__((visibility("default")))
