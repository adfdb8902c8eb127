// SPDX-License-Identifier: MIT
// Parking: no wake-up is lost, no fiber is queued twice, run twice at once, or run while it is still on its stack.
//
// Mirrors park_if() with its timer, suspend(), post_park(), post_yield(), prepare_run(), unpark() and interrupt() of sched/,
// TimerWheel's add, run and cancel as far as they touch the fiber, and the loop of the parking lot's wait() around
// park_if(). One fiber waits twice, with a yield in between: for flag[0], then for flag[1], an interrupt or a deadline. Each
// waker may come at any time, so the second wait may start with a latch that the first has left. Two workers run the fiber. With
// -DKERNEL the waiter is a kernel thread: park_in_kernel().
//
// Left out: the queue that an entry is in (one counter stands for all), slots, and the switch straight to another fiber (either way, the
// next code on the worker runs the post-switch action). Memory is sequentially consistent except for plain stores to the latch.
// They stay in the store buffer until the next locked instruction or any time before (x86).
//
// holds:
// holds: -DKERNEL
// fails: -DBROKEN_RECHECK
// fails: -DBROKEN_COMMIT
// fails: -DBROKEN_LOOK
// fails: -DBROKEN_LATCH
// Mutations. BROKEN_RECHECK: unpark() does not read the state again after it has set the latch. BROKEN_COMMIT: the state becomes Parked
// before the switch. BROKEN_LOOK: the latch is not read after the state has become Parked. BROKEN_LATCH: a plain store clears the latch,
// and an interrupt that comes just then is lost.

mtype = { Queued, Running, Parked, Done };
mtype = { PostPark, PostYield, PostExit };

mtype state = Queued;
bit pending;              // pending_unpark
bit flag[2];
bit interrupts;
bit buffered;             // pending = 0 is in the store buffer

byte entries;             // in queues
bit saved = 1;            // the fiber is off its stack, its context valid
bit resumed;              // a worker has switched to it
byte on;                  // worker that the fiber runs on, from 1
mtype post[3];            // post-switch action that the worker runs now: the fiber has left it

bit wheel_lock, in_wheel, timer_exists, late_now;
bit word;                 // kernel_word
byte mode;                // what ends the second wait: 0 flag, 1 interrupt, 2 deadline, 3 any
bit finished;

inline enqueue() { atomic { assert(entries == 0); entries++ } }

inline cas(from, to, ok) {
  atomic {
    if
    :: state == from -> state = to; ok = 1
    :: else -> ok = 0
    fi
  }
}

inline unpark() {
  s = state;
  do
  :: s == Parked ->
     cas(Parked, Queued, ok);
     if
     :: ok ->
#ifdef KERNEL
        word = 1;
#else
        enqueue();
#endif
        break
     :: else -> s = state
     fi
  :: s == Running || s == Queued ->
     pending = 1;
#ifdef BROKEN_RECHECK
     break
#else
     s = state;
     if
     :: s == Parked
     :: else -> break
     fi
#endif
  :: s == Done -> break
  od
}

// ---- the fiber ----

inline suspend(action) {
  atomic { saved = 1; post[on] = action; on = 0 }
  atomic { resumed -> resumed = 0 }
}

inline wheel(n) { atomic { !wheel_lock; in_wheel = n; timer_exists = n } }

inline wait_parked(timed) {
#ifdef KERNEL
  word = 0;
  atomic { !buffered -> state = Parked }
  if
  :: pending -> cas(Parked, Running, ok)
  :: else ->
     ok = 0;
     if
     :: word
     :: timed && late_now -> late = 1; cas(Parked, Running, ok)
     fi
  fi;
  if
  :: ok
  :: else -> word  // an unpark has changed the state first
  fi;
  state = Running
#else
  if
  :: timed -> wheel(1)
  :: else
  fi;
#ifdef BROKEN_COMMIT
  atomic { !buffered -> state = Parked }
#endif
  suspend(PostPark);
  if
  :: timed -> wheel(0); late = late_now
  :: else
  fi
#endif
}

inline park_if(f, timed) {
  late = 0;
  if
  :: pending && !buffered ->
#ifdef BROKEN_LATCH
     buffered = 1
#else
     pending = 0
#endif
  :: else ->
     if
     :: flag[f]
     :: else -> wait_parked(timed)
     fi
  fi
}

proctype fiber() {
  bit late, ok;
#ifdef KERNEL
  state = Running;
#else
  atomic { resumed -> resumed = 0 }
#endif
  do
  :: flag[0] -> break
  :: else -> park_if(0, 0)
  od;
#ifndef KERNEL
  suspend(PostYield);
#endif
  do
  :: flag[1] -> break
  :: else ->
     if
     :: interrupts || late -> break
     :: else
     fi;
     park_if(1, mode >= 2)
  od;
  finished = 1;
#ifdef KERNEL
  state = Done
#else
  atomic { saved = 1; post[on] = PostExit; on = 0 }
#endif
}

active proctype store_buffer() {
end:
  do
  :: atomic { buffered -> buffered = 0; pending = 0 }
  od
}

proctype worker(byte me) {
  bit ok;
end:
  do
  :: atomic { entries > 0 -> entries-- }
     atomic { assert(state == Queued); state = Running }
     atomic {
       assert(saved && !on && !resumed);  // off its stack, and on no other worker
       saved = 0; on = me; resumed = 1
     }
     post[me] != 0;
     if
     :: post[me] == PostPark ->
#ifndef BROKEN_COMMIT
        state = Parked;  // from here on the fiber may be anywhere
#endif
#ifndef BROKEN_LOOK
        if
        :: pending ->
           cas(Parked, Queued, ok);
           if
           :: ok -> enqueue()
           :: else
           fi
        :: else
        fi
#else
        skip
#endif
     :: post[me] == PostYield -> state = Queued; enqueue()
     :: post[me] == PostExit -> state = Done
     fi;
     post[me] = 0
  od
}

// The worker, or sysmon, that runs the timers.
proctype timers() {
  mtype s;
  bit ok;
  late_now = 1;
end:
  do
  :: atomic { in_wheel && !wheel_lock -> wheel_lock = 1 }
     in_wheel = 0;
     assert(timer_exists);  // it lies on the fiber's stack
     unpark();
     wheel_lock = 0
  od
}

proctype waker(byte f) {
  mtype s;
  bit ok;
  flag[f] = 1;
  unpark()
}

proctype interrupter() {
  mtype s;
  bit ok;
  interrupts = 1;
  unpark()
}

init {
  atomic {
    select(mode : 0 .. 3);
#ifndef KERNEL
    entries = 1;
    run worker(1);
    run worker(2);
#endif
    run fiber();
    run waker(0);
    if
    :: mode == 0 || mode == 3 -> run waker(1)
    :: else
    fi;
    if
    :: mode == 1 || mode == 3 -> run interrupter()
    :: else
    fi;
    if
    :: mode >= 2 -> run timers()
    :: else
    fi
  }
  timeout -> assert(finished)  // when nothing can happen any more, the fiber must not wait
}
