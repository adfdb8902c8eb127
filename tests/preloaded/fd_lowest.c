// SPDX-License-Identifier: MIT
// While the library looks at kernel threads that sleep, no number of a descriptor is taken from the program, not even for an instant.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kSleepers = 40, kRounds = 20 };
static atomic_int done;

// Sleeps in a system call that the library does not see.
static void sleep_in_kernel(long ns) {
  long t[2] = {0, ns};
#ifdef __x86_64__
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "0"(SYS_nanosleep), "D"(t), "S"(0) : "rcx", "r11", "memory");
#else
  register long x0 __asm__("x0") = (long)t, x1 __asm__("x1") = 0, x8 __asm__("x8") = SYS_nanosleep;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x8) : "memory");
#endif
}

static void* sleeper(void* p) {
  for (int i = 0; i < kRounds; i++) sleep_in_kernel(5000000);
  done++;
  return p;
}

int main(void) {
  pthread_t t[kSleepers];
  for (int i = 0; i < kSleepers; i++) assert(pthread_create(&t[i], NULL, sleeper, NULL) == 0);
  long others = 0, lost = 0;
  int lowest = dup(0);
  close(lowest);
  while (done < kSleepers) {
    for (int i = 0; i < 1000; i++) {
      int fd = dup(0);
      others += fd != lowest;
      close(fd);
      assert(dup2(0, lowest) == lowest);
      for (int n = 0; n < 3; n++) lost += fcntl(lowest, F_GETFD) < 0;
      lost += close(lowest) != 0;
    }
    usleep(100);  // gives way; nothing depends on how long
  }
  for (int i = 0; i < kSleepers; i++) pthread_join(t[i], NULL);
  printf("%ld other numbers, %ld files closed by others\n", others, lost);
  return 0;
}
