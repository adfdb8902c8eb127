// SPDX-License-Identifier: MIT
// What the scheduler is told of POSIX: the one table by which it calls this folder.
#pragma once
namespace fiberthread {
// At library start, before all else.
void embed();
}  // namespace fiberthread
