// SPDX-License-Identifier: MIT
// Two threads of OpenMP wait for a lock. Main has the lock, and stops for a debugger.
#include <omp.h>
#include <unistd.h>

static omp_lock_t lock;
static _Atomic int about_to_wait;
__attribute__((noinline)) void waits_for_lock(void) {
  about_to_wait++;
  omp_set_lock(&lock);
  omp_unset_lock(&lock);
}
int main(void) {
  omp_init_lock(&lock);
#pragma omp parallel num_threads(3)
  {
    if (omp_get_thread_num() == 0) omp_set_lock(&lock);
#pragma omp barrier
    if (omp_get_thread_num() == 0) {
      while (about_to_wait < 2) usleep(1000);
      usleep(100000);
#if defined(__x86_64__)
      __asm__ volatile("int3");
#endif
      omp_unset_lock(&lock);
    } else {
      waits_for_lock();
    }
  }
  return 0;
}
