// SPDX-License-Identifier: MIT
// Mutexes and condition variables of one thread, and keys. Every call is made in any state in which its result is defined.
#include "differential.h"

struct mutex {
  pthread_mutex_t m;
  int type, protocol, robust, shared;
  bool there, dead, inconsistent, lost;
  int count;  // how often this thread has locked it
};
struct objects {
  struct mutex mutexes[3];
  pthread_cond_t conds[2];
  bool cond_there[2];
  int cond_clock[2];
};
void* objects_new(void) { return calloc(1, sizeof(struct objects)); }

static bool owned(const struct mutex* m) {  // unlocking checks the owner
  return m->type == PTHREAD_MUTEX_RECURSIVE || m->type == PTHREAD_MUTEX_ERRORCHECK || m->robust;
}

static void release(struct mutex* m) {
  while (m->count > 0) {
    if (m->inconsistent) pthread_mutex_consistent(&m->m);
    m->inconsistent = false;
    SAY_ERROR("unlock", pthread_mutex_unlock(&m->m));
    m->count--;
  }
}

static void mutex_make(struct mutex* m) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, m->type);
  pthread_mutexattr_setprotocol(&a, m->protocol);
  pthread_mutexattr_setrobust(&a, m->robust);
  pthread_mutexattr_setpshared(&a, m->shared);
  SAY_ERROR("init", pthread_mutex_init(&m->m, &a));
  pthread_mutexattr_destroy(&a);
}

static void mutex_new(struct operation* o) {
  struct mutex* m = &me->objects->mutexes[o->a[0]];
  if (m->there) {
    release(m);
    SAY_ERROR("destroy", pthread_mutex_destroy(&m->m));
  }
  *m = (struct mutex){
      .type = o->a[1], .protocol = o->a[2] == 3 ? PTHREAD_PRIO_INHERIT : 0, .robust = o->a[3] % 2, .shared = o->a[3] / 2, .there = true};
  mutex_make(m);
}

enum { kLock, kTry, kTimed, kClock, kUnlock, kConsistent, kDestroy, kCeiling, kDie, kCalls };
static const char* const call_names[] = {"lock", "trylock", "timedlock", "clocklock", "unlock", "consistent", "destroy", "ceiling", "die"};

struct call {
  struct mutex* m;
  int what, moment, clock;
  bool here;
  int result, second;
};

// Makes the call. Gives the lock back if another thread or a child has got it.
static void* mutex_call_main(void* v) {
  struct call* c = v;
  pthread_mutex_t* m = &c->m->m;
  struct timespec t = moment(c->moment, c->what == kClock ? clock_of(c->clock) : CLOCK_REALTIME);
  int ceiling = -1;
  switch (c->what) {
    case kDie:
    case kLock: c->result = pthread_mutex_lock(m); break;
    case kTry: c->result = pthread_mutex_trylock(m); break;
    case kTimed: c->result = pthread_mutex_timedlock(m, &t); break;
    case kClock: c->result = pthread_mutex_clocklock(m, clock_of(c->clock), &t); break;
    case kUnlock: c->result = pthread_mutex_unlock(m); break;
    case kConsistent: c->result = pthread_mutex_consistent(m); break;
    case kDestroy: c->result = pthread_mutex_destroy(m); break;
    default: c->result = pthread_mutex_getprioceiling(m, &ceiling);
  }
  bool got = (c->what <= kClock || c->what == kDie) && (c->result == 0 || c->result == EOWNERDEAD);
  if (c->here || !got || c->what == kDie) return NULL;
  if (c->result == EOWNERDEAD) pthread_mutex_consistent(m);
  c->second = pthread_mutex_unlock(m);
  return NULL;
}
static void mutex_call_in_child(void* v) {
  struct call* c = v;
  mutex_call_main(c);
  say(" child %s=%s,%s", call_names[c->what], error_name(c->result), error_name(c->second));
}

