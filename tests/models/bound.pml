// SPDX-License-Identifier: MIT
// Bound fibers: a fiber gets a worker of its own while others wake it and run it. It is never run twice at once, is never in a queue
// and handed to its worker at the same time, and is not forgotten. Its worker ends with it, or with their bond, and a worker that comes too
// late ends too. A bond lasts while there is a reason for it.
//
// Mirrors sched_bind(), handed_to_bound() and its callers (enqueue_woken(), suspend(), post_yield(), worker_loop()), await_handed(),
// dismiss(), leave_worker(), the binding by habit in count_loss(), the ends of bonds (sched_unbind(), habit_ended(), post_unbind()), and
// post_exit(). One fiber waits for its flag, and ends. It binds itself before or after its wait, by sched_bind(), for good or for a call that
// fails, or by habit, or it yields. A habit may end whenever its worker is handed the fiber. Another thread binds it at any time. There is one
// worker of the pool, on which the fiber may become bound by habit, and a clone for each thread that may bind it. The pool's other workers,
// without which it would not become bound, never meet it.
//
// Left out: the queue that an entry is in (one counter stands for all), slots, timers, and other effects of the latch (park.pml).
// Memory is sequentially consistent.
//
// holds:
// fails: -DBROKEN_HANDED
// fails: -DBROKEN_HABIT
// fails: -DBROKEN_LATE
// fails: -DBROKEN_TAINT
// fails: -DBROKEN_AGAIN
// fails: -DBROKEN_REASON
// Mutations. BROKEN_HANDED: the worker looks at what it was handed, and then clears `wake`. BROKEN_HABIT: binding by habit reads
// `bound` and then stores it, and forgets a worker that another thread has bound meanwhile. BROKEN_LATE: the binding thread does not check
// whether the fiber has ended. BROKEN_TAINT: a thread that finds the fiber bound by habit does not taint that worker.
// BROKEN_AGAIN: that thread does not look again when the bond has ended meanwhile. BROKEN_REASON: the end of a bond does not ask whether
// there is a reason for it.

#ifndef POOL
#define POOL 1
#endif
#define WORKERS (POOL + 2)      // the fiber's own clone is POOL + 1, the binder's is POOL + 2

mtype = { Queued, Running, Parked, Done };
mtype = { PostPark, PostYield, PostUnbind, PostExit };

mtype state = Queued;
bit pending, flag;
byte entries;                   // in queues
bit saved = 1, resumed;
byte on;                        // worker that the fiber runs on, from 1
byte bound;                     // FiberRecord::run.bound
bit join_lock, over;

mtype post[WORKERS + 1];
bit started[WORKERS + 1];       // the kernel thread exists
bit left[WORKERS + 1];          // the kernel thread has ended
bit tainted[WORKERS + 1];
bit own[WORKERS + 1];           // Worker::bond.fiber is the fiber
bit handed[WORKERS + 1];
bit wake[WORKERS + 1];
bit leaves[WORKERS + 1];
bit for_call[WORKERS + 1];      // reasons of the bond: a call of the fiber, and all others
bit for_good[WORKERS + 1];

byte when, how;                 // when the fiber binds itself: 0 never (it yields), 1 first, 2 after its wait
                                // how: 0 sched_bind(), 1 habit, 2 sched_bind() for a call that fails
bit finished, bound_by_other;
byte told;                      // worker that the binder was told to give properties to

inline get_up(w) { wake[w] = 1 }

// Puts the fiber into the queues, or hands it to its worker.
inline enqueue(here) {
  if
  :: atomic { bound && bound != here -> b = bound }
     atomic { assert(!handed[b] && entries == 0 && !left[b]); handed[b] = 1 }
     atomic { get_up(b); b = 0 }
  :: else -> atomic { assert(entries == 0); d_step { w0 = 1; do :: w0 <= WORKERS -> assert(!handed[w0]); w0++ :: else -> break od; w0 = 0 } entries++ }
  fi
}

