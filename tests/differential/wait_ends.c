// SPDX-License-Identifier: MIT
// Each wait of waits.c, ended in each way, on a helper or on the thread itself.
#include "waits.h"

enum how {
  kFinish,            // while it waits
  kFinishEarly,       // perhaps before it waits
  kFinishInChild,     // by a child
  kFinishInHandler,   // by a handler on the other thread
  kCancel,            // while it waits
  kCancelEarly,       // a request is pending when the wait begins
  kCancelDisabled,    // the request has to wait
  kInterrupt,         // handlers without SA_RESTART
  kInterruptRestart,  // with it
  kJumpOut,           // a handler jumps out of it
  kFork,              // another thread forks meanwhile
  kCancelAndFinish,   // either may win
  kBlocked,           // signals that are blocked
  kCancelRunning,     // asynchronously, while it computes after the wait
  kHows
};
static const char* const how_names[] = {"finish",       "early finish",      "child",     "handler", "cancel",
                                        "early cancel", "disabled cancel",   "interrupt", "restart", "jump",
                                        "fork",         "cancel and finish", "blocked",   "async"};

enum { kJumped = -2 };
struct run {
  struct place* place;
  const struct wait* wait;
  enum how how;
  int depth;
  bool swapped;      // the program's thread waits, and a helper ends that
  atomic_int stage;  // 1: about to wait; 2: ended
  atomic_bool go;    // the request to cancel is there
  int child_status;
};

static struct place* new_place(const struct wait* w, bool shared) {
  struct place* p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  p->shared = shared;
  p->owner = me;
  w->open(p);
  return p;
}

// ---- the waiter ----

static void cleanup(void* p) { say(" cleanup-%ld", (long)p); }

static int enter(struct run* r) {
  r->stage = 1;
  return r->wait->enter(r->place);
}

static int enter_to_be_jumped_out(struct run* r) {
  sigjmp_buf out;
  if (sigsetjmp(out, 1) != 0) {
    jump_to = NULL;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL);  // until 2.41 libc's waits are asynchronous, and a jump leaves that behind
    return kJumped;
  }
  jump_to = &out;
  int e = enter(r);
  jump_to = NULL;
  return e;
}

// Waits with as many cleanup handlers as `depth` says.
static int enter_below(struct run* r, long depth) {
  if (depth == 0) return r->how == kJumpOut ? enter_to_be_jumped_out(r) : enter(r);
  int e;
  pthread_cleanup_push(cleanup, (void*)depth);
  e = enter_below(r, depth - 1);
  pthread_cleanup_pop(depth % 2);
  return e;
}

static void set_mask(int how, sigset_t* old) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(how, &set, old);
}

static void* waiter(void* v) {
  struct run* r = v;
  sigset_t old;
  if (r->how == kBlocked) set_mask(SIG_BLOCK, &old);
  if (r->how == kCancelEarly || r->how == kCancelDisabled) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  if (r->how == kCancelEarly) {
    r->stage = 1;
    while (!r->go) sched_yield();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  }
  if (r->how == kCancel || r->how == kCancelEarly) pthread_setspecific(keys[1], (void*)2L);
  int e = enter_below(r, r->how == kCancelAndFinish ? 0 : r->depth);
  if (r->how == kCancelDisabled) {
    say(" %s", error_name(e));
    pthread_cleanup_push(cleanup, (void*)77L);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    say(" lives");
  }
  if (r->how == kCancel || r->how == kCancelEarly) {
    say(" %s", error_name(e));
    while (!r->go) sched_yield();
    pthread_testcancel();
    say(" lives");
  }
  if (r->how == kCancelRunning) {
    pthread_cleanup_push(cleanup, (void*)78L);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    r->go = true;
    for (volatile bool runs = true; runs;) {
    }
    pthread_cleanup_pop(0);
  }
  r->stage = 2;
  if (r->how == kBlocked) {
    int before = caught_signals();
    say(" %s", error_name(e));
    if (!r->swapped) {  // else the helper may still send some
      pthread_sigmask(SIG_SETMASK, &old, NULL);
      say(" caught %d, then %d", before, caught_signals());
    }
  }
  return (void*)(long)e;
}

// ---- what ends the wait ----

static void let_it_wait(struct run* r) {
  while (r->stage == 0) sched_yield();
  nap(r->depth * 30);
}
static void finish_in_child(void* v) {
  struct run* r = v;
  r->wait->finish(r->place);
}
static _Thread_local struct run* finishes;
extern _Thread_local void (*call_in_handler)(void);
static void finish_now(void) { finishes->wait->finish(finishes->place); }

static void* in_thread_of_child(void* p) {
  static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&m);
  pthread_mutex_unlock(&m);
  free(malloc(1000));
  return p;
}
static void life_of_child(void* p) {
  elsewhere(in_thread_of_child, p);
  _exit(9);
}

