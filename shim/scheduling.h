// SPDX-License-Identifier: MIT
// What POSIX and Linux let a program say about the scheduling of one thread.
#pragma once
#include <pthread.h>

#include "sched/fiber.h"

// Declared as libc 2.41 declares them.
struct sched_attr;
extern "C" int sched_setattr(pid_t tid, sched_attr* a, unsigned flags) noexcept;
extern "C" int sched_getattr(pid_t tid, sched_attr* a, unsigned size, unsigned flags) noexcept;

namespace fiberthread {

// Gives the new fiber the scheduling of its creator, or what explicit attributes say. Returns 0 or an errno value.
int scheduling_at_birth(FiberRecord* f, FiberRecord* creator, const pthread_attr_t* attr);

// Learns from the kernel in which order the fiber is to be woken among others that wait for the same thing. As in the kernel, those of a
// real-time policy come first, the highest priority first.
void scheduling_look_up_rank(FiberRecord* f);

// Puts into `attr` what pthread_getattr_np says of the fiber's scheduling.
void scheduling_to_attr(FiberRecord* f, pthread_attr_t* attr);

}  // namespace fiberthread
