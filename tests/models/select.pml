// SPDX-License-Identifier: MIT
// select: exactly one case of each select happens, and both sides of a channel agree about it. No select waits while another one waits for
// just that. No select is touched after its end.
//
// `chooser` is above 80 lines, because a process that mirrors select_cases() is one piece: its labels cannot be reached from elsewhere.
//
// Mirrors select_cases() of sync/select.cpp with pop(), queue() and dequeue() of sync/channel.cpp, for two channels without a ring,
// in the order of their addresses. Three selects meet, each with a case for either channel. The first receives from either. The second
// sends to either. The third receives from the one or sends to the other, or gives up.
//
// Left out: rings (channel.pml shows that a channel stays as it is from when a case is queued there) and parking (park.pml).
//
// holds:
// fails: -DBROKEN_DECIDE
// fails: -DBROKEN_LEAVE
// fails: -DBROKEN_LOCKS
// fails: -DBROKEN_GIVE_UP
// Mutations. BROKEN_DECIDE: a select that finds a queued case looks whether it is undecided, and decides in another step. BROKEN_LEAVE: a
// woken select does not leave the other channel's queue. BROKEN_LOCKS: one channel is locked after the other, to try and then to queue.
// BROKEN_GIVE_UP: a select gives up without a look whether one of its cases has happened.

#define NONE 2   // no case yet; other values are the channel, as each select has one case for each
#define GAVE_UP 3

bit lock[2];
chan waiting[4] = [3] of { byte };  // senders of 0 and 1, receivers of 0 and 1
#define SENDERS(c) waiting[c]
#define RECEIVERS(c) waiting[2 + (c)]

byte selected[3] = NONE;
bit here[3];        // the select's cases exist
bit signaled[3];
byte sent[2], received[2];
byte finished;

// Whether a select sends to that channel; otherwise it receives.
#define SENDS(who, c) (who == 1 || (who == 2 && c == 1))

inline take_lock(c) { atomic { !lock[c] -> lock[c] = 1 } }

// Called under the lock of c. Sets `done` if the case for c has happened, with `other`.
inline attempt(c) {
  byte_list = (SENDS(me, c) -> 2 + c : c);
  done = 0;
  do
  :: atomic { nempty(waiting[byte_list]) -> waiting[byte_list]?other; assert(here[other]) }
#ifdef BROKEN_DECIDE
     if
     :: selected[other] == NONE -> selected[other] = c; done = 1; break
     :: else
     fi
#else
     atomic {
       if
       :: selected[other] == NONE -> selected[other] = c; done = 1; break
       :: else
       fi
     }
#endif
  :: atomic { empty(waiting[byte_list]) -> break }
  od
}

inline queue(c) { waiting[(SENDS(me, c) -> c : 2 + c)]!me }

inline dequeue(c) {
  byte_list = (SENDS(me, c) -> c : 2 + c);
  if
  :: waiting[byte_list]??[eval(me)] -> waiting[byte_list]??eval(me)
  :: !waiting[byte_list]??[eval(me)]
  fi
}

inline count(c) {
  if
  :: SENDS(me, c) -> sent[c]++
  :: else -> received[c]++
  fi
}

inline leave() {
  take_lock(0); dequeue(0); lock[0] = 0;
  take_lock(1); dequeue(1); lock[1] = 0
}

proctype chooser(byte me; bit may_give_up) {
  byte c, other, byte_list;
  bit done;
  here[me] = 1;
  // The first look takes only one lock, and so may miss a partner.
  if
  :: c = 0
  :: c = 1
  :: c = 2
  fi;
  if
  :: c < 2 ->
     take_lock(c);
     attempt(c);
     lock[c] = 0
  :: else
  fi;
  if
  :: done -> goto happened
  :: else
  fi;
  // Now all channels are locked.
#ifdef BROKEN_LOCKS
  take_lock(0); attempt(0); lock[0] = 0;
  if
  :: done -> c = 0; goto happened
  :: else
  fi;
  take_lock(1); attempt(1); lock[1] = 0;
  if
  :: done -> c = 1; goto happened
  :: else
  fi;
  take_lock(0); queue(0); lock[0] = 0;
  take_lock(1); queue(1); lock[1] = 0;
#else
  take_lock(0);
  take_lock(1);
  if
  :: c = 0
  :: c = 1
  fi;
  attempt(c);
  if
  :: done
  :: else -> c = 1 - c; attempt(c)
  fi;
  if
  :: done
  :: else -> queue(0); queue(1)
  fi;
  lock[0] = 0;
  lock[1] = 0;
  if
  :: done -> goto happened
  :: else
  fi;
#endif
  // The select waits, or gives up.
end:
  if
  :: signaled[me]
  :: may_give_up ->
#ifdef BROKEN_GIVE_UP
     selected[me] = GAVE_UP;
#else
     atomic {
       if
       :: selected[me] == NONE -> selected[me] = GAVE_UP
       :: else
       fi
     }
#endif
     if
     :: selected[me] == GAVE_UP -> leave(); goto out
     :: else -> signaled[me]
     fi
  fi;
#ifndef BROKEN_LEAVE
  leave();
#endif
  c = selected[me];
  count(c);
  goto out;
happened:
  atomic {
    count(c);
    assert(!signaled[other]);
    signaled[other] = 1
  }
out:
  here[me] = 0;
  finished++
}

init {
  atomic {
    run chooser(0, 0);
    run chooser(1, 0);
    run chooser(2, 1)
  }
  timeout -> assert(sent[0] == received[0] && sent[1] == received[1]);
  // The first two can always meet. But if the third has met one of them, the other waits.
  assert(finished == 3 || sent[0] + sent[1] == 1);
  // No two selects that still wait may wait for each other.
  assert(len(SENDERS(0)) == 0 || len(RECEIVERS(0)) == 0);
  assert(len(SENDERS(1)) == 0 || len(RECEIVERS(1)) == 0)
}
