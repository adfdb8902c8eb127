// SPDX-License-Identifier: MIT
// What the rest of the shim needs of the names that read and write descriptors, or end their lives.
#pragma once

namespace fiberthread {

// Look up libc's functions that handlers of the program may call.
void io_init();
void socket_init();
void fd_init();

}  // namespace fiberthread
