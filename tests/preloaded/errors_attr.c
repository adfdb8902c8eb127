// SPDX-License-Identifier: MIT
// Attributes of threads: every setter with values good and bad, what the getters say afterwards, and what pthread_create makes of
// them; the default attributes; the attributes of a running thread.
#include "errors.h"

#include <dlfcn.h>

static pthread_attr_t a;
static const int values[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 99, INT_MAX, INT_MIN};
#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)

static void print_sizes(const char* what, void* base, void* stack, size_t stack_size, size_t guard) {
  printf("%s: stack %td, size %zu, guard %zu\n", what, stack ? (char*)stack - (char*)base : -1, stack_size, guard);
}
static void show_all(const char* what, const pthread_attr_t* a, void* base) {
  int detach = 77, inherit = 77, policy = 77, scope = 77;
  struct sched_param p = {77};
  size_t guard = 77, size = 77;
  void* stack = NULL;
  CASE(what, pthread_attr_getdetachstate, a, &detach);
  CASE(what, pthread_attr_getinheritsched, a, &inherit);
  CASE(what, pthread_attr_getschedpolicy, a, &policy);
  CASE(what, pthread_attr_getschedparam, a, &p);
  CASE(what, pthread_attr_getscope, a, &scope);
  CASE(what, pthread_attr_getguardsize, a, &guard);
  CASE(what, pthread_attr_getstacksize, a, &size);
  CASE(what, pthread_attr_getstack, a, &stack, &size);
  printf("%s: detach %d inherit %d policy %d priority %d scope %d\n", what, detach, inherit, policy, p.sched_priority, scope);
  if (base) print_sizes(what, base, stack, size, guard);
  else printf("%s: size %zu, guard %zu\n", what, size, guard);
  sigset_t set;
  sigfillset(&set);
  CASE(what, pthread_attr_getsigmask_np, a, &set);
  printf("%s: mask has SIGUSR1 %d\n", what, sigismember(&set, SIGUSR1));
}

static void* nothing(void* p) { return p; }
static void create(const char* state) {
  pthread_t t;
  int detach;
  if (CASE(state, pthread_create, &t, &a, nothing, NULL) != 0) return;
  pthread_attr_getdetachstate(&a, &detach);
  if (detach == PTHREAD_CREATE_JOINABLE) CASE(state, pthread_join, t, NULL);
}

static void integers(void) {
  EACH(i, values) {
    int v = values[i], now = 77;
    CASE("", pthread_attr_init, &a);
    CASE(format("%d", v), pthread_attr_setdetachstate, &a, v);
    pthread_attr_getdetachstate(&a, &now);
    printf("now %d\n", now);
    CASE(format("%d", v), pthread_attr_setinheritsched, &a, v);
    pthread_attr_getinheritsched(&a, &now);
    printf("now %d\n", now);
    CASE(format("%d", v), pthread_attr_setscope, &a, v);
    pthread_attr_getscope(&a, &now);
    printf("now %d\n", now);
    CASE(format("%d", v), pthread_attr_setschedpolicy, &a, v);
    pthread_attr_getschedpolicy(&a, &now);
    printf("now %d\n", now);
    for (int policy = 0; policy < 3; policy++) {
      struct sched_param p = {v};
      pthread_attr_setschedpolicy(&a, policy);
      CASE(format("policy %d, %d", policy, v), pthread_attr_setschedparam, &a, &p);
      pthread_attr_getschedparam(&a, &p);
      printf("now %d\n", p.sched_priority);
    }
    CASE("", pthread_attr_destroy, &a);
  }
}

static void sizes(void) {
  size_t some[] = {0,       1, 4095, 4096, 16383, 16384, 16385, 20000, 65536, 1 << 20, (size_t)1 << 46, (size_t)1 << 62, SIZE_MAX - 4096,
                   SIZE_MAX};
  EACH(i, some) {
    size_t now = 77;
    pthread_attr_init(&a);
    CASE(format("%zu", some[i]), pthread_attr_setstacksize, &a, some[i]);
    pthread_attr_getstacksize(&a, &now);
    printf("now %zu\n", now);
    create(format("stack size %zu", some[i]));
    pthread_attr_destroy(&a);
    pthread_attr_init(&a);
    if (some[i] == (size_t)1 << 46) some[i] = 1 << 24;
    CASE(format("%zu", some[i]), pthread_attr_setguardsize, &a, some[i]);
    pthread_attr_getguardsize(&a, &now);
    printf("now %zu\n", now);
    create(format("guard size %zu", some[i]));
    pthread_attr_destroy(&a);
  }
}

