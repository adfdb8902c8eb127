// SPDX-License-Identifier: MIT
// FiberFuture: a consumer that waits, subscribes or waits for several futures learns exactly once that one is set. No object is touched
// that may have been destroyed.
//
// Mirrors FiberFuture of sync/: set(), wait_for_set() with wait_until_over(), waitForMultiple(), subscribe(), unsubscribe(). There are two
// futures, a producer for each, and one consumer. The consumer begins in one of several ways, may be cancelled on the way, and in the end
// waits for each future that it has not got yet. It destroys each future as soon as it knows that the future is set, its MultipleWaitState
// when the call returns, and its callback once that was called or taken back.
//
// Simplified: park_if() is one step (park.pml). Left out: timeouts, which are like cancellation. The consumer's record is never destroyed.
//
// holds:
// fails: -DBROKEN_INSTALL
// fails: -DBROKEN_WITHDRAW
// fails: -DBROKEN_DETACH
// fails: -DBROKEN_COUNT
// fails: -DBROKEN_LAST
// fails: -DBROKEN_WAKE
// Mutations. BROKEN_INSTALL: a waiter reads the word and then stores itself. BROKEN_WITHDRAW: a waiter withdraws by a plain store.
// BROKEN_DETACH: a wait for several futures withdraws by a plain store. BROKEN_COUNT: a wait for several futures returns without waiting
// for signals in flight. BROKEN_LAST: set() reads the wait's state after it has counted itself. BROKEN_WAKE: set() unparks before it has
// changed the word.

mtype = { Running, Parked };
mtype = { Empty, Set, Waits, Multiple, Subscribed };

mtype word[2] = Empty;
bit gone[2];              // the future is destroyed
mtype state = Running;    // of the consumer
bit latch;
bit interrupts;

byte complete;            // MultipleWaitState
bit state_there;
byte called;
bit callback_there;

bit got[2];
bit finished;

inline cas(f, from, to, ok) {
  atomic {
    assert(!gone[f]);
    if
    :: word[f] == from -> word[f] = to; ok = 1
    :: else -> ok = 0
    fi
  }
}

inline unpark() {
  if
  :: atomic { state == Parked -> state = Running }
  :: atomic { state == Running -> latch = 1 }
  fi
}

// ---- the producers ----

proctype producer(byte f) {
  mtype w;
  bit ok;
  do
  :: atomic { assert(!gone[f]); w = word[f] }
#ifdef BROKEN_WAKE
     if
     :: w == Waits -> unpark()
     :: else
     fi;
#endif
     cas(f, w, Set, ok);
     if
     :: ok -> break
     :: else
     fi
  od;
  if
#ifndef BROKEN_WAKE
  :: w == Waits -> unpark()
#endif
  :: w == Multiple ->
#ifdef BROKEN_LAST
     atomic { assert(state_there); complete++ }
     assert(state_there);
#else
     assert(state_there);
     atomic { assert(state_there); complete++ }
#endif
     unpark()
  :: w == Subscribed -> atomic { assert(callback_there); called++ }
  :: else
  fi
}

proctype interrupter() {
  interrupts = 1;
  unpark()
}

// ---- the consumer ----

inline park() {
  atomic {
    if
    :: latch -> latch = 0
    :: else -> state = Parked
    fi
  }
  state == Running
}

inline install(f, what, ok) {
#ifdef BROKEN_INSTALL
  if
  :: word[f] == Empty -> word[f] = what; ok = 1
  :: else -> ok = 0
  fi
#else
  cas(f, Empty, what, ok)
#endif
}

inline know(f) { atomic { assert(word[f] == Set); got[f] = 1; gone[f] = 1 } }

inline wait_for(f, may_end) {
  install(f, Waits, ok);
  ends = may_end;
  if
  :: !ok -> know(f)
  :: else ->
     do
     :: word[f] == Set -> know(f); break
     :: else ->
        if
        :: ends && interrupts ->
#ifdef BROKEN_WITHDRAW
           word[f] = Empty; ok = 1;
#else
           cas(f, Waits, Empty, ok);
#endif
           if
           :: ok -> break
           :: else -> ends = 0
           fi
        :: else
        fi;
        park()
     od
  fi
}

inline detach() {
  do
  :: attached == 0 -> break
  :: else ->
     attached--;
#ifdef BROKEN_DETACH
     word[attached] = Empty; ok = 1;
#else
     cas(attached, Multiple, Empty, ok);
#endif
     if
     :: ok
     :: else -> signals++
     fi
  od
}

inline wait_for_multiple(may_end) {
  state_there = 1;
  ends = may_end;
  do
  :: attached == 2 -> break
  :: else ->
     install(attached, Multiple, ok);
     if
     :: ok -> attached++
     :: else -> break
     fi
  od;
  if
  :: attached == 2 ->
     do
     :: complete > 0 -> break
     :: else ->
        if
        :: ends && interrupts ->
           detach();
           if
           :: signals == 0 -> break
           :: else -> ends = 0
           fi
        :: else
        fi;
        park()
     od
  :: else -> skip
  fi;
  detach();
#ifndef BROKEN_COUNT
  do
  :: complete == signals -> break
  :: else -> park()
  od;
#endif
  state_there = 0;
  for (i : 0 .. 1) {
    if
    :: word[i] == Set -> know(i)
    :: else
    fi
  }
}

proctype consumer(byte mode) {
  bit ok, ends;
  byte attached, signals, i;
  if
  :: mode == 0 -> wait_for(0, 1)
  :: mode == 1 -> wait_for_multiple(0); assert(got[0] || got[1])
  :: mode == 2 -> wait_for_multiple(1); assert(got[0] || got[1] || interrupts)
  :: mode == 3 ->
     callback_there = 1;
     install(0, Subscribed, ok);
     if
     :: ok ->
        cas(0, Subscribed, Empty, ok);
        if
        :: ok -> assert(called == 0)
        :: else -> called > 0; know(0)
        fi
     :: else -> called++; know(0)
     fi;
     callback_there = 0
  fi;
  for (i : 0 .. 1) {
    if
    :: !got[i] -> wait_for(i, 0)
    :: else
    fi
  }
  assert(called <= 1);
  finished = 1
}

init {
  byte mode;
  atomic {
    select(mode : 0 .. 3);
    run consumer(mode);
    run producer(0);
    run producer(1);
    if
    :: mode == 0 || mode == 2 -> run interrupter()
    :: else
    fi
  }
  timeout -> assert(finished && got[0] && got[1])  // when nothing can happen any more, the consumer must not wait
}
