// SPDX-License-Identifier: MIT
// Channel: every value whose send succeeded is received once, in the order of its sender, or is left in a channel without receivers. No
// process waits for ever. Closing with sends in flight loses no value.
//
// Mirrors send_fast(), receive_fast(), push(), send_locked(), receive_locked(), queue(), dequeue(), close() of sync/channel.cpp and
// wait_for() around them, for a channel with room for CAP values in a ring of 2 cells. One sender sends two values. Another sends one, and
// may give up while it waits; or (-DTWO_RECEIVERS) there is a second receiver, which may give up. A receiver receives until the channel is
// closed. Another process closes the channel at any time.
//
// Left out: select (select.pml), parking (park.pml), and channels without a ring, where every step is under the lock. Memory is
// sequentially consistent: each word is changed by compare-and-swap, and a cell is handed on by its turn (release, acquire).
//
// holds:
// holds: -DCAP=2
// holds: -DTWO_RECEIVERS
// fails: -DBROKEN_CLOSE
// fails: -DBROKEN_DRAIN
// fails: -DBROKEN_QUEUE
// fails: -DBROKEN_REFILL
// fails: -DBROKEN_DECIDE
// fails: -DBROKEN_ROOM
// Mutations. BROKEN_CLOSE: the flag is not in the word that senders raise, and they only read it before. BROKEN_DRAIN: a receiver treats a
// position that is given to a sender but not filled yet as empty. BROKEN_QUEUE: there is no second look after the flag was set.
// BROKEN_REFILL: the flags are cleared before the waiting sender's value is in its place. BROKEN_DECIDE: a process that gives up does not
// check whether its case has happened. BROKEN_ROOM: the ring has more cells than room, and the turn alone decides whether there is room.

#ifndef CAP
#define CAP 1
#endif
#define RING 2
#define OK 1
#define CLOSED 2
#define AGAIN 3
#define GAVE_UP 4

// The channel's two words.
byte tail, head;
bit receivers_wait, senders_wait, closed, head_senders_wait;
#define TAIL_FLAGS (receivers_wait || senders_wait || TAIL_CLOSED)
#ifdef BROKEN_CLOSE
#define TAIL_CLOSED 0
#else
#define TAIL_CLOSED closed
#endif

byte turn[RING], cell[RING];
bit lock;

// Waiters, by process: 0 and 1 send, 2 and 3 receive.
chan senders = [2] of { byte };
chan receivers = [2] of { byte };
bit decided[4], signaled[4];
byte result[4], value[4];

bit sent[4], received[4];  // by value, from 1
byte finished;

inline fill(p, v) {
  atomic { turn[p % RING] == p -> cell[p % RING] = v }  // waits until the cell's last user has left it
  turn[p % RING] = p + 1
}

inline take(p) {
  atomic { turn[p % RING] == p + 1 -> value[me] = cell[p % RING]; cell[p % RING] = 0 }
  turn[p % RING] = p + RING
}

// ---- the lock-free path: `done` says whether the operation is complete ----

inline send_fast(v) {
  done = 0;
  do
  :: atomic { TAIL_FLAGS -> break }
  :: atomic { else -> t = tail }
#ifdef BROKEN_CLOSE
     if
     :: closed -> break
     :: else
     fi;
#endif
     if
#ifdef BROKEN_ROOM
     :: turn[t % RING] == t ->
#else
     :: turn[t % RING] == t && (CAP == RING || t - head < CAP) ->
#endif
        atomic {
          if
          :: tail == t && !TAIL_FLAGS -> tail++; done = 1
          :: else -> skip
          fi
        }
        if
        :: done -> fill(t, v); break
        :: else
        fi
     :: else ->
        if
        :: turn[t % RING] > t -> skip
        :: else -> break
        fi
     fi
  od
}

