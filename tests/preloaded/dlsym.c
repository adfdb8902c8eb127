// SPDX-License-Identifier: MIT
// Functions of threads that are looked up are the same as linked ones, whatever code asks for them and however. Looked-up functions make
// threads, and objects are used by both kinds at once. Failed look-ups give errors.
// libs: -ldl
#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nptl.h"

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define COND "GLIBC_2.3.2"
#else
#define FIRST "GLIBC_2.17"
#define COND "GLIBC_2.17"
#endif

typedef struct {
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  int (*join)(pthread_t, void**);
  int (*lock)(pthread_mutex_t*), (*unlock)(pthread_mutex_t*);
  int (*wait)(pthread_cond_t*, pthread_mutex_t*), (*broadcast)(pthread_cond_t*);
  int (*sem_wait)(sem_t*), (*sem_post)(sem_t*);
  int (*read_lock)(pthread_rwlock_t*), (*write_lock)(pthread_rwlock_t*), (*rw_unlock)(pthread_rwlock_t*);
  int (*yield)(void);
} Functions;
static const char* const names[] = {
    "pthread_create", "pthread_join", "pthread_mutex_lock",    "pthread_mutex_unlock",  "pthread_cond_wait",     "pthread_cond_broadcast",
    "sem_wait",       "sem_post",     "pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pthread_rwlock_unlock", "sched_yield"};
enum { kNames = sizeof names / sizeof *names };
static Functions by_name = {pthread_create,         pthread_join, pthread_mutex_lock, pthread_mutex_unlock,  pthread_cond_wait,
                            pthread_cond_broadcast, sem_wait,     sem_post,           pthread_rwlock_rdlock, pthread_rwlock_wrlock,
                            pthread_rwlock_unlock,  sched_yield};

// ---- a plugin, which asks for itself ----

static const char source[] =
    "#define _GNU_SOURCE\n"
    "#include <dlfcn.h>\n"
    "#include <pthread.h>\n"
    "void* next(const char* name) { void* p = dlsym(RTLD_NEXT, name); asm volatile(\"\" : \"+r\"(p)); return p; }\n"
    "void* next_version(const char* name, const char* v) { void* p = dlvsym(RTLD_NEXT, name, v); asm volatile(\"\" : \"+r\"(p)); return p; "
    "}\n"
    "void* any(const char* name) { void* p = dlsym(RTLD_DEFAULT, name); asm volatile(\"\" : \"+r\"(p)); return p; }\n"
    "int my_own(void) { return 4711; }\n"
    "#ifdef WRAPS\n"
    "int wrapped; int pthread_mutex_lock(pthread_mutex_t* m) { wrapped++; return ((int (*)(pthread_mutex_t*))dlsym(RTLD_NEXT, "
    "\"pthread_mutex_lock\"))(m); }\n"
    "#endif\n";

static void* build(const char* name, const char* flags) {
  char c[256], so[256], command[1024];
  snprintf(c, sizeof c, "./%s.c", name), snprintf(so, sizeof so, "./%s.so", name);
  FILE* f = fopen(c, "w");
  fputs(source, f);
  fclose(f);
  snprintf(command, sizeof command, "%s -w -shared -fPIC -O1 %s %s -o %s", getenv("CC") ? getenv("CC") : "gcc", flags, c, so);
  assert(system(command) == 0);
  void* h = dlopen(so, RTLD_NOW | RTLD_LOCAL);
  assert(h);
  return h;
}

// ---- this program's own function, which comes before libc's and the library's ----

static int posts;
static const char* layer_version;
int sem_post(sem_t* s) {
  __atomic_fetch_add(&posts, 1, __ATOMIC_RELAXED);
  int (*next)(sem_t*) = layer_version ? dlvsym(RTLD_NEXT, "sem_post", layer_version) : dlsym(RTLD_NEXT, "sem_post");
  return next(s);
}
static void* posts_it(void* s) {
  sem_post(s);
  return NULL;
}

// ---- half of the threads use looked-up functions, half use linked ones ----

