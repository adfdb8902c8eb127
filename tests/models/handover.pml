// SPDX-License-Identifier: MIT
// Hand-over of slots: a slot is never used by two workers at once, and never lost.
//
// Mirrors Entry, Entry::settle(), suspend(), arrive(), prepare_run(), take_free_slot(), go_idle() and Blocking of sched/run/
// as far as they touch in_sched, revoked, heartbeat and slot, and look_at(), try_take() of sched/sysmon.cpp with
// hand_slot_to_spare(). There are two workers and two slots. A worker in fiber code may stay there for ever. Sysmon takes slots only from
// worker 0, and only worker 0 has a store buffer and gives slots away. With -DBOTH that holds for both workers (15 million states and more:
// to be run by hand, and not each day).
//
// A worker's plain stores go through a store buffer (x86). Its locked instructions wait until that is empty. Sysmon's
// membarrier makes each worker do so once. Sections under idle_lock are one step. Sysmon's own stores follow locked
// instructions. A use of a slot lasts until the store that ends it has left the buffer. The heartbeat is a bit that says
// "changed since sysmon looked", so that it does not wrap. Left out: queues, new workers, and which workers are asleep (any worker may look
// asleep).
//
// holds:
// fails: -DBROKEN_MEMBARRIER
// fails: -DBROKEN_HEARTBEAT
// fails: -DBROKEN_SETTLE
// fails: -DBROKEN_BLOCKING
// Mutations. BROKEN_MEMBARRIER: sysmon does no membarrier. BROKEN_HEARTBEAT: sysmon does not compare the heartbeat. BROKEN_SETTLE: the
// worker gives its claim up by a plain store, not by CAS. BROKEN_BLOCKING: a worker that gives its slot away does not change the heartbeat.

#define W 2
#define SLOTS 2

mtype = { Kept, Asked, Taken };
mtype = { Enter, Leave, Beat, Slot, Revoked };  // stores

#define none SLOTS

#ifdef BOTH
#define BUFFERED(w) true
#else
#define BUFFERED(w) (w == 0)
#endif

// Memory.
bit in_sched[W];
bit beat[W];              // heartbeat changed since sysmon looked
byte slot[W] = none;      // Worker::run.slot
mtype revoked[W] = Kept;
bit idle[W];              // in the idle list
bit free[SLOTS];

chan buffer[W] = [4] of { mtype, byte };

// These are for the assertions only.
byte uses[4];             // by worker 0 of slot 0, 1, by worker 1 of slot 0, 1
bit handing[SLOTS];       // sysmon, or a worker that gives the slot away, has it

#define use_of(w, s) uses[2 * (w) + (s)]
#define holds(w, s) (slot[w] == s && revoked[w] != Taken)
#define in_one_place(s) (holds(0, s) + holds(1, s) + free[s] + handing[s] == 1)
#define sound in_one_place(0) && in_one_place(1)

inline store(at, value) {
  if
  :: at == Enter -> in_sched[me] = 1
  :: at == Leave ->
     in_sched[me] = 0;
     if
     :: value != none -> use_of(me, value)--
     :: else
     fi
  :: at == Beat -> beat[me] = 1
  :: at == Slot ->
     if
     :: value == none && slot[me] != none && revoked[me] != Taken -> handing[slot[me]] = 1
     :: else
     fi;
     slot[me] = value
  :: at == Revoked -> revoked[me] = value
  fi;
  assert(sound)
}

inline put(at, value) {
  atomic {
    if
    :: BUFFERED(me) -> buffer[me]!at, value
    :: else -> store(at, value)
    fi
  }
}
#define locked (len(buffer[me]) == 0)

inline use() {
  if
  :: mine != none -> assert(use_of(1 - me, mine) == 0); use_of(me, mine)++
  :: else
  fi
}

// in_sched = 0, which ends the use of the slot.
inline leave() { put(Leave, mine) }

inline settle() {
  if
#ifdef BROKEN_SETTLE
  :: r == Asked -> put(Revoked, Kept)
  :: else ->
#else
  :: atomic { locked && revoked[me] == Asked -> revoked[me] = Kept }
  :: locked && revoked[me] == Kept
  :: locked && revoked[me] == Taken ->
#endif
     atomic { put(Slot, none); put(Revoked, Kept); mine = none }
  fi
}

inline enter() {
  put(Enter, 1);
  atomic {
    // A worker reads its own store while that is in the buffer.
    if
    :: buffer[me]??[Revoked, eval(Kept)] -> r = Kept
    :: else -> r = revoked[me]
    fi;
    if
    :: r == Kept -> use()
    :: else
    fi
  }
  if
  :: r != Kept -> settle(); atomic { use(); r = Kept }
  :: else
  fi
}

