
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
extern "C" void tell(int what);
extern "C" pthread_mutex_t shared_mutex;
extern "C" pthread_cond_t shared_cond;
extern "C" int shared_turn;
static pthread_key_t key;
struct Local {
  int n = 42;
  bool used = false;
  ~Local() { if (used) tell(1); }
};
static thread_local Local local;
static __thread int plain = 17;
static void key_destructor(void*) { tell(2); }
static pthread_t early;
static sem_t go;
static void* early_thread(void*) {
  sem_wait(&go);
  tell(3);
  return nullptr;
}
struct Object {
  Object() {
    pthread_key_create(&key, key_destructor);
    sem_init(&go, 0, 0);
    pthread_create(&early, nullptr, early_thread, nullptr);
    tell(4);
  }
  ~Object() {
    sem_post(&go);
    pthread_join(early, nullptr);
    pthread_key_delete(key);
    tell(5);
  }
} object;
extern "C" int use(int n) {
  local.used = true;
  local.n += n;
  plain += n;
  pthread_setspecific(key, (void*)1);
  return local.n * 1000 + plain;
}
extern "C" int only_plain(int n) { pthread_setspecific(key, (void*)1); return plain += n; }
extern "C" void clear() { pthread_setspecific(key, nullptr); }
// The program's threads and ours take turns by the program's objects.
static void* turns(void* p) {
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&shared_mutex);
    while (shared_turn % 2 != 1) pthread_cond_wait(&shared_cond, &shared_mutex);
    shared_turn++;
    pthread_cond_broadcast(&shared_cond);
    pthread_mutex_unlock(&shared_mutex);
  }
  return p;
}
extern "C" void start(pthread_t* t) { pthread_create(t, nullptr, turns, nullptr); }
extern "C" int same_thread(pthread_t t) { return pthread_equal(t, pthread_self()); }
extern "C" int tids_agree() { return gettid() == syscall(SYS_gettid); }
extern "C" void sets_errno() { errno = EDOM; }