inline cas(from, to, ok) {
  atomic {
    if
    :: state == from -> state = to; ok = 1
    :: else -> ok = 0
    fi
  }
}

inline dismiss(w) { leaves[w] = 1; get_up(w) }

inline add_reason(w, call) {
  if
  :: call -> for_call[w] = 1
  :: else ->
     for_good[w] = 1;
#ifndef BROKEN_TAINT
     tainted[w] = 1
#endif
  fi
}

inline start(w) { atomic { own[w] = 1; tainted[w] = 1; started[w] = 1; run worker(w) } }

// sched_bind(), up to the yield() of a fiber that binds itself.
inline bind(clone, ended, call) {
  again = 1;
  do
  :: !again -> break
  :: again ->
  again = 0; mine = 0;
  if
  :: !bound -> start(clone); mine = clone
  :: else
  fi;
  atomic { !join_lock -> join_lock = 1 }
#ifdef BROKEN_LATE
  ended = 0;
#else
  ended = over;
#endif
  atomic {
    if
    :: !ended && mine && !bound -> bound = mine; add_reason(mine, call); mine = 0
    :: !ended && bound ->
       add_reason(bound, call)
    :: !ended && !mine && !bound ->
#ifndef BROKEN_AGAIN
       again = 1
#else
       skip
#endif
    :: ended
    fi
  }
  if
  :: mine -> leaves[mine] = 1; atomic { get_up(mine); mine = 0 }
  :: else
  fi;
  join_lock = 0
  od
}

// ---- the fiber ----

inline suspend(action) {
  atomic { saved = 1; post[on] = action; on = 0 }
  atomic { resumed -> resumed = 0 }
}

inline bind_itself() {
  if
  :: how != 1 ->
     bind(POOL + 1, ended, how == 2);
     assert(!ended);
     // yield()
     if
     :: bound != on -> suspend(PostYield)
     :: else
     fi;
     assert(bound == on);
     if
     :: how == 2 ->  // sched_unbind()
        for_call[on] = 0;
        if
        :: !for_good[on] && tainted[on] -> suspend(PostUnbind)
        :: else
        fi;
        assert(!bound || bound == on || bound == POOL + 2)
     :: else
     fi
  :: how == 1 && on <= POOL ->  // settle(): only on a worker that had a slot to lose
#ifdef BROKEN_HABIT
     if
     :: !bound -> bound = on; own[on] = 1
     :: else
     fi
#else
     atomic {
       if
       :: !bound -> bound = on; own[on] = 1
       :: else
       fi
     }
#endif
  :: else
  fi
}

proctype fiber() {
  bit ended, again;
  byte mine;
  atomic { resumed -> resumed = 0 }
  if
  :: when == 0 -> suspend(PostYield)
  :: when == 1 -> bind_itself()
  :: else
  fi;
  do
  :: flag -> break
  :: else ->
     if
     :: pending -> pending = 0
     :: else -> suspend(PostPark)
     fi
  od;
  if
  :: when == 2 -> bind_itself()
  :: else
  fi;
  finished = 1;
  atomic { saved = 1; post[on] = PostExit; on = 0; mine = 0 }
}

// ---- workers ----

// end_bond(), by the worker itself.
inline end_bond(ended) {
  atomic { !join_lock -> join_lock = 1 }
  atomic {
    if
#ifndef BROKEN_REASON
    :: for_call[me] || for_good[me] -> ended = 0
#endif
    :: else -> ended = 1; bound = 0
    fi;
    join_lock = 0
  }
  if
  :: ended && tainted[me] -> dismiss(me)
  :: ended && !tainted[me] -> own[me] = 0
  :: else
  fi
}

