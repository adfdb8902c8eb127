// SPDX-License-Identifier: MIT
// C11's threads: results are its own names.
#include "errors.h"

static int nothing(void* p) { return 7; }
static int waits(void* p) {
  sem_wait(p);
  return 8;
}
static int exits(void* p) {
  thrd_exit(-9);
  return 0;
}
static mtx_t m;
static int try_it(void* p) {
  C11("another's", mtx_trylock, &m);
  C11("another's, passed", mtx_timedlock, &m, &past);
  return 0;
}
static void other_tries(void) {
  thrd_t t;
  assert(thrd_create(&t, try_it, NULL) == thrd_success && thrd_join(t, NULL) == thrd_success);
}

static void threads(void) {
  thrd_t t;
  int r = 77;
  sem_t* go = malloc(sizeof *go);  // never freed, since nothing tells when the detached thread is done with it
  sem_init(go, 0, 0);
  C11("", thrd_create, &t, nothing, NULL);
  C11("", thrd_join, t, &r);
  printf("result %d\n", r);
  C11("", thrd_create, &t, exits, NULL);
  C11("", thrd_join, t, &r);
  printf("result %d\n", r);
  thrd_create(&t, nothing, NULL);
  C11("no result wanted", thrd_join, t, NULL);
  thrd_create(&t, waits, go);
  C11("running", thrd_detach, t);
  C11("detached", thrd_join, t, &r);
  C11("detached", thrd_detach, t);
  sem_post(go);
  pthread_attr_t before, large;
  pthread_getattr_default_np(&before);
  pthread_attr_init(&large);
  pthread_attr_setstacksize(&large, (size_t)1 << 46);
  pthread_setattr_default_np(&large);
  C11("stack too large", thrd_create, &t, nothing, NULL);
  pthread_setattr_default_np(&before);
  pthread_attr_t a;
  int detached;
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getdetachstate(&a, &detached);
  pthread_attr_destroy(&a);
  if (!detached) C11("self", thrd_join, thrd_current(), NULL);
  show_value("thrd_equal", "self", thrd_equal(thrd_current(), thrd_current()) != 0);
  show_value("thrd_equal", "nobody", thrd_equal(thrd_current(), 0) != 0);
  show_value("thrd_yield", "", (thrd_yield(), 0));
  struct timespec left = {77, 77};
  for (size_t i = 0; i < MOMENTS; i++)
    if (moments[i].t != &past) show_value("thrd_sleep", moments[i].name, thrd_sleep(moments[i].t, &left));
  show_value("thrd_sleep", "a little", thrd_sleep(&(struct timespec){0, 1000}, &left));
  show_value("thrd_sleep", "none to tell", thrd_sleep(&(struct timespec){0, 1000}, NULL));
}

static void mutexes(void) {
  static const int types[] = {mtx_plain, mtx_timed, mtx_recursive, mtx_plain | mtx_recursive, mtx_timed | mtx_recursive, 4, 7, -1, 99};
  for (int i = 0; i < 9; i++) {
    bool recursive = types[i] == mtx_recursive || types[i] == (mtx_timed | mtx_recursive);
    if (C11(format("%d", types[i]), mtx_init, &m, types[i]) != thrd_success) continue;
    C11("free", mtx_trylock, &m);
    if (recursive) C11("mine", mtx_lock, &m), mtx_unlock(&m);
    if (C11("mine", mtx_trylock, &m) == thrd_success) mtx_unlock(&m);
    for (size_t k = 0; k < MOMENTS; k++)
      if (C11(format("mine, %s", moments[k].name), mtx_timedlock, &m, moments[k].t) == thrd_success) mtx_unlock(&m);
    other_tries();
    if (recursive) {
      unsigned* count = &((pthread_mutex_t*)&m)->__data.__count;
      *count = UINT_MAX;
      C11("as often as possible", mtx_lock, &m);
      C11("as often as possible", mtx_trylock, &m);
      *count = 1;
    }
    C11("mine", mtx_unlock, &m);
    if (recursive) C11("free", mtx_unlock, &m);
    C11("free", mtx_lock, &m);
    C11("mine", mtx_unlock, &m);
    for (size_t k = 0; k < MOMENTS; k++)
      if (C11(format("free, %s", moments[k].name), mtx_timedlock, &m, moments[k].t) == thrd_success) mtx_unlock(&m);
    show_value("mtx_destroy", "", (mtx_destroy(&m), 0));
  }
}

static void conditions(void) {
  cnd_t c;
  C11("", cnd_init, &c);
  C11("nobody", cnd_signal, &c);
  C11("nobody", cnd_broadcast, &c);
  mtx_init(&m, mtx_timed | mtx_recursive);
  C11("not mine", cnd_wait, &c, &m);
  C11("not mine", cnd_timedwait, &c, &m, &past);
  mtx_lock(&m);
  for (size_t i = 0; i < MOMENTS; i++) C11(moments[i].name, cnd_timedwait, &c, &m, moments[i].t);
  struct timespec t = soon(CLOCK_REALTIME);
  C11("soon", cnd_timedwait, &c, &m, &t);
  C11("mine", mtx_unlock, &m);
  mtx_destroy(&m);
  show_value("cnd_destroy", "", (cnd_destroy(&c), 0));
}

static int runs;
static void run(void) { runs++; }
static void keys(void) {
  tss_t k;
  C11("", tss_create, &k, NULL);
  C11("", tss_set, k, &k);
  printf("value %d\n", tss_get(k) == &k);
  show_value("tss_delete", "", (tss_delete(k), 0));
  C11("deleted", tss_set, k, &k);
  printf("value %d\n", tss_get(k) == NULL);
  once_flag flag = ONCE_FLAG_INIT;
  for (int i = 0; i < 2; i++) show_value("call_once", "", (call_once(&flag, run), runs));
  runs = 0;
}

static void cases(void) {
  threads();
  mutexes();
  conditions();
  keys();
}
