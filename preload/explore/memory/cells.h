// SPDX-License-Identifier: MIT
// What is known of each 8 bytes of memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "preload/explore/memory/clock.h"

namespace fiberthread {

constexpr size_t kPageSize = 4096, kGranule = 8;

// An object by which fibers are ordered.
struct Sync {
  Clock clock, readers;  // `readers`: what readers of a read-write lock have released
  uint32_t writer = 0;   // thread + 1
  Sync* next_free = nullptr;
};

struct Access {
  uint32_t clock;
  uint8_t thread, mask, kind, used;  // mask: a bit for each byte of the granule
  uintptr_t pc;
};

struct Cell {
  uint8_t first;  // thread + 1 of the first that was here
  bool foreign;   // others were here too
  bool racy;      // a race was seen
  bool benign;    // and is none
  uint32_t next;  // the next to be replaced
  Sync* sync;
  Access accesses[4];
};

// Returns the cell of an address. If there is none, it is made, or the result is null.
Cell* cell_of(uintptr_t address, bool make);
// Returns the cells of a page, by its number.
Cell* cells_of(uintptr_t page, bool make);
Sync* sync_of(uintptr_t object, bool make);
void forget(Cell& c);

// Calls f(cell, address) for all cells in a range.
template <class F>
void for_cells(uintptr_t from, uintptr_t to, F f) {
  for (uintptr_t page = from / kPageSize; page * kPageSize < to; page++) {
    Cell* cells = cells_of(page, false);
    if (!cells) continue;
    uintptr_t low = page * kPageSize < from ? from % kPageSize / kGranule : 0;
    uintptr_t high = to - page * kPageSize < kPageSize ? (to % kPageSize + kGranule - 1) / kGranule : kPageSize / kGranule;
    for (uintptr_t i = low; i < high; i++) f(cells[i], page * kPageSize + i * kGranule);
  }
}

}  // namespace fiberthread