static char memory[1 << 18] __attribute__((aligned(4096)));
static void stacks(void) {
  static const size_t some[] = {0, 1, 16383, 16384, 65536, 131072};
  static const int offsets[] = {0, 1, 8, 16, 4096};
  EACH(i, some) EACH(k, offsets) {
    pthread_attr_init(&a);
    const char* state = format("offset %d, size %zu", offsets[k], some[i]);
    CASE(state, pthread_attr_setstack, &a, memory + offsets[k], some[i]);
    void* stack = NULL;
    size_t size = 77;
    if (pthread_attr_getstack(&a, &stack, &size) == 0) {
      bool ours = (char*)stack >= memory && (char*)stack <= memory + sizeof memory;
      printf("%s: %td, %zu\n", state, ours ? (char*)stack - memory : -1, ours ? size : 0);
      if (ours && size >= 65536) create(state);
    }
    // Linkers warn of these functions, so they are looked up.
    int (*set_address)(pthread_attr_t*, void*) = dlsym(RTLD_DEFAULT, "pthread_attr_setstackaddr");
    int (*get_address)(const pthread_attr_t*, void**) = dlsym(RTLD_DEFAULT, "pthread_attr_getstackaddr");
    CASE(state, set_address, &a, memory + sizeof memory);
    CASE(state, get_address, &a, &stack);
    printf("address %td\n", (char*)stack - memory);
    CASE(state, pthread_attr_destroy, &a);
  }
}

static void affinity_and_mask(void) {
  static const size_t some[] = {0, 1, 8, 16, 128, 4096};
  unsigned char set[4096], all[4096];
  EACH(i, some) {
    pthread_attr_init(&a);
    memset(all, 0, sizeof all);
    all[0] = 1;
    CASE(format("%zu", some[i]), pthread_attr_setaffinity_np, &a, some[i], (cpu_set_t*)all);
    EACH(k, some) {
      memset(set, 7, sizeof set);
      CASE(format("%zu after %zu", some[k], some[i]), pthread_attr_getaffinity_np, &a, some[k], (cpu_set_t*)set);
      printf("first %d, last %d\n", set[0], some[k] ? set[some[k] - 1] : 0);
    }
    pthread_attr_destroy(&a);
  }
  pthread_attr_init(&a);
  memset(all, 0, sizeof all);
  cpu_set_t* volatile none = NULL;  // volatile, since the header says that it must not be null
  CASE("no CPU", pthread_attr_setaffinity_np, &a, 8, (cpu_set_t*)all);
  create("no CPU");
  CASE("none", pthread_attr_setaffinity_np, &a, 0, none);
  create("none");
  sigset_t mask, now;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  CASE("none", pthread_attr_getsigmask_np, &a, &now);
  CASE("a set", pthread_attr_setsigmask_np, &a, &mask);
  CASE("a set", pthread_attr_getsigmask_np, &a, &now);
  printf("SIGUSR1 %d SIGUSR2 %d\n", sigismember(&now, SIGUSR1), sigismember(&now, SIGUSR2));
  CASE("none", pthread_attr_setsigmask_np, &a, NULL);
  CASE("none", pthread_attr_getsigmask_np, &a, &now);
  pthread_attr_destroy(&a);
}

static void defaults(void) {
  pthread_attr_t before;
  CASE("", pthread_getattr_default_np, &before);
  show_all("default", &before, NULL);
  pthread_attr_init(&a);
  CASE("as they are", pthread_setattr_default_np, &before);
  pthread_attr_setstack(&a, memory, sizeof memory);
  CASE("a stack", pthread_setattr_default_np, &a);
  pthread_attr_destroy(&a);
  pthread_attr_init(&a);
  pthread_attr_setguardsize(&a, 12345);
  pthread_attr_setstacksize(&a, 1 << 20);
  CASE("guard and stack size", pthread_setattr_default_np, &a);
  pthread_attr_destroy(&a);
  CASE("", pthread_getattr_default_np, &a);
  show_all("new default", &a, NULL);
  pthread_attr_destroy(&a);
  CASE("as before", pthread_setattr_default_np, &before);
  pthread_attr_destroy(&before);
}

