// SPDX-License-Identifier: MIT
// The values that a thread has under pthread keys.
//
// libc keeps them in blocks. The first block is a part of struct pthread, and each other one is allocated when a key of it gets a value.
#pragma once

namespace fiberthread {

// Runs the destructors of pthread keys for the calling fiber, in rounds as POSIX orders them, and clears all values.
void tcb_run_key_destructors();

// ---- for this folder only: on the model thread, with its struct pthread ----
namespace glibc {

// Finds the byte that libc sets when a key gets a value (`layout.specific_used`).
void find_specific_used(char* pd);
// Returns true if keys and values are where the descriptors say.
bool keys_are_right(char* pd);
// Takes the values out of the copy of the model's struct pthread. The copy's pointers into itself are offsets already.
void drop_key_values(unsigned char* copy);

}  // namespace glibc
}  // namespace fiberthread
