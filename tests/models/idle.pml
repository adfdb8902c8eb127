// SPDX-License-Identifier: MIT
// Idleness: while work is queued, a worker is on the way to it.
//
// Above 500 lines, and `worker` above 80, because a process that mirrors a worker's loop is one piece: its labels cannot be reached from
// elsewhere.
//
// Mirrors enqueue_woken(), enqueue_local(), wake_if_needed(), stop_searching(), go_idle(), retire(), find(), pick(), steal(),
// post_yield(), Inbox::pop() and hand_slot_to_spare() of sched/, and of sysmon its look, sysmon_poke() and how it falls
// asleep. There are two workers and SLOTS slots. A fiber queues other fibers, yields, ends, or blocks in the kernel. A foreign thread
// queues some fibers as well. But for RESERVE there is no preemption: a fiber runs until it does one of these.
//
// The model fails where nothing can happen any more although work is queued. (Only one worker can be blocked.) When sysmon is awake, it
// looks again only after something has changed, because it would see the same. So the model also finds what sysmon overlooks for ever.
//
// With ENDS, a worker that sleeps may end at any time if the other has not, and is started anew where no idle worker is found. Otherwise
// workers are not started anew, as if there were no memory for them.
//
// With RESERVE, slot 1 is the reserve's at first. Fibers are also preempted as hogs, and heavy ones woken, which only a slot of the other kind may
// run. Then leave_reserve_if_possible() is mirrored too.
//
// Left out: how a slot is taken (handover.pml; one step here), timers, deadlines, the order in queues, fair ticks, how the reserve comes and
// goes. Each of these is one step: a section under idle_lock, a look at one slot's queues, and sysmon's first look at everything. A plain store
// to a queue stays in the worker's store buffer until the worker's next locked instruction, a membarrier, or any time before (x86).
//
// holds:
// by hand, for its 7 million states: -DSLOTS=1 -DSPAWNS=1 -DFOREIGN=1
// holds: -DSPAWNS=0 -DWAITING=2
// holds: -DSPAWNS=0 -DLOCAL=2
// holds: -DBACK -DSPAWNS=1
// holds: -DBACK -DSLOTS=1
// holds: -DENDS -DSPAWNS=1
// holds: -DENDS -DBACK -DSLOTS=1 -DSPAWNS=1
// holds: -DRESERVE -DSPAWNS=1 -DHOGS=1
// holds: -DRESERVE -DSPAWNS=0 -DHOGS=2
// fails: -DBROKEN_MEMBARRIER
// fails: -DBROKEN_YIELD
// fails: -DBROKEN_SEARCHING
// fails: -DSPAWNS=0 -DWAITING=2 -DBROKEN_INBOX
// fails: -DENDS -DSPAWNS=1 -DBROKEN_END
// fails: -DRESERVE -DSPAWNS=0 -DHOGS=2 -DBROKEN_HEAVY
// by hand, within 4 GB: fails: -DRESERVE -DSPAWNS=0 -DHOGS=1 -DFOREIGN=1 -DBROKEN_HOG (without BROKEN_HOG, no fault in 68 million states)
// Mutations. BROKEN_MEMBARRIER: sysmon falls asleep without one. BROKEN_YIELD: a yielding fiber pokes no worker. BROKEN_SEARCHING:
// go_idle() stops to count as searching when it is in the list already, where sysmon may have given it a slot and counted it
// anew. BROKEN_INBOX: while a worker takes an inbox's list, no other worker can see the rest of the list. BROKEN_END: a worker ends without a
// look at whether it is in the list still. BROKEN_HEAVY: who wakes a heavy fiber wakes no worker for it. BROKEN_HOG: the last worker to stop
// searching does not look for hogs.

#define W 2
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef SPAWNS
#define SPAWNS 2          // fibers that fibers queue, and times that they yield
#endif
#ifndef FOREIGN
#define FOREIGN 0         // fibers that a foreign thread queues
#endif
#ifndef WAITING
#define WAITING 0         // fibers in slot 0's inbox at first
#endif
#ifndef LOCAL
#define LOCAL 0           // fibers in its local queue at first
#endif
#ifndef HOGS
#define HOGS 0            // fibers that become hogs
#endif
#ifdef BACK               // a blocked worker comes back, without its slot
#define comes_back slot[me] == none
#else
#define comes_back false
#endif
#define none 255

