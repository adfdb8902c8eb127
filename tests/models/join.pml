// SPDX-License-Identifier: MIT
// Join, detach and the end of a thread. Its block goes back exactly once, by the last of its end, its joiner and its detacher, and no join
// waits for ever.
//
// Mirrors sched/life/join.cpp and post_exit() of birth.cpp beside it, and of shim/thread.cpp thread_exit_raw(), join() and
// pthread_detach(). `f` ends. A thread joins it (plainly, with a deadline, or with a cancellation on its way) and then ends,
// too. Its record comes back as another thread, which waits for a flag of its own while the late unpark for the join may
// still come. A third thread does nothing, detaches `f`, or joins it as well.
//
// Simplified: park_if() is one step (park.pml), and so is a section under join.lock whose stores are only read under the lock. An unpark is
// two steps, as it may have read the state in the record's former life. Left out: EDEADLK, for two threads that join each other, and uses
// that POSIX leaves undefined: no thread uses the handle after `f` was joined, or was detached and has ended.
//
// holds:
// fails: -DBROKEN_CLEAR
// fails: -DBROKEN_LOCK
// fails: -DBROKEN_VALID
// fails: -DBROKEN_EARLY
// Mutations. BROKEN_CLEAR: join_wait() clears the latch when the caller is registered already, so a cancellation is lost. BROKEN_LOCK:
// the joiner does not wait until the ending side has left the lock. BROKEN_VALID: if the thread was detached on its way to post_exit(),
// that leaves its handle valid. BROKEN_EARLY: an ending thread that has chosen a joiner to run next wakes no other joiner, though
// another one may have registered since.

mtype = { Unborn, Running, Parked, Chosen };  // Chosen: queued, to run when the ending thread is off its stack
mtype = { Plain, Timed, Cancelled, Detaches, Joins, Idles };

// The records of two joiners. The first record comes back as another thread.
mtype state[2] = Running;
bit latch[2];
bit requested;            // pthread_cancel for joiner 0
bit late_now;

// The record of `f`.
bit lock, done, valid = 1, detached, off_stack, inside;
byte joiner;              // from 1
byte given_back;
bit joined;
bit gone[2];              // the thread does not use the handle any more

mtype kind, third;
bit after;                // `f` ends only after joiner 0 has returned
bit flag, finished[2];

inline unpark(who) {
  seen = state[who];
  if
  :: seen == Parked ->
     atomic {
       if
       :: state[who] == Parked -> state[who] = Running
       :: state[who] == Running || state[who] == Chosen -> latch[who] = 1
       :: else
       fi
     }
  :: seen == Running || seen == Chosen ->
     latch[who] = 1;
     atomic {
       if
       :: state[who] == Parked -> state[who] = Running
       :: else
       fi
     }
  :: else
  fi;
  seen = 0
}

// park_if(condition): parks unless the latch is set or the condition is true.
inline park_unless(condition) {
  atomic {
    if
    :: latch[me] -> latch[me] = 0
    :: else ->
       if
       :: condition
       :: else -> state[me] = Parked
       fi
    fi
  }
  state[me] == Running
}

inline block_put() {
  atomic {
    assert(given_back == 0);
    assert(off_stack && !inside && done && !valid);
    given_back++
  }
}

proctype ending() {
  mtype seen;
  byte j, early;
  bit d;
  !after || gone[0];
  // thread_exit_raw()
  atomic {
    !lock;
    if
    :: detached -> valid = 0
    :: else
    fi
  }
  // join_choose_next(), which may also choose no joiner
  if
  :: early = joiner;
     atomic {
       if
       :: early && state[early - 1] == Parked -> state[early - 1] = Chosen
       :: else -> early = 0
       fi
     }
  :: true
  fi;
  off_stack = 1;
  // post_exit()
  atomic { !lock -> lock = 1; inside = 1 }
  done = 1;
  atomic {
    j = joiner; d = detached;
#ifndef BROKEN_VALID
    if
    :: d -> valid = 0
    :: else
    fi
#endif
  }
  atomic { lock = 0; inside = 0 }
  if
#ifdef BROKEN_EARLY
  :: j && early
#else
  :: j && j == early
#endif
  :: j && !early -> unpark(j - 1)
#ifndef BROKEN_EARLY
  :: j && early && j != early -> unpark(j - 1)
#endif
  :: else ->
     if
     :: d -> block_put()
     :: else
     fi
  fi;
  // The chosen joiner goes on.
  if
  :: early -> state[early - 1] = Running
  :: else
  fi
}