static sem_t go;
static void* waits(void* p) {
  while (sem_wait(&go) != 0) {
  }
  return p;
}
static void* own(void* state) {
  pthread_attr_t mine;
  CASE(state, pthread_getattr_np, pthread_self(), &mine);
  void* stack;
  size_t size;
  pthread_attr_getstack(&mine, &stack, &size);
  bool inside = (char*)&mine > (char*)stack && (char*)&mine < (char*)stack + size;
  printf("%s: inside %d\n", (char*)state, inside);
  bool ours = stack == memory;
  if (ours) print_sizes(state, memory, stack, size, 0);
  int inherit, policy, scope, detach;
  struct sched_param p;
  size_t guard;
  pthread_attr_getinheritsched(&mine, &inherit);
  pthread_attr_getschedpolicy(&mine, &policy);
  pthread_attr_getschedparam(&mine, &p);
  pthread_attr_getscope(&mine, &scope);
  pthread_attr_getdetachstate(&mine, &detach);
  pthread_attr_getguardsize(&mine, &guard);
  printf("%s: inherit %d policy %d priority %d scope %d detach %d guard %zu\n", (char*)state, inherit, policy, p.sched_priority, scope,
         detach, guard);
  size_t wanted;  // a recycled stack may be larger
  if (sscanf(state, "size %zu", &wanted) == 1) printf("%s: as large %d\n", (char*)state, size >= wanted);
  cpu_set_t set, now;
  CASE(state, pthread_attr_getaffinity_np, &mine, sizeof set, &set);
  pthread_getaffinity_np(pthread_self(), sizeof now, &now);
  printf("%s: same CPUs %d\n", (char*)state, CPU_EQUAL(&set, &now) != 0);
  sigset_t mask;
  CASE(state, pthread_attr_getsigmask_np, &mine, &mask);
  pthread_attr_destroy(&mine);
  return state;
}
static void running(void) {
  sem_init(&go, 0, 0);
  static const size_t stack_sizes[] = {16384, 65536, 98304, 1 << 20};
  static const size_t guards[] = {0, 1, 4096, 5000, 65536};
  pthread_t t;
  EACH(i, stack_sizes) EACH(k, guards) {
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, stack_sizes[i]);
    pthread_attr_setguardsize(&a, guards[k]);
    const char* state = format("size %zu, guard %zu", stack_sizes[i], guards[k]);
    int e = pthread_create(&t, &a, stack_sizes[i] > 16384 ? own : nothing, (void*)state);
    if (e == 0) pthread_join(t, NULL);
    show("pthread_create", state, e);
    pthread_attr_destroy(&a);
  }
  pthread_attr_init(&a);
  pthread_attr_setstack(&a, memory, sizeof memory);
  pthread_attr_setschedpolicy(&a, SCHED_OTHER);
  pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
  pthread_create(&t, &a, own, "own stack");
  pthread_join(t, NULL);
  pthread_attr_destroy(&a);
  // The attributes of another thread.
  pthread_create(&t, NULL, waits, NULL);
  pthread_attr_t theirs;
  CASE("another", pthread_getattr_np, t, &theirs);
  int detach;
  CASE("another", pthread_attr_getdetachstate, &theirs, &detach);
  printf("detach %d\n", detach);
  pthread_attr_destroy(&theirs);
  pthread_detach(t);
  CASE("detached since", pthread_getattr_np, t, &theirs);
  pthread_attr_getdetachstate(&theirs, &detach);
  printf("detach %d\n", detach);
  pthread_attr_destroy(&theirs);
  sem_post(&go);
}
static void fresh(void) {
  CASE("", pthread_attr_init, &a);
  show_all("fresh", &a, NULL);
  CASE("", pthread_attr_destroy, &a);
}

static void cases(void) {
  fresh();
  integers();
  sizes();
  stacks();
  affinity_and_mask();
  defaults();
  running();
  if (getpid() == gettid()) own("main");
  else own("a thread");
}
