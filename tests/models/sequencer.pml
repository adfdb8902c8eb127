// SPDX-License-Identifier: MIT
// FiberSequencer: each waiter is woken when its count has come, or told that it gave up, exactly once. Nothing is touched that may have
// been destroyed. FairFiberMutex has one owner, and goes on.
//
// `combine` is above 80 lines, because a combiner's turn is one loop: its steps share the loop's labels.
//
// Mirrors kick(), combine(), raise(), request() and cancel() of sync/. Waiters make a request and may give it up at any time.
// Each waiter destroys its Future as soon as that is set. The last waiter to return, if it was not cancelled, destroys the sequencer, while
// fibers that have counted up may still be on their way out. With -DTICKETS the count is a mutex, which is free when the count is even.
// Each waiter that gets the mutex unlocks it.
//
// Left out: how the table finds its waiters, and their order (tests/fiber_sequencer_test.cpp tests that), the fibers' parking (park.pml)
// and the Future's word (future.pml): setting it is one step here. A push onto a stack is one step, and so is taking all of the stack.
//
// holds:
// holds: -DTICKETS
// fails: -DBROKEN_SETTLE
// fails: -DBROKEN_PENDING
// fails: -DBROKEN_RELEASE
// fails: -DBROKEN_STEP
// fails: -DBROKEN_WAKE
// fails: -DTICKETS -DBROKEN_GRANT
// fails: -DTICKETS -DBROKEN_RELEASE
// Mutations. BROKEN_SETTLE: the combiner wakes a waiter whose count has come without a look whether it has given up. BROKEN_PENDING:
// a caller that finds a combiner at work leaves no mark. BROKEN_RELEASE: the combiner lets go without a look for marks. BROKEN_STEP: a
// fiber that has counted up looks for waiters in another step. BROKEN_WAKE: the combiner wakes before it has let go. BROKEN_GRANT: the mutex is given
// away in the step that lets go of it.

#define BUSY 1
#define PENDING 2
#define WAITERS 4
#define ONE 8
#define COUNT(w) (w / ONE)

#ifdef TICKETS
#define USERS 3
#else
#define USERS 2
#endif

byte word;
byte requests, cancels;   // sets of waiters
bit in_table[USERS];
bit there[USERS];         // the waiter's Future exists
bit cancelled[USERS], woken[USERS];
byte result[USERS];       // 1: set to 0, 2: set to ECANCELED
byte token[USERS];
bit gone;                 // the sequencer is destroyed
byte holders;
byte finished;            // waiters that have finished
byte returned;

#define TOUCH assert(!gone)

// ---- the combiner ----

inline settle(i, how) {
  atomic { assert(there[i] && settled[i] == 0 && result[i] == 0); settled[i] = how }
}

inline wake_settled() {
  for (k : 0 .. USERS - 1) {
    if
    :: settled[k] -> atomic { assert(there[k] && result[k] == 0); result[k] = settled[k]; settled[k] = 0 }
    :: else
    fi
  }
}

inline take_up(i) {
  atomic {
    assert(there[i] && in_table[i]);
    in_table[i] = 0;
    woken[i] = 1;
    ours = !cancelled[i];
  }
#ifdef BROKEN_SETTLE
  ours = 1;
#endif
}

inline combine() {
  do
  :: true ->
     atomic { TOUCH; c = cancels; cancels = 0 }
     atomic { TOUCH; r = requests; requests = 0 }
     for (k : 0 .. USERS - 1) {
       if
       :: r & (1 << k) ->
          atomic {
            assert(there[k]);
            if
            :: cancelled[k]
            :: else -> in_table[k] = 1
            fi
          }
       :: else
       fi
     }
     r = 0;
     for (k : 0 .. USERS - 1) {
       if
       :: c & (1 << k) ->
          atomic { assert(there[k]); in_table[k] = 0; woken[k] = 1 }
          settle(k, 2)
       :: else
       fi
     }
     c = 0;
#ifdef TICKETS
     granted = 0;
     for (k : 0 .. USERS - 1) {
       if
       :: in_table[k] && !(COUNT(w) & 1) && !granted ->
          take_up(k);
          if
          :: ours ->
             settle(k, 1);
#ifdef BROKEN_GRANT
             granted = 1
#else
             atomic { TOUCH; word = word + ONE; w = word }
#endif
          :: else
          fi
       :: else
       fi
     }
#else
     for (k : 0 .. USERS - 1) {
       if
       :: in_table[k] && token[k] <= COUNT(w) ->
          take_up(k);
          if
          :: ours -> settle(k, 1)
          :: else
          fi
       :: else
       fi
     }
#endif
#ifdef BROKEN_WAKE
     wake_settled();
#endif
     // Only the combiner touches the table, so this is one step.
     atomic {
       next = COUNT(w) * ONE;
       for (k : 0 .. USERS - 1) {
         if
         :: in_table[k] -> next = next | WAITERS
         :: else
         fi
       }
#ifdef BROKEN_GRANT
       next = next + granted * ONE;
#endif
     }
     atomic {
       TOUCH;
#ifdef BROKEN_RELEASE
       ok = 1;
       word = (word / ONE) * ONE + (next & WAITERS)
#else
       if
       :: word == w && !(w & PENDING) -> word = next; ok = 1
       :: else -> ok = 0
       fi
#endif
     }
     if
     :: ok -> break
     :: else -> atomic { TOUCH; word = word & (255 - PENDING); w = word }
     fi
  od;
  k = 0; next = 0; ours = 0; ok = 0;
  wake_settled();
  k = 0; w = 0
}