byte next[SLOTS], local_[SLOTS], head[SLOTS], front[SLOTS], global_;
bit has_front[SLOTS], consumer[SLOTS];
bit free[SLOTS];
byte slot[W] = none;
bit searching_[W];        // Worker::look.searching
bit idle[W], wake[W];
bit ended[W];             // its kernel thread has ended
byte searching;
byte asleep;              // sysmon's: 0 awake, 1 deep, 2 short

mtype = { Nothing, Next, Local };
mtype buffer[W] = Nothing;
byte buffer_slot[W];

bit blocked[W];           // in the kernel; one at a time
bit changed;              // something has changed since sysmon began to look
byte spawns = SPAWNS, new_hogs = HOGS;

#if SLOTS == 2
#define any_free (free[0] || free[1])
#else
#define any_free free[0]
#endif
#ifdef RESERVE
byte hogs;                // in their line, or woken
byte usual;               // the slot that is not the reserve's
#define free_for_hogs free[usual]
#else
#define hogs 0
#define usual 0
#define free_for_hogs any_free
#endif
#define inbox_seen(s) (head[s] > 0 || has_front[s])
#define seen(s) (next[s] > 0 || local_[s] > 0 || inbox_seen(s))
#define flushed (buffer[me] == Nothing)

// ---- shared ----

inline flush(w) {
  if
  :: buffer[w] == Next -> next[buffer_slot[w]] = 1
  :: buffer[w] == Local -> local_[buffer_slot[w]]++
  fi;
  buffer[w] = Nothing; buffer_slot[w] = 0;
  changed = 1
}

inline sysmon_poke() {
  atomic {
    if
    :: asleep == 1 -> asleep = 0
    :: else
    fi
  }
}

// Under the idle lock. s becomes none if no slot is free.
inline pop_free_slot(s) {
  if
  :: free[usual] -> s = usual; free[usual] = 0
#if SLOTS == 2
  :: !free[usual] && free[1 - usual] -> s = 1 - usual; free[1 - usual] = 0
#endif
  :: else -> s = none
  fi
}

inline pop_idle_worker(v) {
  if
  :: idle[0] -> v = 0; idle[0] = 0
  :: !idle[0] && idle[1] -> v = 1; idle[1] = 0
  // It is started anew.
  :: !idle[0] && !idle[1] && ended[0] -> v = 0; ended[0] = 0
  :: !idle[0] && !idle[1] && !ended[0] && ended[1] -> v = 1; ended[1] = 0
  :: else -> v = none
  fi
}

inline wake_if_needed(for_hog) {
  if
  :: !(for_hog -> free_for_hogs : any_free) -> sysmon_poke()
  :: else ->
     atomic {
       if
       :: searching == 0 -> searching = 1; go = 1; changed = 1
       :: else
       fi
     }
     if
     :: go ->
        atomic {
          go = 0;
          pop_free_slot(s);
          if
          :: s != none ->
             pop_idle_worker(v);
             if
             :: v != none -> slot[v] = s; searching_[v] = 1; s = none
             :: else
             fi
          :: else
          fi
        }
        if
        :: v != none -> atomic { wake[v] = 1; v = none; changed = 1 }
        :: else ->
           if
           :: s != none -> atomic { free[s] = 1; s = none; changed = 1 }
           :: else
           fi;
           atomic { searching--; changed = 1 }
           sysmon_poke()
        fi
     :: else
     fi
  fi
}

inline work_queued() {
  queued = global_ > 0;
  queued = queued || seen(0);
#if SLOTS == 2
  queued = queued || seen(1);
#endif
  only_hogs = !queued && hogs > 0;
  queued = queued || hogs > 0
}
#define can_run (only_hogs -> free_for_hogs : any_free)

// ---- workers ----

#define mine slot[me]

inline enqueue_local() {
  if
  :: mine != none -> atomic { flushed; buffer[me] = Local; buffer_slot[me] = mine }
  :: else -> atomic { flushed; global_++; changed = 1 }
  fi
}

inline enqueue_woken() {
  if
  :: mine != none && flushed && next[mine] == 0 ->
     atomic { buffer[me] = Next; buffer_slot[me] = mine }
     sysmon_poke()
  :: else ->
     atomic {
       flushed;
       if
       :: mine != none -> local_[mine]++
       :: else -> global_++
       fi;
       changed = 1
     }
     wake_if_needed(0)
  fi
}

