// SPDX-License-Identifier: MIT
// The pages of blocks: guards, mapping, and how memory goes back to the kernel.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread::memory {

constexpr size_t kPage = 4096;

// Returns the protection of stacks. They are executable once a loaded object wants that.
int protection();

constexpr size_t to_pages(size_t size) { return (size + kPage - 1) & ~(kPage - 1); }

void change_guard(FiberRecord& f, char* low, size_t size);
// Makes the block's guard the `size` bytes below `high`. Both are whole pages. The block has no guard if the kernel refuses.
inline void set_guard(FiberRecord& f, char* high, size_t size) {
  if (size != f.memory.guard_size || (size && f.memory.guard != high - size)) change_guard(f, high - size, size);
}

// Gives the pages in [low, high) back to the kernel. Page tables and guards stay.
void drop(char* low, char* high);
// Maps fresh memory in place of what is there: pages, page tables and guards go. Returns false if the kernel refuses.
bool wipe(char* low, size_t size);

}  // namespace fiberthread::memory
