// SPDX-License-Identifier: MIT
// A kernel without rseq, which a filter that answers ENOSYS can imitate. libc ends the process if a thread cannot register though the
// thread that made it seems registered. Threads are made by main, by the child of a fork in a thread, by that one's child, and so on. In
// each, libc says that nothing is registered.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kGenerations = 4, kThreads = 5, kTimes = 3 };

// Returns 1 if libc's area says so, or if there is no area.
static int unregistered(void) {
  const ptrdiff_t* offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
  return !offset || *(int*)((char*)__builtin_thread_pointer() + *offset + 4) < 0;
}

static void* looks(void* p) { return (void*)(long)(unregistered() && p); }

static void* generation(void* p) {
  int left = *(int*)p, seen = unregistered(), status = -1;
  for (int k = 0; k < kTimes; k++) {
    pthread_t t[kThreads];
    void* r;
    for (int i = 0; i < kThreads; i++)
      if (pthread_create(&t[i], NULL, looks, p)) return puts("no thread"), NULL;
    for (int i = 0; i < kThreads; i++) pthread_join(t[i], &r), seen += r != NULL;
  }
  printf("generation %d: %d threads without\n", kGenerations - left, seen);
  fflush(stdout);
  if (left == 0) return NULL;
  pid_t child = fork();
  if (child == 0) {
    pthread_t t;
    left--;
    // In one generation the forking thread, which is main now, makes the next one. In the other generation another thread does.
    if (left % 2) generation(&left);
    else if (pthread_create(&t, NULL, generation, &left) || pthread_join(t, NULL)) puts("no thread");
    _exit(0);
  }
  waitpid(child, &status, 0);
  if (status) printf("generation %d ended with %d\n", kGenerations - left + 1, status), fflush(stdout);
  return NULL;
}

int main(int argc, char** argv) {
  static struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rseq, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  // The emulator refuses filters, and has no rseq. Here the loader has asked for rseq already, so the program starts anew under the filter.
  if (argc == 1 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) {
    execl("/proc/self/exe", argv[0], "filtered", (char*)NULL);
    return 1;
  }
  pthread_t t;
  int left = kGenerations;
  generation(&left);
  return pthread_create(&t, NULL, generation, &left) || pthread_join(t, NULL);
}
