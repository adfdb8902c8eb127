// SPDX-License-Identifier: MIT
// dlopen, as the rest of the shim needs it.
#pragma once

namespace fiberthread {

// Somebody is in dlopen: what it has loaded may make threads already, by its constructors.
bool dl_is_opening();

}  // namespace fiberthread