static pthread_mutex_t m;
static pthread_cond_t c;
static pthread_rwlock_t rw;
static sem_t sem;
static int counter, round_of, inside, readers;
static Functions used;
static void* work(void* p) {
  Functions f = *(Functions*)p;
  for (int i = 0; i < 200; i++) {
    assert(f.lock(&m) == 0);
    int was = counter;
    if (i % 4 == 0) f.yield();
    counter = was + 1;
    assert(f.unlock(&m) == 0);
    f.sem_wait(&sem);
    assert(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) <= 2);
    if (i % 8 == 0) f.yield();
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    f.sem_post(&sem);
    if (i % 5 == 0) {
      f.write_lock(&rw);
      assert(__atomic_load_n(&readers, __ATOMIC_SEQ_CST) == 0);
      f.yield();
      assert(__atomic_load_n(&readers, __ATOMIC_SEQ_CST) == 0);
    } else {
      f.read_lock(&rw);
      __atomic_add_fetch(&readers, 1, __ATOMIC_SEQ_CST);
      if (i % 3 == 0) f.yield();
      __atomic_sub_fetch(&readers, 1, __ATOMIC_SEQ_CST);
    }
    f.rw_unlock(&rw);
    if (i % 50 == 0) {  // all threads meet
      static int arrived;
      f.lock(&m);
      int mine = round_of;
      if (++arrived == 4) arrived = 0, round_of++, f.broadcast(&c);
      while (round_of == mine) f.wait(&c, &m);
      f.unlock(&m);
    }
  }
  return p;
}
static void both(const char* how, const Functions* found) {
  memset(&m, 0, sizeof m), memset(&c, 0, sizeof c), memset(&rw, 0, sizeof rw);
  sem_init(&sem, 0, 2);
  counter = 0;
  used = *found;
  pthread_t t[4];
  int other = 0;
  for (int i = 0; i < 4; i++) assert((i & 2 ? used : by_name).create(&t[i], NULL, work, i & 1 ? &used : &by_name) == 0);
  for (int i = 0; i < 4; i++) assert((i & 1 ? used : by_name).join(t[i], NULL) == 0);
  // The thread and its maker give each other the same identity.
  printf("%s: counted %d", how, counter);
  for (int i = 0; i < kNames; i++) other += ((void**)found)[i] == dlsym(RTLD_DEFAULT, names[i]);
  printf(", %d of %d are those of the global scope\n", other, kNames);
}

// Before 2.36, libc's look-up of the next one without a version found the oldest version (bug 14932). Its condition variables do not go
// together with the linked ones. So the test asks for those with their version.
static int oldest_is_next;
static void* next_cond(const char* how, const char* name) {
  return oldest_is_next && strstr(how, "RTLD_NEXT") && strncmp(name, "pthread_cond_", 13) == 0 ? dlvsym(RTLD_NEXT, name, COND) : NULL;
}

static void by(const char* how, void* handle, const char* version, void* (*ask)(const char*),
               void* (*ask_version)(const char*, const char*)) {
  void* p[kNames];
  for (int i = 0; i < kNames; i++) {
    const char* v = version && strncmp(names[i], "pthread_cond_", 13) == 0 ? COND : version;
    if (!v && (p[i] = next_cond(how, names[i]))) continue;
    if (ask_version) p[i] = ask_version(names[i], v);
    else if (ask) p[i] = ask(names[i]);
    else p[i] = v ? dlvsym(handle, names[i], v) : dlsym(handle, names[i]);
    if (!p[i]) {
      printf("%s: no %s: %s\n", how, names[i], dlerror());
      return;
    }
    assert(!dlerror());
  }
  // In the global scope, sem_post is this program's own.
  both(how, (Functions*)p);
}

static void failing(const char* how, void* p) {
  const char *e = dlerror(), *last = e ? strstr(e, "undefined symbol") : NULL;
  printf("%s: %s, %s\n", how, p ? "found" : "null", last ? last : e ? e : "no error");
  printf("%s", dlerror() ? "still an error\n" : "");
}

// A program may define any of libc's functions itself.
const char* gnu_get_libc_version(void) { return "the program's"; }

