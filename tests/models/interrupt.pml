// SPDX-License-Identifier: MIT
// An interrupt that must reach a fiber where it runs: pthread_kill and pthread_cancel of a thread that may compute or wait in the kernel.
//
// Mirrors interrupt_running() with unpark(), prepare_run(), the end of Busy, post_yield(), post_park(), and the handler of the poke. One fiber
// runs on two workers. It yields, parks, and at last waits in the kernel, which nothing but a poke ends.
//
// The model fails where the fiber waits for ever, in the kernel or parked, without having seen its interrupt.
//
// Left out: slots, the queue that an entry is in, and what else an interrupt ends. A worker says by plain stores which fiber it runs. They
// stay in its store buffer until its next locked instruction, a membarrier, or any time before (x86). With -DFENCES there is no membarrier,
// and prepare_run() ends with a fence.
//
// holds:
// holds: -DFENCES
// fails: -DBROKEN_MEMBARRIER
// fails: -DFENCES -DBROKEN_FENCE
// fails: -DBROKEN_LOOK
// fails: -DBROKEN_POKE
// Mutations. BROKEN_MEMBARRIER: interrupt_running() does not make the workers' stores seen. BROKEN_FENCE: prepare_run() has no fence, and
// there is no membarrier. BROKEN_LOOK: the end of Busy looks at the interrupts before Busy is over, and a poke that comes in between is
// lost. BROKEN_POKE: a fiber that runs is not poked.

mtype = { Queued, Running, Parked };

mtype state = Queued;
byte runs_on;             // FiberRecord::run.worker
bit interrupts;           // kInterruptSafePoint
bit latch;                // pending_unpark
byte entries = 1;         // in queues
bit buffered[2];          // the worker's store of runs_on and Running is in its store buffer
bit program[2];           // the fiber runs on this worker, outside Busy
bit poked[2];
bit seen;                 // the fiber has seen its interrupt

inline flush(w) {
  atomic {
    if
    :: buffered[w] -> buffered[w] = 0; runs_on = w; state = Running
    :: else
    fi
  }
}

inline look() {
  atomic {
    if
    :: interrupts -> interrupts = 0; seen = 1
    :: else
    fi
  }
}

inline end_busy(w) {
#ifdef BROKEN_LOOK
  look();
  program[w] = 1
#else
  program[w] = 1;
  look()
#endif
}

inline unpark_parked() {
  atomic {
    if
    :: state == Parked -> state = Queued; entries++
    :: else
    fi
  }
}

active [2] proctype worker() {
  byte me = _pid, yields = 1, parks = 1;
next:
  atomic {
    if
    :: entries > 0 -> entries--
    :: entries == 0 && seen -> goto over
    fi
  }
  buffered[me] = 1;  // prepare_run()
#if defined(FENCES) && !defined(BROKEN_FENCE)
  flush(me);
#endif
fiber:
  end_busy(me);
  if
  :: yields > 0 ->
     yields--;
     program[me] = 0;  // Busy
     flush(me);        // a queue's lock
     atomic { state = Queued; entries++ }
     goto next
  :: parks > 0 ->
     parks--;
     program[me] = 0;
     flush(me);        // park_if() exchanges the latch
     atomic {
       if
       :: latch -> latch = 0; goto fiber
       :: else
       fi
     }
     state = Parked;   // post_park()
     if
     :: latch -> unpark_parked()
     :: else
     fi;
     goto next
  :: true -> seen      // in the kernel, or it computes
  fi;
over:
  skip
}

// The kernel thread's handler. It does nothing inside Busy, because the end of Busy looks.
active [2] proctype handler() {
  byte me = _pid - 2;
  do
  :: atomic { poked[me] -> poked[me] = 0 }
     if
     :: program[me] -> look()
     :: else
     fi
  :: seen -> break
  od
}

// The workers' store buffers.
active [2] proctype drain() {
  byte me = _pid - 4;
  do
  :: buffered[me] -> flush(me)
  :: seen -> break
  od
}

active proctype interrupter() {
  mtype s;
  bit woken;
  interrupts = 1;
  // unpark()
  s = state;
  do
  :: s == Parked ->
     atomic {
       if
       :: state == Parked -> state = Queued; entries++; woken = 1
       :: else -> s = state
       fi
     }
     if
     :: woken -> break
     :: else
     fi
  :: else ->
     latch = 1;
     s = state;
     if
     :: s == Parked
     :: else -> break
     fi
  od;
  if
  :: woken
  :: else ->
     s = state;
     if
     :: s == Queued ->
#if !defined(BROKEN_MEMBARRIER) && !defined(FENCES)
        flush(0);
        flush(1);
#endif
        s = state
     :: else
     fi;
#ifndef BROKEN_POKE
     atomic {
       if
       :: s == Running -> poked[runs_on] = 1
       :: else
       fi
     }
#endif
  fi
}

active proctype nothing_more() { timeout -> assert(seen) }
