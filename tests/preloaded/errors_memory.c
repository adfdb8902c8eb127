// SPDX-License-Identifier: MIT
// What lack of memory gives. malloc is the program's own here, and fails at the wrong time.
#include "errors.h"

#include <grp.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t);
static volatile bool none_left;
static void* lacking(void) {
  errno = ENOMEM;
  return NULL;
}
void* malloc(size_t n) { return none_left ? lacking() : __libc_malloc(n); }
void* calloc(size_t n, size_t m) { return none_left ? lacking() : __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { return none_left ? lacking() : __libc_realloc(p, n); }
#define WITHOUT(result, ...) (none_left = true, result = (__VA_ARGS__), none_left = false, result)

static void attributes(void) {
  pthread_attr_t a, before;
  cpu_set_t all;
  memset(&all, 255, sizeof all);
  sigset_t set;
  sigemptyset(&set);
  int r;
  pthread_attr_init(&a);
  show("pthread_attr_setaffinity_np", "no memory", WITHOUT(r, pthread_attr_setaffinity_np(&a, sizeof all, &all)));
  show("pthread_attr_setsigmask_np", "no memory", WITHOUT(r, pthread_attr_setsigmask_np(&a, &set)));
  CASE("afterwards", pthread_attr_setsigmask_np, &a, &set);
  CASE("before", pthread_getattr_default_np, &before);
  show("pthread_setattr_default_np", "no memory", WITHOUT(r, pthread_setattr_default_np(&a)));
  CASE("afterwards", pthread_setattr_default_np, &a);
  pthread_attr_t got;
  show("pthread_getattr_default_np", "no memory", WITHOUT(r, pthread_getattr_default_np(&got)));
  CASE("as before", pthread_setattr_default_np, &before);
  pthread_attr_destroy(&a);
  pthread_attr_destroy(&before);
  show("pthread_getattr_np", "no memory", WITHOUT(r, pthread_getattr_np(pthread_self(), &a)));
  CASE("afterwards", pthread_getattr_np, pthread_self(), &a);
  pthread_attr_destroy(&a);
}

// For keys beyond the first 32, a thread's values are allocated when it sets the first one.
static void keys(void) {
  pthread_key_t all[200];
  int r = 0;
  for (int i = 0; i < 200; i++) assert(pthread_key_create(&all[i], NULL) == 0);
  show("pthread_setspecific", "no memory", WITHOUT(r, pthread_setspecific(all[199], &r)));
  (void)WITHOUT(r, tss_set(all[199], &r));
  show_c11("tss_set", "no memory", r);
  printf("value %d\n", pthread_getspecific(all[199]) == NULL);
  for (int i = 0; i < 200; i++) pthread_key_delete(all[i]);
}

static void create(void) {
  // pthread_create may succeed. With fibers it may use a block that exists already, and on NPTL a stack that exists already.
  pthread_t t;
  int r;
  (void)WITHOUT(r, pthread_create(&t, NULL, no_work, NULL));
  show("pthread_create", "no memory, either way", r == EAGAIN ? 0 : r);
  if (r == 0) pthread_join(t, NULL);
  if (CASE("afterwards", pthread_create, &t, NULL, no_work, NULL) == 0) CASE("afterwards", pthread_join, t, NULL);
}
static void* create_there(void* p) {
  create();
  return p;
}
static void threads(void) {
  // Runs in a process that has made no thread yet, if this process has not.
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    create();
    elsewhere(create_there, NULL);
    fflush(stdout);
    _exit(0);
  }
  waitpid(pid, NULL, 0);
  in_child(create);
}

static void names(void) {
  char name[64];
  sem_t* s;
  snprintf(name, sizeof name, "/errors_memory-%d", getpid());
  s = sem_open(name, O_CREAT, 0600, 1);
  sem_close(s);
  (void)WITHOUT(s, sem_open(name, 0));
  show("sem_open", "no memory", s == SEM_FAILED ? errno : 0);
  sem_unlink(name);
  int r;
  (void)WITHOUT(r, initgroups("root", 0));
  show("initgroups", "no memory", r == -1 ? errno : 0);
}

static void handler(void) {}
static void fork_handlers(void) {
  int r;
  for (int i = 0; i < 1000 && WITHOUT(r, pthread_atfork(handler, handler, handler)) == 0; i++) {
  }
  show("pthread_atfork", "no memory", r);
}

static void cases(void) {
  attributes();
  keys();
  threads();
  names();
  in_child(fork_handlers);
}
