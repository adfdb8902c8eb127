// SPDX-License-Identifier: MIT
// The table by which the scheduler calls this folder.
#pragma once
namespace fiberthread {
// Installs the table. Called at the start of the library, before everything else.
void embed();
}  // namespace fiberthread
