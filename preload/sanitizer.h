// SPDX-License-Identifier: MIT
// Programs built with a sanitizer.
#pragma once

namespace fiberthread {

// Called by the library's constructor. AddressSanitizer and LeakSanitizer must come before any library that makes threads, and
// ThreadSanitizer must be without this one. If it is otherwise, executes the program again with another LD_PRELOAD, and does not return.
void sanitizer_start(char** argv, char** envp);

}  // namespace fiberthread
