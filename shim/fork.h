// fork from any fiber: the child has that fiber alone, on its one kernel thread, and a scheduler that has not started.
#pragma once
namespace fiberthread {
// At library start, before anybody else can register: so our prepare handler runs last, and the others first.
void fork_init();
}  // namespace fiberthread
