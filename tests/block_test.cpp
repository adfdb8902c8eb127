// SPDX-License-Identifier: MIT
// Blocks: bounds, guards, handles, recycling.
// alone: sched
#include "sched/memory/block.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "sched/glibc/tcb.h"
#include "sched/memory/extents.h"
#include "sched/memory/reclaim.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;
using namespace fiberthread::memory;

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
  FreeGroup idle[3];
  unsigned released = 0;
  for (int ticks = 0; ticks < 20; ticks++) {
    bool tick = true;
    while (unsigned n = block_take_idle(idle, 3, tick, false)) {
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
    FiberRecord* f = get(size);
    char* end = f->memory.block + f->memory.block_size;
    cr_assert(f && f->memory.stack_low == end - size && f->memory.stack_high < end);
    cr_assert_eq(f->memory.guard_size, 4096u);
    auto low = reinterpret_cast<uintptr_t>(f->memory.stack_low) & ~uintptr_t{4095};
    cr_assert(f->memory.guard >= f->memory.block && reinterpret_cast<uintptr_t>(f->memory.guard) == low - 4096);
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
  *(f->memory.stack_low - 3 * 4096) = 1;
}

Test(block, guard_follows_the_stack) {
  // All these share blocks.
  static const size_t sizes[] = {57344, 16384, 16384, 40960, 20480, 57344}, guards[] = {4096, 4096, 8192, 16384, 4096, 0};
  FiberRecord* first = nullptr;
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      FiberRecord* f = get(sizes[i], guards[i]);
      if (!first) first = f;
      cr_assert(f == first && f->memory.guard_size == guards[i]);
      cr_assert(guards[i] == 0 || f->memory.guard + guards[i] == f->memory.stack_low);
      memset(f->memory.stack_low, 1, static_cast<size_t>(f->memory.stack_high - f->memory.stack_low));
      for (char* p = f->memory.block; p < f->memory.stack_low; p += 4096) {
        bool guard = guards[i] && p >= f->memory.guard;
        // The kernel reads the page for us, and reports the fault.
        long r = raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, arg(p), 0, 8);
        cr_assert(guard ? r == -EFAULT : r == 0, "page %td of size %zu: %ld", p - f->memory.block, sizes[i], r);
      }
      put(f);
    }
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

#if !defined(__SANITIZE_ADDRESS__)  // it needs more address space
#ifndef ALONE
Test(block, guard_faults_in_the_child_of_a_fork) {
  std::vector<FiberRecord*> all = get_many();
  for (FiberRecord* f : all) put(f);
  reap_idle();
  pid_t child = fork();
  if (child == 0) {
    for (FiberRecord* f : get_many())
      if (!f->memory.guard_size) _exit(1);
    _exit(0);
  }
  int status;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
}
#endif

Test(block, unused_chunks_give_back_their_address_space) {
  cr_assert(sched_start());
  uint32_t others = chunk_count;
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = size_t{2} << 30;
  cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
  // Each of the stacks takes so much that there is room for few of another size, unless they are unmapped.
  for (int round = 0; round < 5; round++)
    for (size_t size = 16 << 20; size <= 160 << 20; size *= 2) {
      std::vector<FiberRecord*> all;
      for (size_t sum = 0; sum + size < 1200 << 20; sum += size) {
        FiberRecord* f = get(size);
        cr_assert(f, "no block of %zu after %zu, round %d", size, all.size(), round);
        cr_assert(f->memory.block_size > size && block_find(f->memory.tcb) == f);
        memset(f->memory.stack_low, 1, 4096);
        all.push_back(f);
      }
      for (FiberRecord* f : all) put(f);
      {
        Busy busy;
        if (Worker* w = this_worker()) block_put_kept(w);
      }
      cr_assert(block_any_free());
      Busy busy;
      FreeGroup idle[3];
      while (unsigned n = block_take_idle(idle, 3, false, true)) {
        for (unsigned i = 0; i < n; i++)
          for (unsigned b = 0; b < 64; b++)
            if (idle[i].blocks >> b & 1) tcb_release(*block_of(idle[i], b));
        block_empty(idle, n);
      }
      block_unmap_idle();
      cr_assert(!block_any_free());
      for (uint32_t i = others; i < chunk_count; i++) cr_assert(chunks[i].base == kNowhere);
      for (FiberRecord* f : all) cr_assert(!f->memory.tcb && !f->memory.block);  // a record stays readable
    }
}
#endif