inline kick() {
  atomic {
    TOUCH;
    if
    :: word & BUSY ->
#ifndef BROKEN_PENDING
       word = word | PENDING;
#endif
       ok = 0
    :: else -> word = word | BUSY; ok = 1
    fi;
    w = word
  }
  if
  :: ok -> combine()
  :: else -> w = 0
  fi
}

inline increment() {
#ifdef BROKEN_STEP
  atomic { TOUCH; word = word + ONE }
  kick()
#else
  atomic {
    TOUCH;
    w = word;
    if
    :: w & BUSY -> word = (word + ONE) | PENDING; ok = 0
    :: !(w & BUSY) && (w & WAITERS) -> word = (word + ONE) | BUSY; ok = 1
    :: else -> word = word + ONE; ok = 0
    fi;
    w = word
  }
  if
  :: ok -> combine()
  :: else -> w = 0
  fi
#endif
}

// ---- the fibers that count up ----

#ifndef TICKETS
proctype counter() {
  byte w, next, k, c, r;
  byte settled[USERS];
  bit ok, ours;
  increment()
}
#endif

// ---- the waiters ----

proctype waiter(byte me) {
  byte w, next, k, c, r;
  byte settled[USERS];
  bit ok, ours, fast, granted, mine;
#ifdef TICKETS
  // try_lock()
  atomic {
    TOUCH;
    if
    :: !(word & (ONE | WAITERS | BUSY)) -> word = word + ONE; fast = 1
    :: else
    fi
  }
#else
  // reached()
  atomic {
    TOUCH;
    fast = COUNT(word) >= token[me]
  }
#endif
  if
  :: fast -> mine = 1
  :: else ->
     there[me] = 1;
     atomic { TOUCH; requests = requests | (1 << me) }
     kick();
     if
     :: true
     :: true ->  // the waiter gives up, at any time
        atomic {
          if
          :: cancelled[me] || woken[me] -> ok = 0
          :: else -> ok = 1; cancelled[me] = 1
          fi
        }
        if
        :: ok ->
           atomic { TOUCH; cancels = cancels | (1 << me) }
           kick();
           ok = 1
        :: else
        fi;
        result[me];
        assert(ok == (result[me] == 2))
     fi;
     atomic {
       result[me];
       mine = result[me] == 1;
       there[me] = 0;  // from here on no other may touch it
     }
  fi;
  ok = 0;
#ifdef TICKETS
  if
  :: mine ->
     atomic { holders++; assert(holders == 1 && COUNT(word) & 1) }
     holders--;
     increment()
  :: else
  fi;
  finished++
#else
  assert(!mine || COUNT(word) >= token[me]);
  finished++;
  // The last waiter destroys the sequencer, if all counts have come for which waiters are there.
  atomic {
    returned = returned + 1;
    if
    :: returned == USERS && mine && token[me] == 2 -> gone = 1
    :: else
    fi
  }
#endif
}

init {
  byte i;
  atomic {
#ifdef TICKETS
    for (i : 0 .. USERS - 1) { run waiter(i) }
#else
    token[0] = 2;
    token[1] = 1;
    for (i : 0 .. USERS - 1) { run waiter(i) }
    run counter();
    run counter()
#endif
  }
  timeout -> assert(finished == USERS);
  assert(requests == 0 && cancels == 0 && !(word & (BUSY | PENDING | WAITERS)))
}
