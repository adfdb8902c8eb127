// SPDX-License-Identifier: MIT
// Threads take the loader's lock only in calls that take it with NPTL too. If the program forks meanwhile, the lock stays locked in the
// child.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int expected, unexpected, steps;

// Stands in for libc's function, for all code in this process.
int dl_iterate_phdr(int (*callback)(struct dl_phdr_info*, size_t, void*), void* data) {
  static int (*real)(int (*)(struct dl_phdr_info*, size_t, void*), void*);
  if (!real) real = (int (*)(int (*)(struct dl_phdr_info*, size_t, void*), void*))dlsym(RTLD_NEXT, "dl_iterate_phdr");
  if (!atomic_load(&expected)) atomic_fetch_add(&unexpected, 1);
  return real(callback, data);
}

static void* step(void* p) {
  atomic_fetch_add(&steps, 1);
  return p;
}

static void threads(const char* when, int first) {
  atomic_store(&unexpected, 0);
  atomic_store(&steps, 0);
  for (int i = 0; i < 20; i++) {
    pthread_t t;
    atomic_store(&expected, first && i == 0);
    if (pthread_create(&t, NULL, step, NULL) != 0) puts("cannot");
    atomic_store(&expected, 0);
    // In every second round, the new thread runs while this thread spins and does not wait for it.
    while (i % 2 == 0 && atomic_load(&steps) == i) {
    }
    pthread_join(t, NULL);
  }
  printf("%s: %d\n", when, atomic_load(&unexpected));
  fflush(stdout);
}

int main(void) {
  threads("the first threads", 1);
  atomic_store(&expected, 1);
  void* library = dlopen("libm.so.6", RTLD_NOW);
  atomic_store(&expected, 0);
  threads("after dlopen", 0);
  atomic_store(&expected, 1);
  if (library) dlclose(library);
  atomic_store(&expected, 0);
  threads("after dlclose", 0);
  pid_t child = fork();
  if (child == 0) {
    threads("in the child", 1);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  threads("after the child", 0);
  printf("%x\n", status);
  return 0;
}
