// SPDX-License-Identifier: MIT
#pragma once

// Called before the process makes its first thread. Where the program allows it, the caller becomes the server of the exploration, and each
// of its children returns from here.
__attribute__((visibility("hidden"))) void serve_before_first_thread();