inline receive_fast() {
  done = 0;
  do
  :: atomic { head_senders_wait -> break }
  :: atomic { else -> h = head }
     if
     :: turn[h % RING] == h + 1 ->
        atomic {
          if
          :: head == h && !head_senders_wait -> head++; done = 1
          :: else -> skip
          fi
        }
        if
        :: done -> take(h); break
        :: else
        fi
     :: turn[h % RING] > h + 1 -> skip
     :: else -> break
     fi
  od
}

// ---- under the lock ----

// Decides the first undecided waiter of the list, and sets `other` to it, or to 9 if there is none.
inline pop(list, what) {
  atomic {
    other = 9;
    do
    :: nempty(list) ->
       list?other;
       if
       :: !decided[other] -> decided[other] = 1; result[other] = what; break
       :: else -> other = 9
       fi
    :: empty(list) -> break
    od
  }
}

inline clear_receivers() {
  if
  :: empty(receivers) -> receivers_wait = 0
  :: nempty(receivers)
  fi
}

inline clear_senders() {
  if
  :: empty(senders) -> senders_wait = 0; head_senders_wait = 0
  :: nempty(senders)
  fi
}

// Sets `done` if there was room.
inline push(v) {
  done = 0;
  do
  :: t = tail;
     if
     :: t - head >= CAP && t >= head -> break
     :: else ->
        atomic {
          if
          :: tail == t -> tail++; done = 1
          :: else -> skip
          fi
        }
        if
        :: done -> fill(t, v); break
        :: else
        fi
     fi
  od
}

inline send_locked(v) {
  e = AGAIN;
  if
  :: closed -> e = CLOSED
  :: else ->
     if
     :: receivers_wait ->
        pop(receivers, OK);
        if
        :: other != 9 -> value[other] = v; e = OK; woken = other
        :: else
        fi;
        clear_receivers()
     :: else
     fi;
     if
     :: e == OK
     :: else ->
        push(v);
        if
        :: done -> e = OK
        :: else
        fi
     fi
  fi
}

inline receive_locked() {
  e = AGAIN;
  h = head;
  do
#ifdef BROKEN_DRAIN
  :: turn[h % RING] != h + 1 -> break
#else
  :: tail == h -> break
#endif
  :: else ->
     atomic {
       if
       :: head == h -> head++; done = 1
       :: else -> h = head; done = 0
       fi
     }
     if
     :: done ->
        take(h);
        e = OK;
        if
        :: head_senders_wait ->
#ifdef BROKEN_REFILL
           pop(senders, OK);
           clear_senders();
           if
           :: other != 9 -> push(value[other]); assert(done); woken = other
           :: else
           fi
#else
           pop(senders, OK);
           if
           :: other != 9 -> push(value[other]); assert(done); woken = other
           :: else
           fi;
           clear_senders()
#endif
        :: else
        fi;
        break
     :: else
     fi
  od;
  if
  :: e == AGAIN && closed -> e = CLOSED
  :: else
  fi
}

// Sets `done` if the process is queued.
inline queue_sender() {
  done = 1;
  if
  :: empty(senders) ->
     senders_wait = 1;
     head_senders_wait = 1;
#ifndef BROKEN_QUEUE
     if
     :: tail - head < CAP -> senders_wait = 0; head_senders_wait = 0; done = 0
     :: else
     fi
#endif
  :: nempty(senders)
  fi;
  if
  :: done -> senders!me
  :: else
  fi
}

inline queue_receiver() {
  done = 1;
  if
  :: empty(receivers) ->
     receivers_wait = 1;
#ifndef BROKEN_QUEUE
     if
     :: tail != head -> receivers_wait = 0; done = 0
     :: else
     fi
#endif
  :: nempty(receivers)
  fi;
  if
  :: done -> receivers!me
  :: else
  fi
}

inline unlock_and_wake() {
  atomic { lock = 0; t = 0; h = 0; done = 0; other = 9 }
  if
  :: atomic { woken != 9 -> signaled[woken] = 1; woken = 9 }
  :: else
  fi
}