inline run_it() {
  atomic {
    assert(state == Queued);
    state = Running;
    assert(saved && !on && !resumed && entries == 0);  // the fiber is off its stack, and nowhere else
    saved = 0; on = me; resumed = 1
  }
  if
  :: atomic { post[me] == PostPark -> state = Parked }
     if
     :: pending ->
        cas(Parked, Queued, ok);
        if
        :: ok -> ok = 0; enqueue(0)
        :: else
        fi
     :: else
     fi
  :: atomic { post[me] == PostYield -> state = Queued }
     enqueue(0)
  :: post[me] == PostUnbind ->
     end_bond(ok);
     atomic { ok = 0; state = Queued }
     enqueue(0)
  :: atomic { post[me] == PostExit && !join_lock -> join_lock = 1; state = Done; over = 1 }
     atomic { b = bound; bound = 0; join_lock = 0 }
     if
     :: b && tainted[b] -> dismiss(b)
     :: b && !tainted[b] -> assert(b == me); own[b] = 0
     :: else
     fi
  fi;
  atomic { b = 0; post[me] = 0 }
}

inline await_handed() {
  got = 0;
  do
  :: !own[me] || leaves[me] -> break
  :: else ->
#ifdef BROKEN_HANDED
     if
     :: handed[me] -> handed[me] = 0; got = 1; break
     :: else
     fi;
     wake[me] = 0;
     if
     :: leaves[me]
     :: else -> wake[me]
     fi
#else
     atomic {
       if
       :: handed[me] -> handed[me] = 0; got = 1
       :: else
       fi
     }
     if
     :: got -> break
     :: else
     fi;
     wake[me] = 0;
     if
     :: handed[me] || leaves[me]
     :: else -> wake[me]
     fi
#endif
  od
}

proctype worker(byte me) {
  bit ok, got;
  byte b, w0;
end:
  do
  :: leaves[me] -> break
  :: !leaves[me] && own[me] ->
     await_handed();
     if
     :: got -> got = 0; run_it()
     // habit_ended()
     :: got && !for_call[me] && !for_good[me] ->
        got = 0;
        end_bond(ok);
        if
        :: ok -> ok = 0; enqueue(0)
        :: else -> run_it()
        fi
     :: else
     fi
  :: atomic { !leaves[me] && !own[me] && entries > 0 -> entries-- }
     // An entry of a queue, which worker_loop() or suspend() has found.
     if
     :: bound && bound != me -> enqueue(me)
     :: else -> run_it()
     fi
  od;
  atomic { assert(!handed[me]); left[me] = 1 }
}

// ---- others ----

proctype waker() {
  mtype s;
  bit ok;
  byte b, w0;
  flag = 1;
  s = state;
  do
  :: s == Parked ->
     cas(Parked, Queued, ok);
     if
     :: ok -> ok = 0; enqueue(0); break
     :: else -> s = state
     fi
  :: s == Running || s == Queued ->
     pending = 1;
     s = state;
     if
     :: s == Parked
     :: else -> break
     fi
  :: s == Done -> break
  od
}

proctype binder() {
  bit ended, again;
  byte mine;
  bind(POOL + 2, ended, 0);
  atomic {
    told = bound;
    bound_by_other = 1;
    assert(told || over);            // or the fiber has ended
    assert(!told || tainted[told])  // no other fiber gets the properties that the binder gives to the worker
  }
}

byte i;

init {
  atomic {
    select(when : 0 .. 2);
    if
    :: when -> how = 0
    :: when -> how = 1
    :: when -> how = 2
    :: else
    fi;
    i = 1;
    do
    :: i <= POOL -> started[i] = 1; run worker(i); i++
    :: else -> break
    od;
    i = 0;
    entries = 1;
    run fiber();
    run waker();
    if
    :: run binder()
    :: bound_by_other = 1
    fi
  }
  timeout ->
  d_step {
    assert(finished && bound_by_other && !entries && !bound);
    i = 1;
    do
    :: i <= WORKERS ->
       assert(!handed[i]);
       // All clones that were made have ended. A pool worker has ended if it was tainted, and no other pool worker has.
       assert(left[i] == (started[i] && tainted[i]));
       assert(i > POOL || left[i] || !own[i]);
       i++
    :: else -> break
    od
  }
}