int main() {
  int nptl = nptl_release();
  oldest_is_next = nptl && nptl < 36;
  // Until some code opens libc, its handle has no objects to look at.
  printf("versions: %d %d\n", dlvsym(RTLD_DEFAULT, "pthread_create", FIRST) != NULL, dlvsym(RTLD_NEXT, "pthread_create", FIRST) != NULL);
  void *libc = dlopen("libc.so.6", RTLD_NOW), *libpthread = dlopen("libpthread.so.0", RTLD_NOW), *all = dlopen(NULL, RTLD_NOW);
  void *plugin = build("plugin", ""), *wrapper = build("wrapper", "-DWRAPS");
  by("libc", libc, NULL, NULL, NULL);
  by("libc, first version", libc, FIRST, NULL, NULL);
  by("libpthread", libpthread, NULL, NULL, NULL);
  by("libpthread, first version", libpthread, FIRST, NULL, NULL);
  by("null handle", all, NULL, NULL, NULL);
  by("null handle, first version", all, FIRST, NULL, NULL);
  by("RTLD_DEFAULT", RTLD_DEFAULT, NULL, NULL, NULL);
  by("RTLD_DEFAULT, first version", RTLD_DEFAULT, FIRST, NULL, NULL);
  by("RTLD_NEXT", RTLD_NEXT, NULL, NULL, NULL);
  by("RTLD_NEXT, first version", RTLD_NEXT, FIRST, NULL, NULL);
  by("plugin's handle", plugin, NULL, NULL, NULL);
  by("plugin's RTLD_NEXT", NULL, NULL, dlsym(plugin, "next"), NULL);
  by("plugin's RTLD_NEXT, first version", NULL, FIRST, NULL, dlsym(plugin, "next_version"));
  by("plugin's RTLD_DEFAULT", NULL, NULL, dlsym(plugin, "any"), NULL);
  by("wrapper's handle", wrapper, NULL, NULL, NULL);
  printf("wrapped %d\n", *(int*)dlsym(wrapper, "wrapped") > 0);
  by("wrapper's RTLD_NEXT", NULL, NULL, dlsym(wrapper, "next"), NULL);
  layer_version = FIRST;
  int before = posts;
  by("RTLD_NEXT with a layer of a version", RTLD_NEXT, NULL, NULL, NULL);
  printf("layer called %d\n", posts > before);

  // Code that asks with RTLD_DEFAULT also finds what only its own scope has.
  void* (*any)(const char*) = dlsym(plugin, "any");
  printf("own by RTLD_DEFAULT: %d", any("my_own") != NULL);
  printf(", here: %d\n", dlsym(RTLD_DEFAULT, "my_own") != NULL);
  dlerror();
  failing("libc, unknown", dlsym(libc, "no_such_function"));
  failing("libc, unknown version", dlvsym(libc, "pthread_create", "GLIBC_9.9"));
  failing("default, unknown", dlsym(RTLD_DEFAULT, "no_such_function"));
  failing("default, unknown version", dlvsym(RTLD_DEFAULT, "pthread_create", "GLIBC_9.9"));
  failing("next, unknown", dlsym(RTLD_NEXT, "no_such_function"));
  failing("next, unknown version", dlvsym(RTLD_NEXT, "pthread_create", "GLIBC_9.9"));
  failing("libc, a version too new for it", dlvsym(libc, "pthread_mutex_lock", "GLIBC_2.34"));
  failing("libc, known", dlsym(libc, "pthread_create"));
  // A look-up that succeeds forgets an error that no code has asked for.
  for (int i = 0; i < 4; i++) {
    dlsym(RTLD_NEXT, "no_such_function");
    void* p = i < 2 ? dlsym(i ? libc : RTLD_NEXT, "pthread_create") : dlvsym(i == 2 ? libc : RTLD_NEXT, "pthread_create", FIRST);
    printf("found %d, error %d\n", p != NULL, dlerror() != NULL);
  }
  failing("not in libm", dlsym(dlopen("libm.so.6", RTLD_NOW), "my_own"));
  printf("data %d, others' functions %d\n", dlsym(libc, "environ") != NULL, dlsym(libc, "strlen") == dlsym(RTLD_NEXT, "strlen"));

  // The same in a thread and in the child of a fork.
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t t;
    int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlvsym(libc, "pthread_create", FIRST);
    posts = 0;
    sem_init(&sem, 0, 0);
    create(&t, NULL, posts_it, &sem);
    sem_wait(&sem);
    pthread_join(t, NULL);
    _exit(posts);
  }
  waitpid(pid, &status, 0);
  printf("child %#x\n", status);
  return 0;
}