// Whether the call has a defined result and comes back.
static bool defined(struct mutex* m, struct call* c, int where) {
  bool held = m->count > 0;
  switch (c->what) {
    case kDie: return m->robust && !held && !m->lost && where == 1;
    case kLock:
      if (!held) return true;
      return c->here && (m->type == PTHREAD_MUTEX_RECURSIVE || m->type == PTHREAD_MUTEX_ERRORCHECK) && m->count < 100;
    case kTry: return !m->lost && m->count < 100;  // NPTL leaves a lost mutex locked
    case kTimed:
    case kClock: return m->count < 100;
    case kUnlock: return (held && c->here) || owned(m);
    case kConsistent: return c->here || !m->inconsistent;  // NPTL makes the caller the owner
    case kDestroy: return !m->robust && where == 0 && m->count < 2;
    default: return true;
  }
}

static void note_result(struct mutex* m, struct call* c) {
  bool locks = c->what <= kClock || c->what == kDie;
  if (locks && c->result == ENOTRECOVERABLE) m->lost = true;
  if (locks && c->result == EOWNERDEAD) m->dead = false, m->inconsistent = c->here;
  if (c->what == kDie && (c->result == 0 || c->result == EOWNERDEAD)) m->dead = true, m->inconsistent = false;
  if (!c->here || c->what == kDie) return;
  if (locks && c->result == 0) m->count++;
  if (locks && c->result == EOWNERDEAD) m->count = 1;
  if (c->what == kConsistent && c->result == 0) m->inconsistent = false;
  if (c->what == kUnlock && c->result == 0 && --m->count == 0 && m->inconsistent) m->inconsistent = false, m->lost = true;
  if (c->what == kDestroy && c->result == 0) {
    m->count = 0;
    mutex_make(m);
  }
}

static void mutex_call(struct operation* o) {
  struct mutex* m = &me->objects->mutexes[o->a[0]];
  if (!m->there) {
    *m = (struct mutex){.type = o->a[0], .robust = o->a[1] % 2, .there = true};
    mutex_make(m);
  }
  int where = o->a[3] < 6 ? 0 : o->a[3] < 9 ? 1 : 2;  // here, on another thread, in a child
  struct call c = {.m = m, .what = o->a[1], .moment = o->a[2] % kMoments, .clock = o->a[2] / kMoments, .here = where == 0};
  if (c.what == kDie) where = 1, c.here = false;
  if (where == 2 && (!has_children || m->shared || m->robust || m->protocol || m->count)) where = 1;  // a child's locks of a copy
  if (!defined(m, &c, where) && (c.what == kLock || c.what == kDie)) c.what = kTry, c.here = where == 0;
  say(" type %d%s%s%s,%s", m->type, m->robust ? " robust" : "", m->protocol ? " inherit" : "", m->shared ? " shared" : "",
      where == 1   ? " elsewhere"
      : where == 2 ? " in a child"
                   : "");
  if (!defined(m, &c, where)) {
    say(" undefined");
    return;
  }
  if (where == 2) {
    say(" %#x", in_child(mutex_call_in_child, &c));
    return;
  }
  if (where == 1) elsewhere(mutex_call_main, &c);
  else mutex_call_main(&c);
  if (c.what == kTimed || c.what == kClock) say(" %s clock %d", moment_names[c.moment], c.clock);
  SAY_ERROR(call_names[c.what], c.result);
  if (c.second) SAY_ERROR("unlock", c.second);
  note_result(m, &c);
  if (m->count) say(" count %d", m->count);
}

// ---- condition variables ----

static void cond_make(int i, int clock, int shared) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  SAY_ERROR("setclock", pthread_condattr_setclock(&a, clock_of(clock)));
  pthread_condattr_setpshared(&a, shared);
  SAY_ERROR("init", pthread_cond_init(&me->objects->conds[i], &a));
  me->objects->cond_there[i] = true;
  me->objects->cond_clock[i] = clock;
}

