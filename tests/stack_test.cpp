// Blocks: bounds, guards, handles, recycling.
#include "sched/stack.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {
Fiber* get(size_t size, size_t guard = 4096, void* stack = nullptr) {
  cr_assert(sched_start());
  Busy busy;
  return block_get(size, guard, stack);
}
void put(Fiber* f) {
  Busy busy;
  block_put(f);
}
}  // namespace

Test(stack, has_the_room_that_was_asked_for) {
  for (size_t size = 16384; size < 40 << 20; size = size * 3 + 4096) {
    Fiber* f = get(size + 4096);
    cr_assert(f && static_cast<size_t>(f->stack_high - f->stack_low) >= size);
    cr_assert_eq(f->guard_size, 4096u);
    cr_assert(f->stack_low == f->block + f->guard_size && f->stack_high <= f->block + f->block_size);
    memset(f->stack_low, 1, 4096);
    memset(f->stack_high - 8192, 1, 8192);
    cr_assert(block_find(f->tcb) == f);
    put(f);
  }
}

Test(stack, guard_faults, .signal = SIGSEGV) {
  Fiber* f = get(65536);
  *(f->stack_low - 1) = 1;
}

Test(stack, guard_faults_at_its_lowest_byte, .signal = SIGSEGV) {
  Fiber* f = get(65536, 3 * 4096);
  *f->block = 1;
}

Test(stack, a_block_is_used_again_with_its_tcb) {
  Fiber* f = get(65536);
  void* tcb = f->tcb;
  uint32_t id = f->id;
  put(f);
  Fiber* again = get(65536);
  cr_assert(again == f && again->tcb == tcb);
  cr_assert_neq(again->id, id);
  put(again);
}

Test(stack, of_the_callers) {
  static char mine[65536];
  Fiber* f = get(sizeof mine, 0, mine);
  cr_assert(f->stack_low == mine && f->stack_high == mine + sizeof mine && f->user_stack);
  cr_assert(static_cast<char*>(f->tcb) < mine || static_cast<char*>(f->tcb) >= mine + sizeof mine);
  put(f);
}

Test(stack, what_is_no_handle_is_not_found) {
  Fiber* f = get(65536);
  cr_assert(block_find(nullptr) == nullptr && block_find(f) == nullptr);
  cr_assert(block_find(static_cast<char*>(f->tcb) + 8) == nullptr);
  cr_assert(get(size_t{1} << 47) == nullptr);
  put(f);
}
