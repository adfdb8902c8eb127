// SPDX-License-Identifier: MIT
// Two writers of one pipe, each of whom writes its message in two parts.
#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
static int ends[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* writes(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#endif
  assert(write(ends[1], p, 2) == 2);
  assert(write(ends[1], p, 2) == 2);
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  return p;
}
int main() {
  pthread_t t[2];
  char got[9] = "";
  assert(pipe(ends) == 0);
  pthread_create(&t[0], 0, writes, "aa");
  pthread_create(&t[1], 0, writes, "bb");
  for (int n = 0; n < 8; n += (int)read(ends[0], got + n, 8 - n)) {
  }
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(!strcmp(got, "aaaabbbb") || !strcmp(got, "bbbbaaaa"));
}