// Waits until the case was decided, or gives up. Sets `e`.
inline wait(list, may_give_up) {
  if
  :: signaled[me] -> e = result[me]
  :: may_give_up ->
#ifndef BROKEN_DECIDE
     atomic {
       if
       :: !decided[me] -> decided[me] = 1; e = GAVE_UP
       :: else -> e = 0
       fi
     }
#else
     e = GAVE_UP;
#endif
     if
     :: e == GAVE_UP ->
        atomic { !lock -> lock = 1 }
        if
        :: list??[eval(me)] -> list??eval(me)
        :: !list??[eval(me)]
        fi;
        if
        :: me < 2 -> clear_senders()
        :: else -> clear_receivers()
        fi;
        lock = 0
     :: else -> signaled[me]; e = result[me]
     fi
  fi
}

inline send(v, may_give_up) {
  send_fast(v);
  if
  :: done -> e = OK
  :: else ->
     atomic { !lock -> lock = 1; decided[me] = 0; signaled[me] = 0; value[me] = v }
     do
     :: send_locked(v);
        if
        :: e != AGAIN -> break
        :: else ->
           queue_sender();
           if
           :: done -> break
           :: else
           fi
        fi
     od;
     unlock_and_wake();
     if
     :: e == AGAIN -> wait(senders, may_give_up)
     :: else
     fi
  fi
}

inline receive(may_give_up) {
  receive_fast();
  if
  :: done -> e = OK
  :: else ->
     atomic { !lock -> lock = 1; decided[me] = 0; signaled[me] = 0 }
     do
     :: receive_locked();
        if
        :: e != AGAIN -> break
        :: else ->
           queue_receiver();
           if
           :: done -> break
           :: else
           fi
        fi
     od;
     unlock_and_wake();
     if
     :: e == AGAIN -> wait(receivers, may_give_up)
     :: else
     fi
  fi
}

proctype sender(byte me; byte first; byte n; bit may_give_up) {
  byte t, h, e, other = 9, v, woken = 9;
  bit done;
  v = first;
  do
  :: v < first + n ->
     send(v, may_give_up);
     atomic {
       if
       :: e == OK -> sent[v] = 1; v++; t = 0; e = 0; done = 0; decided[me] = 0; signaled[me] = 0; value[me] = 0; result[me] = 0
       :: else -> break
       fi
     }
  :: else -> break
  od;
  finished++
}

proctype receiver(byte me; bit may_give_up) {
  byte t, h, e, other = 9, woken = 9;
  bit done;
  do
  :: receive(may_give_up);
     atomic {
       if
       :: e == OK ->
          assert(!received[value[me]]);
#ifndef TWO_RECEIVERS
          assert(value[me] != 2 || received[1]);
#endif
          received[value[me]] = 1;
          value[me] = 0; h = 0; e = 0; done = 0; decided[me] = 0; signaled[me] = 0; result[me] = 0
       :: else -> break
       fi
     }
  od;
  finished++
}

proctype closer() {
  byte other;
  atomic { !lock -> lock = 1 }
  closed = 1;
  do
  :: pop(receivers, CLOSED);
     if
     :: other != 9 -> signaled[other] = 1
     :: else -> break
     fi
  od;
  clear_receivers();
  do
  :: pop(senders, CLOSED);
     if
     :: other != 9 -> signaled[other] = 1
     :: else -> break
     fi
  od;
  clear_senders();
  lock = 0;
  finished++
}

init {
  atomic {
    turn[1] = 1;
    run sender(0, 1, 2, 0);
    run receiver(2, 0);
#ifdef TWO_RECEIVERS
    run receiver(3, 1);
#else
    run sender(1, 3, 1, 1);
#endif
    run closer()
  }
  timeout -> assert(finished == 4);
  // The receiver that never gives up goes on until the channel is closed and empty.
  assert(sent[1] == received[1] && sent[2] == received[2] && sent[3] == received[3]);
  assert(!sent[2] || sent[1]);
  assert(!receivers_wait && !senders_wait && !head_senders_wait)
}