static void interrupt(struct run* r) {
  pthread_t t = r->place->waiter;
  int sig = PLAIN_SIGNAL(r->how == kInterruptRestart || (r->how == kBlocked && r->depth % 2));
  // A wait that handlers break is broken by the first one, but that may come before the wait.
  bool broken = r->how != kBlocked && r->wait->flags & (r->how == kInterrupt ? kBreaks | kRestart : kBreaks);
  let_it_wait(r);
  for (int i = 0; broken ? r->stage < 2 : i < 3; i++) {
    pthread_kill(t, sig);
    nap(i < 3 ? 50 : 500);
  }
  if (!broken) r->wait->finish(r->place);
}

static void* end_wait(void* v) {
  struct run* r = v;
  pthread_t t = r->place->waiter;
  const struct wait* w = r->wait;
  if (r->how != kFinishEarly) let_it_wait(r);
  switch (r->how) {
    case kFinishInChild: r->child_status = in_child(finish_in_child, r); break;
    case kFinishInHandler:
      finishes = r;
      call_in_handler = finish_now;
      raise(SIGURG);
      call_in_handler = NULL;
      break;
    case kCancel:
    case kCancelEarly:
      pthread_cancel(t);
      r->go = true;
      if (!(w->flags & kPoint)) w->finish(r->place);
      break;
    case kCancelRunning:
      w->finish(r->place);
      while (!r->go) nap(50);
      pthread_cancel(t);
      break;
    case kCancelDisabled:
      pthread_cancel(t);
      nap(100);
      w->finish(r->place);
      break;
    case kCancelAndFinish:
      if (r->depth % 2) pthread_cancel(t);
      w->finish(r->place);
      if (r->depth % 2 == 0) pthread_cancel(t);
      break;
    case kInterrupt:
    case kInterruptRestart:
    case kBlocked: interrupt(r); break;
    case kJumpOut: pthread_kill(t, SIGURG); break;
    case kFork:
      r->child_status = in_child(life_of_child, NULL);
      w->finish(r->place);
      break;
    default: w->finish(r->place);
  }
  return NULL;
}

// ---- the operation ----

// Returns a way that is defined for this wait.
static enum how possible(const struct wait* w, enum how how) {
  bool cancels = how == kCancel || how == kCancelEarly;
  if ((how == kFinishInChild || how == kFork) && !has_children) how = kFinish;
  if (how == kFinishInChild && !(w->flags & kChild)) how = kFinish;
  if (how == kFinishInHandler && !(w->flags & kSafe)) how = kFinish;
  if (how == kJumpOut && !(w->flags & kJump)) how = kInterrupt;
  if (w->flags & kNoEnd && !cancels && how != kJumpOut) how = kInterrupt;
  return how;
}

static void be_interrupted_no_more(void) {
  sigset_t old, set;
  set_mask(SIG_BLOCK, &old);
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  while (sigtimedwait(&set, NULL, &(struct timespec){0, 0}) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void wait_and_end(struct operation* o) {
  const struct wait* w = &waits[o->a[0]];
  if (w->flags & kHasChild && !has_children) w = &waits[0];
  enum how how = possible(w, o->a[1]);
  bool cancels = how == kCancel || how == kCancelEarly || how == kCancelDisabled || how == kCancelAndFinish || how == kCancelRunning;
  struct run r = {.wait = w, .how = how, .depth = o->a[2], .swapped = o->a[3] / 2 && !cancels && !(w->flags & kOwned)};
  say(" %s, %s", w->name, how_names[how]);
  struct place* p = new_place(w, o->a[3] % 2 || how == kFinishInChild);
  r.place = p;
  void* result;
  if (r.swapped) {
    p->waiter = pthread_self();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    pthread_t helper = start_helper(end_wait, &r, NULL);
    result = waiter(&r);
    join(helper);
    if (how == kBlocked) be_interrupted_no_more();
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (how == kInterrupt || how == kInterruptRestart) be_interrupted_no_more();
    forget_caught();
  } else {
    // The waiter may need its own handle (p->waiter) only after that: whoever uses it is this thread.
    p->waiter = start_helper(waiter, &r, NULL);
    end_wait(&r);
    result = join(p->waiter);
  }
  w->close(p);
  munmap(p, sizeof *p);
  if (r.child_status) say(" child %#x", r.child_status);
  if (how == kCancelAndFinish) say(" either");
  else if (result == PTHREAD_CANCELED) say(" cancelled");
  else if ((long)result == kJumped) say(" jumped");
  else say(" %s", error_name((long)result));
}

pthread_t start_waiting_for_ever(int which) {
  struct run* r = calloc(1, sizeof *r);
  r->wait = &waits[which];
  r->how = kFinish;
  r->place = new_place(r->wait, false);
  pthread_t t = start_helper(waiter, r, NULL);
  while (r->stage == 0) sched_yield();
  return t;
}

const struct kind wait_kinds[] = {{"wait", wait_and_end, 200, 1, {50, kHows, 4, 4}, NULL}, {0}};
