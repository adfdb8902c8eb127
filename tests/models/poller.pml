// SPDX-License-Identifier: MIT
// The poller: some worker takes what epoll has for a waiting fiber, however late. A watcher that is called gets up.
//
// `worker` is above 80 lines, because a process that mirrors a worker's loop is one piece: its labels cannot be reached from elsewhere.
//
// Mirrors go_idle(), find(), get_up(), poll_get_watcher() and poll_wake_again() of sched/run/, the end of
// poll_wait_any(), and of sysmon its look and how it falls asleep. There are two workers and SLOTS slots. A fiber waits for a descriptor,
// wakes an idle worker, parks for something else, or computes for ever. Whether another
// worker harvests events all the time (attended_without()) may be answered in either way at any time.
//
// The model fails where nothing can happen any more although epoll has an event, or although a watcher that was called sleeps on. When
// sysmon is awake, it looks again only after something has changed, because it would see the same.
//
// Left out: queues (idle.pml), descriptors' own lists (under a lock), timers. A section under idle_lock is one step, and so is
// an epoll_wait that returns. A worker says by a plain store that it is the watcher no more. The store stays in its store buffer until its
// next locked instruction, a membarrier, or any time before (x86).
//
// holds:
// holds: -DSLOTS=1
// by hand, for its 29 million states: -DWAITS=2 -DCALLS=2
// fails: -DBROKEN_BEGIN
// fails: -DBROKEN_UP
// fails: -DBROKEN_SECOND
// fails: -DBROKEN_MEMBARRIER
// fails: -DBROKEN_BELL
// Mutations. BROKEN_BEGIN: a fiber that begins a wait without a watcher pokes no worker. BROKEN_UP: a watcher that gets up pokes none.
// BROKEN_SECOND: sysmon falls asleep without another look at whether there is a watcher. BROKEN_MEMBARRIER: sysmon
// does not make the workers' stores seen. BROKEN_BELL: a worker that takes the watcher's call out of epoll does not call it again.

#define W 2
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WAITS
#define WAITS 1           // waits for descriptors
#endif
#ifndef CALLS
#define CALLS 1           // of idle workers, by fibers that queue something
#endif
#define none 255

byte watcher = none;      // poll_watcher
bit leaves[W];            // the worker's store of none is in its store buffer
bit idle[W], wake[W], in_poller[W], slot[W];
byte free = SLOTS;
byte waiting, event, waits = WAITS, calls = CALLS;
bit opened;               // poll_active(): set by the first wait
bit bell;                 // epoll has wake_fd's edge
bit asleep, on_poller;    // sysmon's
bit changed;

#define watched (watcher != none)
// Whether there is a watcher, as worker `me` sees it, which reads its own store.
#define i_see_watched (watcher != none && !(watcher == me && leaves[me]))

inline sysmon_poke() {
  atomic {
    if
    :: asleep -> asleep = 0; changed = 1
    :: else
    fi
  }
}

inline harvest() {  // an epoll_wait that returns, and poll_dispatch()
  atomic {
    waiting = waiting - event; event = 0; changed = 1;
    if
    :: bell ->
       bell = 0;
#ifndef BROKEN_BELL
       // The watcher itself does not: it goes on to look at `wake`.
       if
       :: watched && watcher != who && wake[watcher] -> bell = 1
       :: else
       fi
#endif
    :: else
    fi
  }
}

inline get_up(v) {
  atomic { wake[v] = 1; changed = 1 }
  atomic {
    if
    :: in_poller[v] -> bell = 1
    :: else
    fi
  }
}

inline flush(w) {
  atomic {
    if
    :: leaves[w] ->
       leaves[w] = 0; changed = 1;
       if
       :: watcher == w -> watcher = none
       :: else
       fi
    :: else
    fi
  }
}

