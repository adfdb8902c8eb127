// SPDX-License-Identifier: MIT
// The names that read and write descriptors, or end them, as the rest of the shim needs them.
#pragma once

namespace fiberthread {

// Look up what handlers of the program may call.
void io_init();
void socket_init();
void fd_init();

}  // namespace fiberthread
