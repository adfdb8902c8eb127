// SPDX-License-Identifier: MIT
// For this folder only: the lock of the loader's list of objects (`_dl_load_write_lock`). dl_iterate_phdr() holds it around its callbacks.
//
// libc's fork makes two other locks of the loader anew in the child, but not this one. Threads of libc do not need it, so a child can make
// them even if another thread was inside dl_iterate_phdr() at the fork. The start of the scheduler calls dl_iterate_phdr(), so here the
// child frees the lock.
#pragma once

namespace fiberthread::glibc {

// Finds the lock by an experiment, once. The fields of struct pthread must be known. If no word or more than one behaves like the lock, it
// stays unknown, and the child of a fork leaves it as it is. Takes the lock.
void find_loader_lock();

// Frees the lock. The caller is the only thread of a child, so the owner is a thread of the parent.
void free_loader_lock_after_fork();

}  // namespace fiberthread::glibc
