
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef OLD
// As linked against the libpthread of 2002, whose condition variables were others.
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_cond_init, pthread_cond_init@GLIBC_2.2.5");
__asm__(".symver pthread_cond_wait, pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_signal, pthread_cond_signal@GLIBC_2.2.5");
__asm__(".symver pthread_cond_broadcast, pthread_cond_broadcast@GLIBC_2.2.5");
__asm__(".symver pthread_cond_timedwait, pthread_cond_timedwait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_destroy, pthread_cond_destroy@GLIBC_2.2.5");
#endif
#ifdef NESTED
int call_nested(int);
#endif
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER, made;
static int turn;
static __thread int local = 5;
static void* run(void* p) {
  for (int i = 0; i < 10; i++) {
    pthread_mutex_lock(&m);
    while (turn % 4 != (long)p) pthread_cond_wait(turn % 2 ? &c : &c, &m);
    turn++;
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
  }
#ifdef NESTED
  if (call_nested(5) != 15) return NULL;
#endif
  return (void*)(long)(local++ == 5);
}
static int in_constructor;
static void* early(void* p) { in_constructor += (long)p; return p; }
__attribute__((constructor)) static void begin(void) {
  pthread_t t;
  pthread_create(&t, NULL, early, (void*)3L);
  pthread_join(t, NULL);
}
__attribute__((destructor)) static void end(void) {
  pthread_t t;
  pthread_create(&t, NULL, early, (void*)4L);
  pthread_join(t, NULL);
  printf("destructor %d\n", in_constructor);
}
static void* lasts(void* p) { for (;;) pause(); }
int main() {
  pthread_t t[4], other;
  long ok = 0;
  pthread_cond_init(&made, NULL);
  struct timespec past = {1, 0};
  pthread_mutex_lock(&m);
  int e = pthread_cond_timedwait(&made, &m, &past);
  pthread_cond_signal(&made);
  pthread_mutex_unlock(&m);
  pthread_cond_destroy(&made);
  for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, run, (void*)i);
  for (int i = 0; i < 4; i++) {
    void* r;
    pthread_join(t[i], &r);
    ok += (long)r;
  }
  pthread_create(&other, NULL, lasts, NULL);
  printf("threads %ld, turns %d, timed out %d, constructor %d\n", ok, turn, e, in_constructor);
  return 7;
}
