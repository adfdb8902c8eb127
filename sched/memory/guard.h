// SPDX-License-Identifier: MIT
// The pages of blocks: guards, mapping, and how memory goes back to the kernel.
#pragma once
#include <cstddef>

#include "sched/arch/arch.h"
#include "sched/fiber.h"

namespace fiberthread::memory {

// Returns the protection of stacks. They are executable once a loaded object wants that.
int protection();

void change_guard(FiberRecord& f, char* low, size_t size);
// Makes the block's guard the `size` bytes below `high`. Both are whole pages. The block has no guard if the kernel refuses, or if its extent
// must not have any.
inline void set_guard(FiberRecord& f, char* high, size_t size) {
  if (size != f.memory.guard_size || (size && f.memory.guard != high - size)) change_guard(f, high - size, size);
}

bool guards_work();  // the kernel has guards that are no mappings: MADV_GUARD_INSTALL

// Before Linux 6.13 a guard is a mapping, and parts its surroundings in two. A process has a limit of mappings (vm.max_map_count), and all that
// allocates memory fails at it. So guards take half of them at most. An extent takes guards for all its blocks when the first comes into use,
// and gives them back when its memory is wiped. Returns false if there are no more: its blocks do without.
bool take_guards();
void give_guards();
void forget_guards();  // in the child of a fork: none are taken

// Gives the pages in [low, high) back to the kernel. Page tables and guards stay.
void drop(char* low, char* high);
// Makes [low, high) zeros, and gives back the pages that are wholly in it.
void clear(char* low, char* high);
// Maps fresh memory in place of what is there: pages, page tables and guards go. Returns false if the kernel refuses.
bool wipe(char* low, size_t size);

}  // namespace fiberthread::memory
