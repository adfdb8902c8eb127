// SPDX-License-Identifier: MIT
// For this folder only: the experiment on the model thread.
//
// libc's real pthread_create makes the model on memory that we know. Before the model runs any other code, it looks for known values in its
// own struct pthread, and so finds the fields that have no descriptor. It checks those that have one. A copy of its struct pthread is the
// template of all TCBs that we make. If all is right, the model goes on as sysmon.
#pragma once
#include <pthread.h>

#include "sched/glibc/layout.h"

namespace fiberthread::glibc {

constexpr size_t kResBytes = 64;  // bytes of the resolver state that begin as zeros, as long as it is not used

// The model's struct pthread as it was while the model ran. Each pointer into itself is an offset, to which the address of the copy has to
// be added.
extern unsigned char template_image[kMaxPthread] __attribute__((visibility("hidden")));
extern uint16_t self_pointers[64] __attribute__((visibility("hidden")));
extern unsigned self_pointer_count __attribute__((visibility("hidden")));
// The model's struct pthread itself.
extern char* model_tcb __attribute__((visibility("hidden")));

// Makes the model thread, and waits until it has looked at itself. Returns null if nothing is wrong. The model waits in either case, unless
// *made is false.
const char* start_model(pthread_t* thread, bool* made);
// Lets the model run main().
void release_model(void (*main)());
// Makes such a thread when all is known, which runs main() at once. Returns null, or why it was not made.
const char* start_known(void (*main)(), pthread_t* thread);
// Lets the model end, and waits for that.
void end_model(pthread_t thread);

}  // namespace fiberthread::glibc
