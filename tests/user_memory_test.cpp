// SPDX-License-Identifier: MIT
// Missing memory gives an error and no crash, with and without a lock. The handler's way back is right.
#include "shim/user_memory.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/test.h"

using namespace fiberthread;

namespace {

void* look(void* p) {
  auto* pages = static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(pages + 4096, 4096);
  long wrong = 0;
  auto* last = reinterpret_cast<uint32_t*>(pages + 4092);
  *last = 7;
  uint32_t v = 0;
  wrong += fiberthread_user_load(last, &v) != 0 || v != 7;
  wrong += fiberthread_user_load(last + 1, &v) != -EFAULT;
  wrong += fiberthread_user_load(last, reinterpret_cast<uint32_t*>(pages + 4096)) != -EFAULT;
  uint32_t expected = 7;
  wrong += fiberthread_user_exchange(last, &expected, 8) != 0 || *last != 8;
  wrong += fiberthread_user_exchange(last, &expected, 9) != 1 || expected != 8 || *last != 8;
  wrong += fiberthread_user_exchange(last + 1, &expected, 9) != -EFAULT;
  mprotect(pages, 4096, PROT_READ);
  wrong += fiberthread_user_exchange(last, &expected, 9) != -EFAULT || *last != 8;
  mprotect(pages, 4096, PROT_READ | PROT_WRITE);
  *last = 7;
  uint64_t pair[2] = {1, 2}, copy[2] = {};
  wrong += !copy_user(&copy, &pair) || copy[0] != 1 || copy[1] != 2;
  wrong += copy_user(&copy, reinterpret_cast<uint64_t(*)[2]>(pages + 4088));
  wrong += copy_user(reinterpret_cast<uint64_t(*)[2]>(pages + 4088), &pair);
  for (int i = 0; i < 100; i++) {
    // These accesses come under the lock of a queue.
    wrong += syscall(SYS_futex, last + 1, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0) != -1 || errno != EFAULT;
    wrong += syscall(SYS_futex, last, FUTEX_WAIT_PRIVATE, 6, nullptr, nullptr, 0) != -1 || errno != EAGAIN;
  }
  munmap(pages, 4096);
  *static_cast<long*>(p) = wrong;
  return nullptr;
}

}  // namespace

Test(user_memory, missing_pages_are_errors) {
  long on_thread = -1, on_main = -1;
  pthread_t t;
  cr_assert(pthread_create(&t, nullptr, look, &on_thread) == 0 && pthread_join(t, nullptr) == 0);
  look(&on_main);
  cr_assert(on_thread == 0 && on_main == 0);
}