inline take_free_slot() {
  locked;
  if
  :: free[0] -> free[0] = 0; mine = 0
  :: free[1] -> free[1] = 0; mine = 1
  :: else -> mine = none
  fi;
  slot[me] = mine;
  assert(sound)
}

// The worker gives its own slot away. The lock in hand_slot_to_spare() comes after the stores.
inline give_away() {
  atomic { put(Slot, none); handed = mine }
#ifndef BROKEN_BLOCKING
  put(Beat, 1);
#endif
  atomic {
    locked;
    use_of(me, mine)--;
    assert(use_of(me, mine) == 0);
    if
    :: idle[1 - me] -> idle[1 - me] = 0; slot[1 - me] = handed
    :: else -> free[handed] = 1
    fi;
    handing[handed] = 0;
    mine = none; handed = none;
    assert(sound)
  }
}

proctype worker(byte me) {
  byte handed = none;
  byte mine = none;  // the value that the worker reads in its own `slot`
  mtype r = Kept;
  goto context;
fiber:
  if
  :: true -> enter(); leave(); goto fiber                   // queues something
  :: BUFFERED(me) ->                                        // Blocking begins
     enter();
     if
     :: mine != none -> give_away()
     :: else
     fi;
     leave();
     goto fiber
  :: BUFFERED(me) ->                                        // and ends
     enter();
     if
     :: mine == none -> atomic { take_free_slot(); use() }
     :: else
     fi;
     leave();
     goto fiber
  :: true -> enter()                                        // parks
  fi;
  if
  :: mine != none -> goto go_on                     // straight to the next fiber
  :: true
  fi;
context:
  if
  :: mine == none -> atomic { take_free_slot(); use() }
  :: else
  fi;
  if
  :: mine != none -> goto go_on
  :: true
  fi;
  // go_idle()
  atomic {
    locked;
    if
    :: mine != none -> use_of(me, mine)--; assert(use_of(me, mine) == 0); free[mine] = 1
    :: else
    fi;
    mine = none; slot[me] = none; idle[me] = 1;
    assert(sound)
  }
  // The worker is woken, or gets up by itself.
end:
  atomic {
    if
    :: slot[me] != none
    :: free[0] || free[1]
    fi;
    idle[me] = 0; mine = slot[me];
    use()
  }
  goto context;
go_on:
  atomic { put(Beat, 1); leave() }
  goto fiber
}

proctype drain(byte me) {
  mtype a;
  byte v;
end:
  do
  :: atomic { buffer[me]?a, v -> store(a, v); a = 0; v = 0 }
  od
}

inline hand_to_spare() {
  atomic {
    if
    :: idle[1 - w] -> idle[1 - w] = 0; slot[1 - w] = s
    :: else -> free[s] = 1
    fi;
    handing[s] = 0;
    assert(sound);
    s = none
  }
}

proctype sysmon() {
  byte w, s = none;
  do
  :: atomic {
       s = none;
       w = 0;
#ifdef BOTH
       if
       :: w = 1
       :: true
       fi;
#endif
       beat[w] = 0  // sysmon reads the heartbeat
     }
     if
     :: in_sched[w]
     :: else ->
        atomic {
          if
          :: revoked[w] == Kept -> revoked[w] = Asked
          :: else -> goto next
          fi
        }
#ifndef BROKEN_MEMBARRIER
        len(buffer[0]) == 0;
        len(buffer[1]) == 0;
#endif
        s = slot[w];
        if
        :: in_sched[w] -> goto keep
        :: else
        fi;
        if
#ifndef BROKEN_HEARTBEAT
        :: beat[w] -> goto keep
#endif
        :: else
        fi;
        if
        :: s == none -> goto keep
        :: else
        fi;
        atomic {
          if
          :: revoked[w] == Asked ->
             assert(slot[w] == s);
             revoked[w] = Taken; handing[s] = 1;
             assert(sound)
          :: else -> goto next
          fi
        }
        hand_to_spare();
        goto next;
keep:   atomic {
          if
          :: revoked[w] == Asked -> revoked[w] = Kept
          :: else
          fi
        }
     fi;
next: skip
  od
}

init {
  atomic {
    free[0] = 1; free[1] = 1;
    in_sched[0] = 1; in_sched[1] = 1;
    run worker(0); run worker(1);
    run drain(0); run drain(1);
    run sysmon()
  }
}
