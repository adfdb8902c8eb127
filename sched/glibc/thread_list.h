// SPDX-License-Identifier: MIT
// libc's list of the threads that have a stack of the program (`_dl_stack_user`), and libc's own lock over it.
//
// Every fiber's TCB is in that list, because libc and its loader walk it: a dlopen gives each thread in it the static TLS of a new module.
#pragma once

namespace fiberthread {

// Lock and unlock libc's list around a fork. libc walks its lists in the child, so no thread may be changing them at that moment. Parent
// and child both call tcb_unlock_after_fork().
void tcb_lock_for_fork();
void tcb_unlock_after_fork();

// ---- for this folder only ----
namespace glibc {

void link_thread(char* pd);
void unlink_thread(char* pd);

}  // namespace glibc
}  // namespace fiberthread
