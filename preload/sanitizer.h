// SPDX-License-Identifier: MIT
// Programs built with a sanitizer.
#pragma once

namespace fiberthread {

// At library start. AddressSanitizer and LeakSanitizer want to be in front of everybody who makes threads, ThreadSanitizer to be alone:
// if it is not so, the program is begun anew as it should be, and this does not return.
void sanitizer_start(char** argv, char** envp);

}  // namespace fiberthread
