// SPDX-License-Identifier: MIT
// Libraries are loaded while threads exist. Their thread-local variables have their values in threads born before and after, with both
// models of access, and in constructors. A library is searched in the directories of the code that calls dlopen().
// libs: -Wl,--enable-new-dtags -Wl,-rpath,$ORIGIN/private
#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <libgen.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char source[] =
    "#include <pthread.h>\n"
    "static __thread int value MODEL = 42; static __thread int zero MODEL;\n"
    "static void* look(void* p) { *(int*)p = value == 42 && zero == 0; value = 7; return p; }\n"
    "static int in_constructor;\n"
    "__attribute__((constructor)) static void begin(void) { pthread_t t; in_constructor = value == 42; value = 41; value++;\n"
    "  int ok = 0; if (pthread_create(&t, 0, look, &ok) == 0) { pthread_join(t, 0); in_constructor += 10 * ok; } }\n"
    "int constructed(void) { return in_constructor; }\n"
    "int add(int n) { zero += n; return value + zero; }\n";

// This is more than the loader keeps free next to the program's variables. So each thread gets its copy when it first asks for it.
static const char large_source[] =
    "__thread char large[200000] = {42};\n"
    "int constructed(void) { return 11; }\n"
    "int add(int n) { large[199999] += n; return large[0] + large[199999]; }\n";

static void build(const char* path, const char* model, const char* text) {
  char c[256], command[1024];
  snprintf(c, sizeof c, "%s.c", path);
  FILE* f = fopen(c, "w");
  fputs(text, f);
  fclose(f);
  snprintf(command, sizeof command, "%s -shared -fPIC -O1 '-DMODEL=%s' %s -o %s", getenv("CC") ? getenv("CC") : "gcc", model, c, path);
  assert(system(command) == 0);
}

static pthread_barrier_t loaded;
static int (*add)(int);
static void* early(void* p) {
  pthread_barrier_wait(&loaded);  // this thread was born before dlopen
  pthread_barrier_wait(&loaded);
  for (int i = 1; i <= 20; i++) {
    assert(add(1) == 42 + i);
    sched_yield();
  }
  return p;
}
static void* silent(void* p) {
  sched_yield();
  return p;
}
static void* late(void* p) {
  for (int i = 1; i <= 20; i++) {
    assert(add(1) == 42 + i);
    sched_yield();
  }
  return p;
}

int main() {
  // All libraries are built before there are threads. The directory "private" has existed since this program was built, because the loader
  // ignores directories for good that were missing when the program started.
  char self[4096], private_dir[4200], library[4300];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  assert(n > 0);
  self[n] = 0;
  snprintf(private_dir, sizeof private_dir, "%s/private", dirname(self));
  snprintf(library, sizeof library, "%s/libprivate-%d.so", private_dir, getpid());
  build(library, "", source);
  char dir[200], path[256];
  const char* tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%s", tmp ? tmp : "/tmp");
  const char* models[] = {"__attribute__((tls_model(\"initial-exec\")))", ""};
  enum { kThreads = 20 };
  for (int m = 0; m < 3; m++) {
    snprintf(path, sizeof path, "%s/lib%d-%d.so", dir, m, getpid());
    build(path, m < 2 ? models[m] : "", m < 2 ? source : large_source);
  }
  for (int m = 0; m < 3; m++) {
    snprintf(path, sizeof path, "%s/lib%d-%d.so", dir, m, getpid());
    for (int round = 0; round < 2; round++) {
      pthread_barrier_init(&loaded, NULL, kThreads + 1);
      pthread_t t[2 * kThreads];
      for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, early, NULL);
      pthread_barrier_wait(&loaded);
      void* h = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
      if (!h) fprintf(stderr, "%s\n", dlerror());
      assert(h);
      // These threads end without a look at the variables. Other threads have their memory next.
      for (int i = 0; i < 3; i++) {
        for (int j = 0; j < kThreads; j++) pthread_create(&t[kThreads + j], NULL, silent, NULL);
        for (int j = 0; j < kThreads; j++) pthread_join(t[kThreads + j], NULL);
      }
      assert(((int (*)(void))dlsym(h, "constructed"))() == 11);
      add = (int (*)(int))dlsym(h, "add");
      assert(add(0) == 42);
      pthread_barrier_wait(&loaded);
      for (int i = 0; i < kThreads; i++) pthread_create(&t[kThreads + i], NULL, late, NULL);
      for (int i = 0; i < 2 * kThreads; i++) pthread_join(t[i], NULL);
      assert(dlclose(h) == 0);
      assert(dlopen("/nonexistent.so", RTLD_NOW) == NULL && strstr(dlerror(), "nonexistent"));
      assert(dlerror() == NULL);
    }
  }
  // In a directory that only this program's RUNPATH names.
  void* h = dlopen(basename(library), RTLD_NOW);
  if (!h) fprintf(stderr, "%s\n", dlerror());
  assert(h);
  char by_origin[4400];
  snprintf(by_origin, sizeof by_origin, "$ORIGIN/private/libprivate-%d.so", getpid());
  assert(dlopen(by_origin, RTLD_NOW) == h);
  unlink(library);
  puts("ok");
  return 0;
}
