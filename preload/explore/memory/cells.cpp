// SPDX-License-Identifier: MIT
#include "preload/explore/memory/cells.h"

namespace fiberthread {
namespace {

constexpr size_t kPages = 1 << 20;
struct Page {
  uintptr_t key;  // its number + 1
  Cell* cells;
};
Page* pages = nullptr;
Sync* free_syncs = nullptr;

}  // namespace

Cell* cells_of(uintptr_t page, bool make) {
  static Page* last = nullptr;
  if (last && last->key == page + 1) return last->cells;
  if (!pages) {
    if (!make) return nullptr;
    pages = static_cast<Page*>(take(kPages * sizeof(Page)));
    if (!pages) return nullptr;
  }
  static size_t used = 0;
  size_t i = (page ^ page / kPages * 977) % kPages;  // neighbours stay so, or each look at a stack would touch as many pages
  for (; pages[i].key; i = (i + 1) % kPages)
    if (pages[i].key == page + 1) {
      last = &pages[i];
      return last->cells;
    }
  if (!make || used >= kPages / 2) return nullptr;
  auto* cells = static_cast<Cell*>(take(kPageSize / kGranule * sizeof(Cell)));
  if (!cells) return nullptr;
  used++;
  pages[i] = {page + 1, cells};
  last = &pages[i];
  return cells;
}

Cell* cell_of(uintptr_t address, bool make) {
  Cell* cells = cells_of(address / kPageSize, make);
  return cells ? &cells[address % kPageSize / kGranule] : nullptr;
}

Sync* sync_of(uintptr_t object, bool make) {
  Cell* c = cell_of(object, make);
  if (!c || (!c->sync && !make)) {
    lost |= make;
    return nullptr;
  }
  if (!c->sync) {
    c->sync = free_syncs;
    if (c->sync) free_syncs = c->sync->next_free;
    else c->sync = static_cast<Sync*>(take(sizeof(Sync)));
    lost |= !c->sync;
  }
  return c->sync;
}

void forget(Cell& c) {
  Sync* s = c.sync;
  if (s) {
    clear(s->clock);
    clear(s->readers);
    s->writer = 0;
    s->next_free = free_syncs;
    free_syncs = s;
  }
  c = {};
}

}  // namespace fiberthread
