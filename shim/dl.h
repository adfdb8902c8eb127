// SPDX-License-Identifier: MIT
// dlopen, as the rest of the shim needs it.
#pragma once

namespace fiberthread {

// Returns true while a thread is in dlopen. Constructors of the loaded objects may already make threads.
bool dl_is_opening();

}  // namespace fiberthread