// Sets `ok` to whether the joiner is registered.
inline join_register() {
  atomic {
    !lock;
    if
    :: detached || joiner -> ok = 0
    :: else -> joiner = me + 1; ok = 1
    fi
  }
}

proctype joining(byte me; bit cancels; bit timed) {
  bit ok, in_time;
  if
  :: !valid || (cancels && requested) -> goto out
  :: else
  fi;
again:
  join_register();
  if
  :: !ok -> goto out
  :: else
  fi;
  // join_wait()
#ifdef BROKEN_CLEAR
  latch[me] = 0;
#endif
  do
  :: done -> break
  :: else ->
     park_unless(done);
     in_time = !(timed && late_now);
     if
     :: done -> break
     :: else
     fi;
     if
     :: in_time && !(cancels && requested)
     :: else ->
        atomic {
          !lock;
          in_time = 0;
          if
          :: done -> break
          :: else -> joiner = 0
          fi
        }
        if
        :: (cancels && requested) || (timed && late_now) -> goto out
        :: else -> goto again
        fi
     fi
  od;
#ifndef BROKEN_LOCK
  !lock;
#endif
  valid = 0;
  block_put();
  joined = 1;
out:
  gone[me] = 1;
  // The joiner ends, and its record comes back as another thread, which waits for the flag.
  if
  :: me == 0 ->
     state[me] = Unborn;
     latch[me] = 0;
     state[me] = Running;
     do
     :: flag -> break
     :: else -> park_unless(flag)
     od
  :: else
  fi;
  finished[me] = 1
}

proctype detaching() {
  bit ended;
  if
  :: !valid -> goto out
  :: else
  fi;
  atomic {
    !lock;
    if
    :: detached || joiner -> goto out
    :: else -> detached = 1; ended = done
    fi
  }
  if
  :: ended -> valid = 0; block_put()
  :: else
  fi;
out:
  gone[1] = 1; finished[1] = 1
}

proctype canceller() {
  mtype seen;
  requested = 1;
  unpark(0)
}

// The deadline: the timer's unpark is over before the wait is.
proctype clock() {
  late_now = 1;
  do
  :: atomic { state[0] == Parked && !gone[0] -> state[0] = Running }
  :: gone[0] -> break
  od
}

proctype waker() {
  mtype seen;
  gone[0];
  flag = 1;
  unpark(0)
}

init {
  atomic {
    if
    :: kind = Plain
    :: kind = Timed
    :: kind = Cancelled
    fi;
    if
    :: third = Idles
    :: third = Detaches
    :: third = Joins
    fi;
    if
    :: kind != Plain -> after = 1
    :: true
    fi;
    // A thread that is created detached cannot be joined, but both threads may try.
    if
    :: detached = 1
    :: true
    fi;
    run ending();
    run joining(0, kind == Cancelled, kind == Timed);
    if
    :: third == Detaches -> run detaching()
    :: third == Joins -> run joining(1, 0, 0)
    :: else -> gone[1] = 1; finished[1] = 1
    fi;
    if
    :: kind == Cancelled -> run canceller()
    :: kind == Timed -> run clock()
    :: else
    fi;
    run waker()
  }
  timeout -> assert(finished[0] && finished[1]);
  assert(given_back == (joined || detached));
  assert(!given_back || !valid)
}
