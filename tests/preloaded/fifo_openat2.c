// SPDX-License-Identifier: MIT
// openat2() of a FIFO waits for the other end, and only the caller waits. The test uses libc's function (2.43), which is a cancellation
// point, or syscall() where there is none.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct how {
  uint64_t flags, mode, resolve;
};
int of_libc(int, const char*, const struct how*, size_t) __asm__("openat2") __attribute__((weak));
static int open_it(int directory, const char* name, int flags) {
  struct how how = {flags};
  return of_libc ? of_libc(directory, name, &how, sizeof how) : syscall(437 /* SYS_openat2 */, directory, name, &how, sizeof how);
}

enum { kRounds = 20 };
static char names[kRounds][16];
static int read_so_far;
static void* reads(void* p) {
  for (int i = 0; i < kRounds; i++) {
    int fd = open_it(AT_FDCWD, names[i], O_RDONLY | O_CLOEXEC);
    char c = 0;
    assert(fd >= 0 && read(fd, &c, 1) == 1 && c == 'x');
    close(fd);
    __atomic_fetch_add(&read_so_far, 1, __ATOMIC_RELAXED);
  }
  return p;
}
static void* others(void* p) {
  for (int i = 0; i < 1000; i++) usleep(10);
  return p;
}

static void* waits(void* p) {
  open_it(AT_FDCWD, names[0], O_RDONLY | O_CLOEXEC);
  return p;
}
static void cancel(void) {
  for (int i = 0; of_libc && i < kRounds; i++) {
    pthread_t t;
    void* result;
    pthread_create(&t, NULL, waits, NULL);
    if (i % 2) usleep(3000);
    assert(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
  }
}

int main() {
  for (int i = 0; i < kRounds; i++) {
    sprintf(names[i], "fifo%d", i);
    assert(mkfifo(names[i], 0600) == 0);
  }
  assert(open_it(AT_FDCWD, "absent", O_RDONLY) == -1 && errno == ENOENT);
  cancel();
  pthread_t reader, other[4];
  pthread_create(&reader, NULL, reads, NULL);
  for (int i = 0; i < 4; i++) pthread_create(&other[i], NULL, others, NULL);
  for (int i = 0; i < 4; i++) pthread_join(other[i], NULL);  // these end while no thread opens the other end
  assert(__atomic_load_n(&read_so_far, __ATOMIC_RELAXED) == 0);
  for (int i = 0; i < kRounds; i++) {
    int fd = open_it(AT_FDCWD, names[i], O_WRONLY | O_CLOEXEC);
    assert(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
  }
  pthread_join(reader, NULL);
  for (int i = 0; i < kRounds; i++) unlink(names[i]);
  puts("opened");
  return 0;
}
