// SPDX-License-Identifier: MIT
// Uses everything that depends on facts that the library learns about libc, for quick/self_check.sh. The argument is a module whose
// thread-local variable has to be in static TLS. The program prints "right", on fibers or on libc's threads, or ends with the line that was
// wrong.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define check(x) ((x) ? (void)0 : wrong(__LINE__, #x))
static void wrong(int line, const char* what) {
  fprintf(stderr, "line %d, thread %d: %s\n", line, gettid(), what);
  _exit(1);
}

extern int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);
extern void* __dso_handle;

static __thread int with_value = 42;
static __thread int zero;
static __thread char large[500];
enum { kThreads = 4, kKeys = 70 };  // more keys than have their place in the TCB
static pthread_key_t keys[kKeys];
static int destroyed[kKeys], tls_destroyed, cleaned;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, robust;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int arrived, go_on, plugin_is_there;
static int* (*plugin)(void);

static void destroy_key(void* p) { __atomic_add_fetch(&destroyed[(long)p - 1], 1, __ATOMIC_SEQ_CST); }
static void destroy_tls(void* p) {
  check(p == large);
  __atomic_add_fetch(&tls_destroyed, 1, __ATOMIC_SEQ_CST);
}
static void clean(void* p) { __atomic_add_fetch((int*)p, 1, __ATOMIC_SEQ_CST); }

static void* uses_all(void* p) {
  check(errno == 0 && with_value == 42 && zero == 0 && large[0] == 0 && large[499] == 0);
  for (int i = 0; i < kKeys; i++) check(pthread_getspecific(keys[i]) == NULL);
  pthread_attr_t attr;
  void* low;
  size_t size;
  check(pthread_getattr_np(pthread_self(), &attr) == 0 && pthread_attr_getstack(&attr, &low, &size) == 0);
  check((char*)&attr >= (char*)low && (char*)&attr < (char*)low + size);
  pthread_attr_destroy(&attr);
  int state;
  check(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
  check(pthread_setcancelstate(state, NULL) == 0);
  errno = 5;
  with_value = 6;
  zero = 7;
  memset(large, 8, sizeof large);
  for (int i = 0; i < kKeys; i += 23) check(pthread_setspecific(keys[i], (void*)(long)(i + 1)) == 0);
  __cxa_thread_atexit_impl(destroy_tls, large, &__dso_handle);
  void* memory = malloc(100000);
  pthread_mutex_lock(&mutex);
  arrived++;
  pthread_cond_broadcast(&cond);
  while (!go_on) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
  free(memory);
  if (plugin_is_there) {
    check(*plugin() == 1234);
    *plugin() = 1;
  }
  check(errno == 5 && with_value == 6 && zero == 7 && large[499] == 8);
  for (int i = 0; i < kKeys; i++) check(pthread_getspecific(keys[i]) == (void*)(long)(i % 23 ? 0 : i + 1));
  if ((long)p & 1) pthread_exit(p);
  return p;
}

static void round_of_threads(const char* module) {
  pthread_t t[kThreads];
  arrived = go_on = 0;
  for (long i = 0; i < kThreads; i++) check(pthread_create(&t[i], NULL, uses_all, (void*)i) == 0);
  pthread_mutex_lock(&mutex);
  while (arrived < kThreads) pthread_cond_wait(&cond, &mutex);
  if (module && !plugin) {  // the existing threads get its variable
    void* m = dlopen(module, RTLD_NOW);
    if (!m) fprintf(stderr, "%s\n", dlerror());
    check(m && (plugin = dlsym(m, "variable")));
    plugin_is_there = 1;
  }
  go_on = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&mutex);
  check(setresuid(-1, -1, -1) == 0);  // signals all threads
  for (long i = 0; i < kThreads; i++) {
    void* result;
    check(pthread_join(t[i], &result) == 0 && result == (void*)i);
  }
}

static void* waits(void* sem) {
  pthread_cleanup_push(clean, &cleaned);
  sem_post(sem);
  for (;;) usleep(100000);
  pthread_cleanup_pop(0);
  return NULL;
}

static void* owns(void* p) {
  check(pthread_mutex_lock(&robust) == 0);
  return p;
}

static void* returns_tid(void* p) { return (void*)(long)gettid(); }

int main(int argc, char** argv) {
  for (int i = 0; i < kKeys; i++) check(pthread_key_create(&keys[i], destroy_key) == 0 && keys[i] == i);
  with_value = 100;
  round_of_threads(NULL);
  round_of_threads(argv[1]);
  round_of_threads(NULL);
  for (int i = 0; i < kKeys; i++) check(destroyed[i] == (i % 23 ? 0 : 3 * kThreads));
  check(tls_destroyed == 3 * kThreads && with_value == 100 && *plugin() == 1234);

  pthread_t t;
  void* result;
  sem_t sem;
  sem_init(&sem, 0, 0);
  check(pthread_create(&t, NULL, waits, &sem) == 0);
  while (sem_wait(&sem) != 0) {
  }
  check(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED && cleaned == 1);

  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&robust, &attr);
  check(pthread_create(&t, NULL, owns, NULL) == 0 && pthread_join(t, NULL) == 0 && pthread_mutex_lock(&robust) == EOWNERDEAD);
  check(pthread_mutex_consistent(&robust) == 0 && pthread_mutex_unlock(&robust) == 0);

  check(pthread_create(&t, NULL, waits, &sem) == 0 && sem_wait(&sem) == 0);
  pid_t pid = fork();  // while there is another thread
  if (pid == 0) {
    plugin_is_there = 0;
    round_of_threads(NULL);
    _exit(7);
  }
  int status;
  check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  check(pthread_cancel(t) == 0 && pthread_join(t, NULL) == 0 && cleaned == 2);
  check(pthread_create(&t, NULL, returns_tid, NULL) == 0 && pthread_join(t, &result) == 0 && (long)result != gettid());
  puts("right");
  return 0;
}
