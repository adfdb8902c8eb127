// SPDX-License-Identifier: MIT
// Makes threads that wait until no more can be made, or there are as many as the argument says. Then all end.
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sem_t end;

static void* waits(void* p) {
  while (sem_wait(&end)) {
  }
  return p;
}

int main(int c, char** v) {
  long most = c > 1 ? atol(v[1]) : 1000, made = 0, joined = 0;
  pthread_t* threads = malloc((size_t)most * sizeof *threads);
  int e = 0;
  while (made < most && !(e = pthread_create(&threads[made], NULL, waits, (void*)made))) made++;
  printf("%ld threads: %s\n", made, e ? strerror(e) : "no more wanted");
  for (long i = 0; i < made; i++) sem_post(&end);
  for (long i = 0; i < made; i++) {
    void* result;
    joined += pthread_join(threads[i], &result) == 0 && result == (void*)i;
  }
  printf("%ld ended\n", joined);
  pthread_t one;
  sem_post(&end);
  if ((e = pthread_create(&one, NULL, waits, NULL)) || pthread_join(one, NULL)) printf("none afterwards: %s\n", strerror(e));
  return 0;
}