proctype worker(byte me) {
  byte v, who = me;
  bit watches;
  if
  :: slot[me] -> goto fiber
  :: else -> goto nothing
  fi;

fiber:
  if
  :: atomic { waits > 0 -> waits--; waiting++; opened = 1; changed = 1; flush(me) }  // under the descriptor's lock
#ifndef BROKEN_BEGIN
     if
     :: i_see_watched
     :: else -> sysmon_poke()
     fi
#endif
  :: atomic { calls > 0 -> calls--; flush(me) }
     atomic {
       v = none;
       if
       :: free > 0 && idle[0] && (watcher != 0 || !idle[1]) -> v = 0
       :: free > 0 && idle[1] && (watcher != 1 || !idle[0]) -> v = 1
       :: else
       fi;
       if
       :: v != none -> idle[v] = 0; free--; slot[v] = 1; changed = 1
       :: else
       fi
     }
     if
     :: v != none -> get_up(v)
     :: else -> sysmon_poke()
     fi;
     goto fiber
  :: true
  :: true ->
end_busy:
     false
  fi;

find:
  if
  :: !slot[me] ->
     atomic {
       flush(me);
       if
       :: free > 0 -> free--; slot[me] = 1; changed = 1
       :: else
       fi
     }
     if
     :: !slot[me] -> goto nothing
     :: else
     fi
  :: else
  fi;
  harvest();
  if
  :: goto fiber  // the harvest has made a fiber runnable
  :: true
  fi;

nothing:
  atomic {
    flush(me);
    if
    :: slot[me] -> slot[me] = 0; free++
    :: else
    fi;
    wake[me] = 0; idle[me] = 1; changed = 1;
    watches = 0;
    if
    :: opened && !watched -> watcher = me; watches = 1
    :: opened && !watched && free < SLOTS  // attended
    :: !opened || watched
    fi
  }
  if
  :: watches ->
     atomic { in_poller[me] = 1; changed = 1 }
     if
     :: wake[me]
     :: else ->
end_watch:
        atomic { event > 0 || bell -> harvest() }
     fi;
     in_poller[me] = 0
  :: else ->
end_sleep:
     wake[me]
  fi;
  atomic {
    flush(me);
    idle[me] = 0; changed = 1;
    if
    :: watches -> leaves[me] = 1
    :: else
    fi
  }
#ifndef BROKEN_UP
  if
  :: watches -> sysmon_poke()
  :: else
  fi;
#endif
  goto find
}

proctype store_buffer(byte w) {
end:
  do
  :: atomic { leaves[w] -> flush(w) }
  od
}

proctype kernel() {
end:
  do
  :: atomic { event < waiting -> event++; changed = 1 }
  od
}

proctype sysmon() {
  byte v, who = none;
look:
  changed = 0;
  if
  :: opened && !watched ->
     harvest();
     if
     :: true ->
        atomic {
          v = none;
          if
          :: !watched && free > 0 && idle[0] -> v = 0
          :: !watched && free > 0 && idle[1] -> v = 1
          :: else
          fi
        }
        if
        :: v != none -> get_up(v)
        :: else
        fi
     :: true  // attended
     fi
  :: else
  fi;
  if
  :: true ->  // quiet for long
     on_poller = opened && !watched;
     atomic { asleep = 1; changed = 1 }
#ifndef BROKEN_MEMBARRIER
     flush(0);
     flush(1);
#endif
#ifndef BROKEN_SECOND
     if
     :: opened && !watched && !on_poller -> asleep = 0
     :: else ->
#endif
end_deep:
        atomic { !asleep || (on_poller && (event > 0 || bell)) -> asleep = 0 }
#ifndef BROKEN_SECOND
     fi
#endif
  :: true ->
end_short:
     changed
  fi;
  goto look
}

init {
  atomic {
    slot[0] = 1; free--;
    run worker(0); run worker(1);
    run store_buffer(0); run store_buffer(1);
    run kernel(); run sysmon()
  }
  timeout -> assert(event == 0 && !(in_poller[0] && wake[0]) && !(in_poller[1] && wake[1]))
}
