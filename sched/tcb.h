// A glibc thread control block (TCB) and static TLS for every fiber and worker.
//
// Nothing about glibc's structures is typed in: offsets come from libc's own _thread_db_* descriptors, and what no
// descriptor gives is found by experiment on a model thread (sysmon), made by the real pthread_create on known memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Starts the model thread, learns the layout and proves it. `model_main(arg)` runs on that thread once it has been
// looked at, and goes on as sysmon. Returns false, with a literal in *why, if this libc cannot be served; the thread
// has ended then. Called once per process (again in a fork child), by a native thread, signals blocked.
bool tcb_init(void (*model_main)(), const char** why);

// Bytes that TCB and static TLS take at the top of a block, alignment included.
size_t tcb_reserve();
// Of libc's struct pthread.
size_t tcb_size();

// Makes TCB and TLS below `top`, all modules' TLS initialised, and links it into the loader's stack list. Sets
// f.tcb, f.context.tp. Calls malloc: fiber or native thread only. Returns false without memory.
bool tcb_make(FiberRecord& f, char* top);

// The same for a worker that has `stack` as its stack. Returns the thread pointer, or null.
void* tcb_make_worker(char* top, char* stack_low, char* stack_high, Worker* w);

// Lowest address that tcb_make(top) uses: the stack of the block begins here and grows down.
char* tcb_low(char* top);

// At birth: stack bounds and id into the TCB.
void tcb_begin(FiberRecord& f);

// At death, on the fiber itself, after all of the program's destructors: frees dynamic TLS, sets every module's static
// TLS but libc's back to its image, resets errno, locale and cancellation. The block can be born again at once.
void tcb_end(FiberRecord& f);

// True if nothing in the block's TLS can own memory of libc.
bool tcb_is_pristine(const FiberRecord& f);
// A native thread that is to exit on the block's thread pointer is made after the first, takes it by the second, and has exited before the
// third. That one, which a pristine block needs only, takes the TCB out of libc's list and frees its dtv. They take libc locks.
void tcb_prepare_adoption(FiberRecord& f);
void tcb_adopt(FiberRecord& f);
void tcb_release(FiberRecord& f);

// Where the caller's unwinding by libc's pthread_exit shall end: a sigsetjmp'ed __pthread_unwind_buf_t, or null.
void** tcb_cleanup_jmp_buf(void* tcb);
// The cancellation word of libc; where nothing has been learnt of this libc, a word that stays 0.
uint32_t* tcb_cancelhandling(void* tcb);
uint32_t* tcb_tid(void* tcb);
// The record that the thread of a TCB has: null if it is a foreign one that has not needed any.
FiberRecord* tcb_fiber(void* tcb);
// What `use` changes in the caller's TCB is found out, and undone in those that tcb_end() sees from then on. Busy.
void tcb_learn(void (*use)());
// The head of its list of robust mutexes, in the kernel's form; null if it is not known where.
void* tcb_robust_list(void* tcb);
void* tcb_thread_pointer(void* tcb);

// What libc does first in a new thread: on the fiber, before any code of the program.
void tcb_first_steps();

// Runs the calling fiber's thread_local destructors.
void tcb_call_tls_destructors();

// Runs the destructors of pthread keys for the calling fiber, as POSIX orders them.
void tcb_run_key_destructors();

// Around dlopen and dlclose: the list of modules with TLS changes somewhere between.
void tcb_modules_change();
void tcb_modules_changed();
// Learns which modules there are, if that is not known. By a thread of the program in one of its own calls that take the loader's lock
// with NPTL too: a worker that held it while the program forks would leave it locked in the child.
void tcb_look_at_modules();

// True once a loaded object has been found to contain Go's runtime. That makes system calls by itself, blocks signals and sets
// alternate stacks that way, so each thread that it may run on has to keep its kernel thread. Looks if there may be new objects.
bool tcb_go_is_loaded();
extern std::atomic<bool> tcb_go_found;  // the answer so far

// Makes the caller's TCB, the initial thread's, fit to move between workers: it loses its rseq registration. False, and nothing is
// changed, if the kernel refuses.
bool tcb_adopt_main();

// Around a fork: libc walks its stack lists in the child, so nobody may be changing them. In parent and child.
void tcb_lock_for_fork();
void tcb_unlock_after_fork();

// In the child of a fork: forgets what only the parent had.
void tcb_reset_after_fork();

}  // namespace fiberthread
