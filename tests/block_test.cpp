// SPDX-License-Identifier: MIT
// Blocks: bounds, guards, handles, recycling.
// alone: sched
#include "sched/memory/block.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "sched/glibc/tcb.h"
#include "sched/memory/reclaim.h"
#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {
FiberRecord* get(size_t size, size_t guard = 4096, void* stack = nullptr) {
  cr_assert(sched_start());
  Busy busy;
  return block_get(size, guard, stack);
}
void put(FiberRecord* f) {
  Busy busy;
  block_put(f);
}

constexpr unsigned kMany = 300;
std::vector<FiberRecord*> get_many() {
  std::vector<FiberRecord*> all;
  for (unsigned i = 0; i < kMany; i++) {
    all.push_back(get(65536));
    memset(all[i]->memory.stack_low, 1, 4096);
  }
  return all;
}
// Does what the reaper does, for all blocks that no fiber uses. Returns how many blocks it released.
unsigned reap_idle() {
  Busy busy;
  Idle idle[3];
  unsigned released = 0;
  for (int ticks = 0; ticks < 20; ticks++) {
    bool tick = true;
    while (unsigned n = block_take_idle(idle, 3, tick)) {
      tick = false;
      for (unsigned i = 0; i < n; i++)
        for (unsigned b = 0; b < 64; b++)
          if (idle[i].blocks >> b & 1) {
            tcb_release(*block_of(idle[i], b));
            released++;
          }
      block_empty(idle, n);
    }
  }
  return released;
}
bool resident(void* page) {
  unsigned char is = 0;
  return mincore(page, 4096, &is) == 0 && is & 1;
}
}  // namespace

Test(block, has_the_room_that_was_asked_for) {
  for (size_t size = 16384; size < 40 << 20; size = size * 3 + 4096) {
    FiberRecord* f = get(size + 4096);
    cr_assert(f && static_cast<size_t>(f->memory.stack_high - f->memory.stack_low) >= size);
    cr_assert_eq(f->memory.guard_size, 4096u);
    cr_assert(f->memory.stack_low == f->memory.block + f->memory.guard_size &&
              f->memory.stack_high <= f->memory.block + f->memory.block_size);
    memset(f->memory.stack_low, 1, 4096);
    memset(f->memory.stack_high - 8192, 1, 8192);
    cr_assert(block_find(f->memory.tcb) == f);
    put(f);
  }
}

Test(block, guard_faults, .signal = SIGSEGV) {
  FiberRecord* f = get(65536);
  *(f->memory.stack_low - 1) = 1;
}

Test(block, guard_faults_at_its_lowest_byte, .signal = SIGSEGV) {
  FiberRecord* f = get(65536, 3 * 4096);
  *f->memory.block = 1;
}

Test(block, a_block_is_used_again_with_its_tcb) {
  FiberRecord* f = get(65536);
  void* tcb = f->memory.tcb;
  uint32_t id = f->identity.id;
  put(f);
  FiberRecord* again = get(65536);
  cr_assert(again == f && again->memory.tcb == tcb);
  cr_assert_neq(again->identity.id, id);
  put(again);
}

Test(block, records_belong_to_the_caller) {
  static char mine[65536];
  FiberRecord* f = get(sizeof mine, 0, mine);
  cr_assert(f->memory.stack_low == mine && f->memory.stack_high == mine + sizeof mine && f->memory.user_stack);
  cr_assert(static_cast<char*>(f->memory.tcb) < mine || static_cast<char*>(f->memory.tcb) >= mine + sizeof mine);
  put(f);
}

Test(block, invalid_handles_are_not_found) {
  FiberRecord* f = get(65536);
  cr_assert(block_find(nullptr) == nullptr && block_find(f) == nullptr);
  cr_assert(block_find(static_cast<char*>(f->memory.tcb) + 8) == nullptr);
  cr_assert(get(size_t{1} << 47) == nullptr);
  put(f);
}

Test(block, memory_of_idle_blocks_goes_back) {
  std::vector<FiberRecord*> all = get_many();
  std::vector<char*> low;
  std::vector<void*> tcb;
  for (FiberRecord* f : all) low.push_back(f->memory.stack_low), tcb.push_back(f->memory.tcb);
  cr_assert_eq(reap_idle(), 0u);  // the blocks are in use
  for (FiberRecord* f : all) put(f);
  unsigned released = reap_idle(), gone = 0;
  cr_assert(released >= kMany - 64 - 32 && !block_any_idle());  // some stay for ever, and some stay with their worker
  for (unsigned i = 0; i < kMany; i++) {
    cr_assert(resident(low[i]) == (all[i]->memory.tcb != nullptr));
    cr_assert(block_find(tcb[i]) == (all[i]->memory.tcb ? all[i] : nullptr));
    gone += !all[i]->memory.tcb;
  }
  cr_assert_eq(gone, released);
  // All can be used again, and are as new.
  for (FiberRecord* f : get_many()) {
    cr_assert(f->memory.tcb && block_find(f->memory.tcb) == f && f->memory.guard_size == 4096);
    for (char* p = f->memory.stack_low + 4096; p < f->memory.stack_high - 4096; p += 64) cr_assert_eq(*p, 0);
    put(f);
  }
}

Test(block, blocks_in_use_stay_when_their_neighbours_memory_goes) {
  std::vector<FiberRecord*> all = get_many();
  for (unsigned i = 0; i < kMany; i++)
    if (i % 7) put(all[i]);
  cr_assert(reap_idle() > 0);
  for (unsigned i = 0; i < kMany; i += 7) {
    cr_assert(block_find(all[i]->memory.tcb) == all[i] && all[i]->memory.guard_size == 4096);
    for (unsigned j = 0; j < 4096; j++) cr_assert_eq(all[i]->memory.stack_low[j], 1);
  }
  for (unsigned i = 0; i < kMany; i += 7) put(all[i]);
  reap_idle();
  cr_assert(!block_any_idle());
}

Test(block, guard_faults_after_the_memory_went, .signal = SIGSEGV) {
  std::vector<FiberRecord*> all = get_many();
  for (FiberRecord* f : all) put(f);
  if (reap_idle() == 0) return;
  FiberRecord* last = get_many().back();
  *(last->memory.stack_low - 1) = 1;
}
