// SPDX-License-Identifier: MIT
// Cancellation: a worker has taken an item, and is cancelled in the write() of its log before it has done it. The item is lost.
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int left = 2, done, log_file;
static void* works(void* p) {
  for (int more = 1; more;) {
    int state;
    pthread_testcancel();
#ifdef MENDED
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
#endif
    pthread_mutex_lock(&lock);
    more = left > 0;
    left -= more;
    pthread_mutex_unlock(&lock);
    write(log_file, "took\n", 5);
    pthread_mutex_lock(&lock);
    done += more;
    pthread_mutex_unlock(&lock);
#ifdef MENDED
    pthread_setcancelstate(state, &state);
#endif
  }
  return p;
}
int main() {
  pthread_t t;
  log_file = open("/dev/null", O_WRONLY);
  pthread_create(&t, 0, works, 0);
  usleep(50000);
  pthread_cancel(t);
  pthread_join(t, 0);
  assert(done + left == 2);
}