static void cond_call(struct operation* o) {
  struct objects* all = me->objects;
  int i = o->a[0] % 2, what = o->a[1];
  struct mutex* m = &all->mutexes[o->a[0] / 2];
  pthread_cond_t* c = &all->conds[i];
  if (!all->cond_there[i]) cond_make(i, o->a[3] % 2, o->a[3] / 2);
  if (what == 0) SAY_ERROR("signal", pthread_cond_signal(c));
  if (what == 1) SAY_ERROR("broadcast", pthread_cond_broadcast(c));
  if (what == 2) {
    SAY_ERROR("destroy", pthread_cond_destroy(c));
    cond_make(i, o->a[3] % 2, o->a[3] / 2);
  }
  if (what < 3) return;
  if (!m->there || (m->count == 0 && !owned(m))) {
    say(" undefined");
    return;
  }
  int clock = what % 2 ? all->cond_clock[i] : o->a[3] % 2;
  struct timespec t = moment(o->a[2], clock_of(clock));
  say(" type %d%s%s count %d, %s", m->type, m->robust ? " robust" : "", m->inconsistent ? " inconsistent" : "", m->count,
      moment_names[o->a[2]]);
  int e = what % 2 ? pthread_cond_timedwait(c, &m->m, &t) : pthread_cond_clockwait(c, &m->m, clock_of(clock), &t);
  SAY_ERROR(what % 2 ? "timedwait" : "clockwait", e);
  if (e == ENOTRECOVERABLE) m->count = 0, m->lost = true, m->inconsistent = false;
}

// ---- keys ----

// Their destructors print in the order of the keys, and set the value again as often as the value says.
pthread_key_t keys[4];
static void destroyed(int i, void* value) {
  long left = (long)value - 1;
  say(" key-%d-%ld", i, left);
  if (left > 0) pthread_setspecific(keys[i], (void*)left);
}
static void destroy_0(void* v) { destroyed(0, v); }
static void destroy_1(void* v) { destroyed(1, v); }
static void destroy_2(void* v) {
  destroyed(2, v);
  if (!pthread_getspecific(keys[0])) pthread_setspecific(keys[0], (void*)1L);
}
void make_keys(void) {
  void (*const destructors[])(void*) = {destroy_0, destroy_1, destroy_2, NULL};
  for (int i = 0; i < 4; i++) pthread_key_create(&keys[i], destructors[i]);
}
static void* set_keys(void* p) {
  const int* a = p;
  for (int i = 0; i < 4; i++) pthread_setspecific(keys[i], (void*)(long)(a[i] % 7));
  if (a[0] / 7 % 2) pthread_exit(NULL);
  return NULL;
}
static void keys_of_helper(struct operation* o) { elsewhere(set_keys, o->a); }
static void keys_here(struct operation* o) {
  say(" %ld", (long)pthread_getspecific(keys[o->a[0]]));
  SAY_ERROR("set", pthread_setspecific(keys[o->a[0]], (void*)(long)o->a[1]));
  say(" %ld", (long)pthread_getspecific(keys[o->a[0]]));
}
static void key_new(struct operation* o) {
  pthread_key_t k;
  SAY_ERROR("create", pthread_key_create(&k, NULL));
  say(" %d", pthread_getspecific(k) != NULL);
  for (int i = 0; i <= o->a[0]; i++) SAY_ERROR("set", pthread_setspecific(k, &k + i));
  say(" %d", pthread_getspecific(k) == &k + o->a[0]);
  SAY_ERROR("delete", pthread_key_delete(k));
  SAY_ERROR("bad", pthread_setspecific(9999, &k));
}

// ---- the begin and the end of a thread ----

void objects_begin(void) {
  say("\n");
  for (int i = 0; i < 4; i++)
    if (pthread_getspecific(keys[i])) say("key %d is set\n", i);
}
// Robust mutexes stay locked, and have a dead owner then.
void objects_end(bool detached) {
  say("end:");
  for (int i = 0; i < 3; i++) {
    struct mutex* m = &me->objects->mutexes[i];
    if (m->robust && !detached && m->count) m->dead = true, m->count = 0, m->inconsistent = false;
    release(m);
  }
  for (int i = 0; detached && i < 4; i++) pthread_setspecific(keys[i], NULL);
  if (detached) say("\n");
}

const struct kind object_kinds[] = {{"mutex.new", mutex_new, 40, 1, {3, 4, 4, 4}, NULL},
                                    {"mutex", mutex_call, 160, 1, {3, kCalls, 2 * kMoments, 10}, NULL},
                                    {"cond", cond_call, 60, 1, {6, 8, kMoments, 4}, NULL},
                                    {"keys.helper", keys_of_helper, 10, 1, {14, 7, 7, 7}, NULL},
                                    {"key", keys_here, 15, 1, {4, 6}, NULL},
                                    {"key.new", key_new, 8, 1, {3}, NULL},
                                    {0}};
