// SPDX-License-Identifier: MIT
// FIBERTHREAD_WORKER_NAMES: each worker's kernel thread carries the name of the fiber that it runs, for profilers that know kernel threads
// only. It costs a system call at each switch to a fiber of another name. Called only if observed(kObserveNames) says so.
//
// A fiber without a name is shown by its id, and main by the name that the process had at the scheduler's start. A worker that sleeps, and
// the library's other kernel threads, have that name too. The process's first kernel thread sleeps with main's name, and the worker of a
// bound fiber or a cord with that fiber's or cord's.
#pragma once
#include "sched/observe/observe.h"

namespace fiberthread {

struct Worker;

void names_wanted();  // called before the scheduler starts
void names_start();   // called at the scheduler's start, by the thread whose name is the process's

// The caller is w, which is about to run `f`, or to sleep if `f` is null.
void name_worker(Worker* w, const FiberRecord* f);
// w's kernel thread is new, so that its name is not known.
void name_begins(Worker* w);
// The name of `f` has changed. If it runs, its worker is renamed at once.
void name_changed(const FiberRecord* f);
// Copies the name that fibers have if they and main were never given one.
void name_of_process(char (&to)[16]);

// While it lives, the caller's kernel thread has the process's name, so that a kernel thread that it makes inherits that.
class NameForClone {
 public:
  NameForClone();
  ~NameForClone();
  NameForClone(const NameForClone&) = delete;

 private:
  Worker* here_;
};

}  // namespace fiberthread
