// SPDX-License-Identifier: MIT
// libs: -lm
// Handlers wait and move, and every register of the interrupted code comes back. Contexts are edited. Handlers are left by jumps, by
// pthread_exit and by cancellation. The flags of actions have their effects.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <execinfo.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { kThreads = 8 };
static void handle(int sig, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = handler;
  sa.sa_flags = flags | SA_SIGINFO;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static uint64_t mask_now(void) {
  sigset_t s;
  uint64_t w;
  pthread_sigmask(SIG_BLOCK, NULL, &s);
  memcpy(&w, &s, sizeof w);
  return w;
}
static void all(void* (*f)(void*)) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, f, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
}

// ---- registers, over a handler that waits ----

static sem_t gate;
static void spoil(void) {
  fesetround(FE_TOWARDZERO);
  volatile double d = 1;
  for (int i = 0; i < 40; i++) d = d / 3 + i;
#if defined(__x86_64__)
  asm volatile("pxor %%xmm0, %%xmm0\n\tpcmpeqb %%xmm1, %%xmm1\n\tpcmpeqb %%xmm15, %%xmm15\n\tpxor %%xmm7, %%xmm7" ::
                   : "xmm0", "xmm1", "xmm7", "xmm15");
  if (__builtin_cpu_supports("avx2")) asm volatile("vpcmpeqb %%ymm2, %%ymm2, %%ymm2\n\tvpxor %%ymm9, %%ymm9, %%ymm9" ::: "xmm2", "xmm9");
#endif
}
static void wait_and_move(int sig, siginfo_t* info, void* context) {
  assert(fegetround() == FE_TONEAREST);  // not the mode of the interrupted code
  spoil();
  sem_post(&gate);
  for (int i = 0; i < 3; i++) sched_yield();
  while (sem_wait(&gate)) assert(errno == EINTR);
  usleep(20);
  spoil();
#if defined(__x86_64__)
  if (sig == SIGSEGV) ((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] += 2;  // beyond the load below
#else
  if (sig == SIGSEGV) ((ucontext_t*)context)->uc_mcontext.pc += 4;
#endif
}

#if defined(__x86_64__)
// Fills all registers that can be filled, faults, and compares. Returns what differs.
static long registers(long seed) {
  int avx = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512f");
  _Alignas(64) unsigned char in[64], out[32][64], k[8];
  for (int i = 0; i < 64; i++) in[i] = (unsigned char)(seed * 31 + i * 7);
  long bad = 0, gpr = 0;
  double x87 = 0, want = (double)seed + 0.125;
  fesetround(FE_UPWARD);
#define EACH16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
  // The fault: eax loaded from address 8, a two-byte instruction with rsi as its base.
#define FAULT "mov $8, %%rsi\n\t.byte 0x8b, 0x06\n\t"
  // Registers keep their values through the fault, and so does the red zone.
  asm volatile(
      "fldl %[want]\n\t"
      "mov %[seed], %%rbx\n\tlea 1(%%rbx), %%rcx\n\tlea 2(%%rbx), %%rdx\n\tlea 3(%%rbx), %%r8\n\tlea 4(%%rbx), %%r9\n\t"
      "lea 5(%%rbx), %%r10\n\tlea 6(%%rbx), %%r11\n\tlea 7(%%rbx), %%r12\n\tlea 8(%%rbx), %%r13\n\tlea 9(%%rbx), %%r14\n\tlea 10(%%rbx), "
      "%%r15\n\t"
      "mov %%rbx, -8(%%rsp)\n\tmov %%rbx, -128(%%rsp)\n\t"
      "stc\n\tstd\n\t" FAULT
      "setnc %%al\n\tcld\n\tmovzx %%al, %%eax\n\t"
      "sub %%rbx, %%rcx\n\tcmp $1, %%rcx\n\tje 1f\n\tinc %%rax\n\t1:sub %%rbx, %%rdx\n\tcmp $2, %%rdx\n\tje 1f\n\tinc %%rax\n\t1:"
      "sub %%rbx, %%r8\n\tcmp $3, %%r8\n\tje 1f\n\tinc %%rax\n\t1:sub %%rbx, %%r9\n\tcmp $4, %%r9\n\tje 1f\n\tinc %%rax\n\t1:"
      "sub %%rbx, %%r10\n\tcmp $5, %%r10\n\tje 1f\n\tinc %%rax\n\t1:sub %%rbx, %%r11\n\tcmp $6, %%r11\n\tje 1f\n\tinc %%rax\n\t1:"
      "sub %%rbx, %%r12\n\tcmp $7, %%r12\n\tje 1f\n\tinc %%rax\n\t1:sub %%rbx, %%r13\n\tcmp $8, %%r13\n\tje 1f\n\tinc %%rax\n\t1:"
      "sub %%rbx, %%r14\n\tcmp $9, %%r14\n\tje 1f\n\tinc %%rax\n\t1:sub %%rbx, %%r15\n\tcmp $10, %%r15\n\tje 1f\n\tinc %%rax\n\t1:"
      "cmp -8(%%rsp), %%rbx\n\tje 1f\n\tinc %%rax\n\t1:cmp -128(%%rsp), %%rbx\n\tje 1f\n\tinc %%rax\n\t1:"
      "cmp $8, %%rsi\n\tje 1f\n\tinc %%rax\n\t1:fstpl %[x87]\n\t"
      : "=&a"(gpr), [x87] "=m"(x87)
      : [seed] "m"(seed), [want] "m"(want)
      : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
  bad += gpr + (x87 != want);
  memset(out, 0, sizeof out);
  if (avx512) {
#define LOAD(n) \
  "vmovdqu64 %[in], %%zmm" #n \
  "\n\tvmovdqu64 %[in], %%zmm1" \
  "6\n\t"
#define STORE(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%[out])\n\t"
    int low = (int)seed;
    asm volatile(EACH16(LOAD) "vmovdqu64 %[in], %%zmm31\n\tmov %[seed], %%eax\n\tkmovw %%eax, %%k3\n\t" FAULT EACH16(STORE)
                 "vmovdqu64 %%zmm16, 16*64(%[out])\n\tvmovdqu64 %%zmm31, 31*64(%[out])\n\tkmovw %%k3, %%eax\n\tmov %%eax, %[k]\n\tvzeroupper"
                 : [k] "=m"(*(int*)k) : [in] "m"(*(char(*)[64])in), [out] "r"(out), [seed] "m"(low) : "rax", "rsi", "memory");
    for (int i = 0; i < 32; i++) bad += (i < 17 || i == 31) && memcmp(out[i], in, 64) != 0;
    bad += (*(int*)k & 0xffff) != (seed & 0xffff);
#undef LOAD
#undef STORE
  } else if (avx) {
#define LOAD(n) "vmovdqu %[in], %%ymm" #n "\n\t"
#define STORE(n) "vmovdqu %%ymm" #n ", " #n "*64(%[out])\n\t"
    asm volatile(EACH16(LOAD) FAULT EACH16(STORE) "vzeroupper" : : [in] "m"(*(char(*)[32])in), [out] "r"(out) : "rax", "rsi", "memory");
    for (int i = 0; i < 16; i++) bad += memcmp(out[i], in, 32) != 0;
#undef LOAD
#undef STORE
  }
#define LOAD(n) "movdqu %[in], %%xmm" #n "\n\t"
#define STORE(n) "movdqu %%xmm" #n ", " #n "*64(%[out])\n\t"
  asm volatile(EACH16(LOAD) FAULT EACH16(STORE) : : [in] "m"(*(char(*)[16])in), [out] "r"(out) : "rax", "rsi", "memory");
  for (int i = 0; i < 16; i++) bad += memcmp(out[i], in, 16) != 0;
  bad += fegetround() != FE_UPWARD;
  fesetround(FE_TONEAREST);
  return bad;
}
#else
static long registers(long seed) {
  long v = 0;
  double d = seed;
  asm volatile("mov x19, %2\n\tfmov d9, %d3\n\tmov x1, #8\n\tldr w0, [x1]\n\tmov %0, x19\n\tfmov %d1, d9"
               : "=&r"(v), "=&w"(d)
               : "r"(seed), "w"((double)seed)
               : "x0", "x1", "x19", "d9", "memory");
  return (v != seed) + (d != seed);
}
#endif
static volatile long differ;
static void* keep_registers(void* p) {
  for (long i = 0; i < 60; i++) differ += registers((long)p * 1000003 + i);
  return p;
}

// ---- contexts ----

static void skip(int sig, siginfo_t* info, void* context) {
  ucontext_t* uc = context;
#if defined(__x86_64__)
  assert((void*)uc->uc_mcontext.gregs[REG_CR2] == info->si_addr);
  uc->uc_mcontext.gregs[REG_RAX] = (long)info->si_addr + 1;
  uc->uc_mcontext.gregs[REG_RIP] += 2;
#else
  uc->uc_mcontext.regs[0] = (long)info->si_addr + 1;
  uc->uc_mcontext.pc += 4;
#endif
  sigset_t now;
  assert(!sigismember(&uc->uc_sigmask, SIGSEGV) && !sigismember(&uc->uc_sigmask, SIGUSR1));
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  assert(sigismember(&now, SIGSEGV));
  if ((long)info->si_addr % 5 == 0) sched_yield();
  if ((long)info->si_addr % 7 == 0) sigaddset(&uc->uc_sigmask, SIGUSR1);
}
static long load(long address) {
  long r;
#if defined(__x86_64__)
  asm volatile(".byte 0x8b, 0x06" : "=a"(r) : "S"(address));
#else
  register long x0 asm("x0");
  register long x1 asm("x1") = address;
  asm volatile("ldr w0, [x1]" : "=r"(x0) : "r"(x1));
  r = x0;
#endif
  return r;
}
static void* edit(void* p) {
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  for (long i = 0; i < 300; i++) {
    long a = 8 * (1 + i % 500);  // a multiple of 8, since qemu 10 rounds the address of a misaligned access
    assert(load(a) == a + 1);
    assert(!!(mask_now() & 1 << (SIGUSR1 - 1)) == (a % 7 == 0));
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  }
  return p;
}

// ---- handlers that do not return ----

static __thread sigjmp_buf back;
static void jump(int sig, siginfo_t* info, void* context) {
  static __thread int n;
  if (n++ % 16 == 0) sched_yield();
  siglongjmp(back, sig);
}
static void* jumps(void* p) {
  for (volatile int i = 0; i < 2000; i++) {
    uint64_t before = mask_now();
    int r = sigsetjmp(back, 1);
    if (!r) {
      if (i % 2) load(8);
      else pthread_kill(pthread_self(), SIGUSR2);
    }
    assert(mask_now() == before);
  }
  return p;
}
static volatile int cleaned;
static void clean(void* p) { __atomic_fetch_add(&cleaned, 1, __ATOMIC_SEQ_CST); }
static void leave(int sig, siginfo_t* info, void* context) {
  pthread_cleanup_push(clean, NULL);
  if (info->si_value.sival_int == 1) pthread_exit((void*)7);
  if (info->si_value.sival_int == 2) {
    pthread_cancel(pthread_self());
    pthread_testcancel();
  }
  sem_post(&gate);
  if (info->si_value.sival_int == 3) pause();
  pthread_cleanup_pop(0);
}
static void* to_be_left(void* p) {
  pthread_cleanup_push(clean, NULL);
  if (p == (void*)0) {
    union sigval v = {.sival_int = 1};
    pthread_sigqueue(pthread_self(), SIGRTMIN, v);
  } else {
    sem_post(&gate);
    for (;;) {
      if (p == (void*)2) usleep(1000);
    }
  }
  pthread_cleanup_pop(0);
  return p;
}

// ---- flags ----

static __thread char order[64];
static void nest(int sig, siginfo_t* info, void* context) {
  snprintf(order + strlen(order), sizeof order - strlen(order), "(%d", sig - SIGRTMIN);
  if (sig == SIGRTMIN + 1 && strlen(order) < 20) {
    pthread_kill(pthread_self(), SIGRTMIN + 1);
    pthread_kill(pthread_self(), SIGRTMIN + 2);
    pthread_kill(pthread_self(), SIGRTMIN + 3);
  }
  snprintf(order + strlen(order), sizeof order - strlen(order), ")");
}
static void flags(const char* name, int sig_flags, int masks) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = nest;
  sa.sa_flags = SA_SIGINFO | sig_flags;
  if (masks) sigaddset(&sa.sa_mask, SIGRTMIN + 2);
  sigaction(SIGRTMIN + 1, &sa, NULL);
  order[0] = 0;
  pthread_kill(pthread_self(), SIGRTMIN + 1);
  sigaction(SIGRTMIN + 1, NULL, &sa);
  printf("%s: %s, then %s\n", name, order, sa.sa_handler == SIG_DFL ? "default" : "still there");
}
static void* all_flags(void* p) {
  handle(SIGRTMIN + 2, nest, 0);
  handle(SIGRTMIN + 3, nest, 0);
  flags("plain", 0, 0);
  flags("nodefer", SA_NODEFER, 0);
  flags("mask", 0, 1);
  flags("mask, nodefer", SA_NODEFER, 1);
  return p;
}

static int frames;
static __attribute__((noinline)) void in_handler(int sig, siginfo_t* info, void* context) {
  void* pc[64];
  int n = backtrace(pc, 64);
  char** names = backtrace_symbols(pc, n);
  for (int i = 0; i < n; i++)
    if (strstr(names[i], "the_culprit") || strstr(names[i], "culprits_caller")) frames++;
  free(names);
#if defined(__x86_64__)
  ((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] += 2;
#else
  ((ucontext_t*)context)->uc_mcontext.pc += 4;
#endif
}
__attribute__((noinline)) long the_culprit(long a) { return load(a) + mask_now() * 0; }
__attribute__((noinline)) long culprits_caller(long a) { return the_culprit(a) + 1; }
static void* trace(void* p) {
  culprits_caller(16);
  return p;
}

int main() {
  pthread_t t;
  void* r;
  void* warm[4];
  backtrace(warm, 4);  // loads libgcc_s
  sem_init(&gate, 0, 0);
  handle(SIGSEGV, wait_and_move, SA_NODEFER);
  all(keep_registers);
  printf("registers: %ld differ\n", differ);

  handle(SIGSEGV, skip, 0);
  all(edit);
  edit(NULL);
  puts("contexts");

  handle(SIGSEGV, jump, 0);
  handle(SIGUSR2, jump, 0);
  all(jumps);
  jumps(NULL);
  puts("jumps");

  handle(SIGRTMIN, leave, 0);
  for (long how = 0; how < 5; how++) {
    sem_init(&gate, 0, 0);
    cleaned = 0;
    pthread_create(&t, NULL, to_be_left, (void*)how);
    if (how) {
      sem_wait(&gate);
      usleep(2000);
      union sigval v = {.sival_int = how == 1 || how == 2 ? how : 3};
      if (how == 4) v.sival_int = 3;
      pthread_sigqueue(t, SIGRTMIN, v);
      if (how >= 3) {
        sem_wait(&gate);
        usleep(2000);
        pthread_cancel(t);
      }
    }
    pthread_join(t, &r);
    printf("left %ld: %ld, cleaned %d\n", how, (long)r, cleaned);
  }

  all_flags(NULL);
  pthread_create(&t, NULL, all_flags, NULL);
  pthread_join(t, NULL);
  handle(SIGRTMIN + 3, nest, SA_RESETHAND);
  pthread_kill(pthread_self(), SIGRTMIN + 3);
  struct sigaction sa;
  sigaction(SIGRTMIN + 3, NULL, &sa);
  printf("reset: %d\n", sa.sa_handler == SIG_DFL);
  handle(SIGSEGV, in_handler, 0);
  pthread_create(&t, NULL, trace, NULL);
  pthread_join(t, NULL);
  trace(NULL);
  printf("backtrace: %d\n", frames);
  return 0;
}
