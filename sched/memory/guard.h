// SPDX-License-Identifier: MIT
// The pages of blocks: their guards, how they are mapped, and how their memory goes back.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread::memory {

constexpr size_t kPage = 4096;

// Of stacks: executable once an object wants them to be.
int protection();

void change_guard(FiberRecord& f, size_t size);
// The guard of the block is `size` bytes from now on, rounded up to pages, or what it was if the kernel refuses.
inline void set_guard(FiberRecord& f, size_t size) {
  size = (size + kPage - 1) & ~(kPage - 1);
  if (size != f.memory.guard_size) change_guard(f, size);
}

// Gives the memory back. Page tables and guards stay.
void drop(char* low, char* high);
// Maps memory that is empty, page tables and guards included, in place of what is there.
bool wipe(char* low, size_t size);

}  // namespace fiberthread::memory