inline inbox_pop(n) {
  atomic {
    if
    :: !f && inbox_seen(n) && !consumer[n] ->
       consumer[n] = 1; draining = 1; changed = 1;
#ifndef BROKEN_INBOX
       has_front[n] = 1;
#endif
       if
       :: front[n] == 0 -> list = head[n]; head[n] = 0
       :: else
       fi
    :: else
    fi
  }
  if
  :: draining ->
     atomic {
       front[n] = front[n] + list; list = 0;
       if
       :: front[n] > 0 -> front[n]--; f = 1
       :: else
       fi;
       has_front[n] = front[n] > 0;
       consumer[n] = 0; draining = 0; changed = 1
     }
  :: else
  fi
}

inline pop(queue) {
  atomic {
    flushed;
    if
    :: !f && queue > 0 -> queue--; f = 1; changed = 1
    :: else
    fi
  }
}

inline pick() {
  if
  :: mine != none ->
#ifdef RESERVE
     atomic {  // leave_reserve_if_possible()
       if
       :: mine != usual && free[usual] -> flushed; usual = mine; changed = 1
       :: else
       fi
     }
#endif
     // Only this worker adds to the first two queues, so it looks at both in one step.
     atomic {
       flushed;
       if
       :: next[mine] > 0 -> next[mine] = 0; f = 1; changed = 1
       :: next[mine] == 0 && local_[mine] > 0 -> local_[mine]--; f = 1; changed = 1
       :: else
       fi
     }
     inbox_pop(mine);
     pop(global_);
#ifdef RESERVE
     if
     :: mine == usual -> pop(hogs)
     :: else
     fi
#endif
  :: else
  fi
}

inline steal_from(n) {
  inbox_pop(n);
  atomic {
    flushed;
    if
    // Takes half of the queue. The fibers are in no queue until they are in this worker's.
    :: !f && n != mine && local_[n] > 0 -> list = local_[n] / 2; local_[n] = local_[n] - list - 1; f = 1; changed = 1
    :: !f && n != mine && local_[n] == 0 && next[n] > 0 -> next[n] = 0; f = 1; changed = 1
    :: !f && n != mine && local_[n] == 0 && next[n] > 0  // too young
    :: else
    fi
  }
  if
  :: list > 0 -> atomic { local_[mine] = local_[mine] + list; list = 0; changed = 1 }
  :: else
  fi
}

inline start_searching() {
  if
  :: !searching_[me] -> atomic { flushed; searching_[me] = 1; searching++; changed = 1 }
  :: else
  fi
}

inline take_free_slot() {
  atomic {
    flushed;
    pop_free_slot(s);
    mine = s; s = none; changed = 1
  }
}

inline go_idle() {
  atomic {
    flushed;
    if
    :: mine != none -> free[mine] = 1; mine = none
    :: else
    fi;
    wake[me] = 0; idle[me] = 1; changed = 1;
#ifndef BROKEN_SEARCHING
    counted = searching_[me]; searching_[me] = 0
#endif
  }
#ifdef BROKEN_SEARCHING
  atomic { counted = searching_[me]; searching_[me] = 0 }
#endif
  if
  :: counted -> atomic { counted = 0; searching--; changed = 1 }
  :: else
  fi;
  work_queued();
  if
  :: queued && !can_run -> sysmon_poke(); queued = 0
  :: else
  fi;
  if
  :: queued
  :: else ->
end_sleep:
     if
     :: wake[me]
#ifdef ENDS
#ifdef BROKEN_END
     :: atomic { !wake[me] && !ended[1 - me] -> idle[me] = 0; ended[me] = 1; changed = 1 }
#else
     :: atomic { idle[me] && !wake[me] && !ended[1 - me] -> idle[me] = 0; ended[me] = 1; changed = 1 }
#endif
end_ended:
        !ended[me];
        wake[me] = 0; queued = 0; only_hogs = 0;
        goto find
#endif
     fi
  fi;
  atomic { idle[me] = 0; wake[me] = 0; queued = 0; only_hogs = 0; changed = 1 }
  if
  :: mine == none -> take_free_slot()
  :: else
  fi;
  if
  :: mine != none -> start_searching()
  :: else
  fi
}

