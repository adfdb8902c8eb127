// SPDX-License-Identifier: MIT
// Two threads close one descriptor. Between them a third gets the same number, and loses its file to the second close.
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection;
static void* closes(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#endif
  if (connection >= 0) {
    close(connection);
    connection = -1;
  }
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  return p;
}
static void* opens(void* p) {
  int fd = open("/dev/null", O_WRONLY);
  assert(write(fd, "log", 3) == 3);
  assert(close(fd) == 0);
  return p;
}
int main() {
  pthread_t t[3];
  connection = open("/dev/null", O_RDONLY);
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, i == 2 ? opens : closes, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