proctype worker(byte me) {
  bit f, go, draining, queued, counted, only_hogs;
  byte s = none, v = none, list;
  if
  :: me == 0 -> goto fiber
  :: else
  fi;

find:
  if
  :: mine == none ->
     take_free_slot();
     if
     :: mine == none -> goto nothing
     :: else
     fi
  :: else
  fi;
  pick();
  if
  :: f -> goto found
  :: else
  fi;
  start_searching();
  steal_from(0);
#if SLOTS == 2
  steal_from(1);
#endif
  pop(global_);
  if
  :: f -> goto found
  :: else
  fi;
nothing:
  go_idle();
  goto find;

found:
  if
  :: searching_[me] ->
     atomic { searching_[me] = 0; searching--; changed = 1; go = searching == 0 }
     if
     :: go ->
        go = 0;
        atomic { work_queued() }
        if
#ifdef BROKEN_HOG
        :: queued && only_hogs -> queued = 0
        :: queued && !only_hogs -> queued = 0; wake_if_needed(0)
#else
        :: queued -> queued = 0; wake_if_needed(only_hogs)
#endif
        :: else
        fi;
        only_hogs = 0
     :: else
     fi
  :: else
  fi;

fiber:
  f = 0;
  if
  :: atomic { spawns > 0 -> spawns-- } enqueue_woken(); goto fiber
  :: true ->  // it yields
     atomic {
       if
       :: spawns > 0 -> spawns--
       :: else -> goto ends
       fi
     }
     pick();
     enqueue_local();
#ifndef BROKEN_YIELD
     sysmon_poke();
#endif
     if
     :: f -> goto fiber
     :: else -> goto find
     fi
#ifdef RESERVE
  :: atomic { new_hogs > 0 -> new_hogs--; flushed; hogs++; changed = 1 }  // it wakes a heavy one
#ifndef BROKEN_HEAVY
     wake_if_needed(1);
#endif
     goto fiber
  :: atomic { new_hogs > 0 -> new_hogs-- }  // it is preempted, and is a hog
     pick();
     atomic { flushed; hogs++; changed = 1 }
     wake_if_needed(1);
     if
     :: f -> goto fiber
     :: else -> goto find
     fi
#endif
  :: true -> goto ends
  :: atomic { !blocked[0] && !blocked[1] -> blocked[me] = 1; changed = 1 }
end_blocked:
     atomic { comes_back -> blocked[me] = 0; changed = 1 }
     goto fiber
  fi;
ends:
  pick();
  if
  :: f -> goto fiber
  :: else -> goto find
  fi
}

proctype store_buffer(byte w) {
end:
  do
  :: atomic { buffer[w] != Nothing -> flush(w) }
  od
}

proctype foreign() {
  bit go;
  byte s = none, v = none, left = FOREIGN;
  do
  :: atomic { left > 0 -> left--; head[left % SLOTS]++; changed = 1 }
     wake_if_needed(0)
#ifdef RESERVE
  :: atomic { new_hogs > 0 -> new_hogs--; hogs++; changed = 1 }
     wake_if_needed(1)
#endif
  :: left == 0 -> break
  od
}

proctype sysmon() {
  bit queued, go, only_hogs;
  byte s = none, v = none;
look:
  atomic {
    changed = 0;
    work_queued();
    // try_take(), of one at a time
    if
    :: queued && blocked[0] && slot[0] != none -> s = slot[0]; slot[0] = none
    :: queued && blocked[1] && slot[1] != none -> s = slot[1]; slot[1] = none
    :: else
    fi;
    if
    :: s != none ->
       pop_idle_worker(v);
       if
       :: v != none -> slot[v] = s; searching_[v] = 1
       :: else
       fi;
       changed = 1
    :: else
    fi
  }
  if
  :: s != none ->
     atomic { searching++; changed = 1 }
     if
     :: v != none -> wake[v] = 1
     :: else -> searching--; free[s] = 1
     fi;
     atomic { s = none; v = none; changed = 1 }
  :: else
  fi;
  if
  :: queued && can_run -> wake_if_needed(only_hogs)
  :: else
  fi;
  if
  :: !queued ->  // quiet for long
     atomic { asleep = 1; changed = 1 }  // (sysmon will look in any case)
#ifndef BROKEN_MEMBARRIER
     buffer[0] == Nothing;
     buffer[1] == Nothing;
#endif
     work_queued();
     if
     :: queued -> atomic { asleep = 0; queued = 0; only_hogs = 0 }
     :: else ->
end_deep:
        asleep == 0
     fi
  :: true ->
     queued = 0; only_hogs = 0;
end_short:
     changed
  fi;
  goto look
}

init {
  atomic {
    slot[0] = 0;
    head[0] = WAITING; local_[0] = LOCAL;
#if SLOTS == 2
    free[1] = 1;
#endif
    run worker(0); run worker(1);
    run store_buffer(0); run store_buffer(1);
    run sysmon();
#if FOREIGN > 0
    run foreign()
#endif
  }
  timeout -> assert(!(global_ || hogs || next[0] || local_[0] || head[0] || front[0]
#if SLOTS == 2
                      || next[1] || local_[1] || head[1] || front[1]
#endif
                     ))
}
