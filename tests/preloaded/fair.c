// Shares of the CPU: equal threads get equal ones, a setter gets to run among spinners, short threads beside a hog.
// args: 2.5
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static atomic_int stop;
struct counter {
  atomic_long n;
  char pad[120];
} counters[64];

static void* count(void* p) {
  struct counter* c = p;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    unsigned x = 1;
    for (int i = 0; i < 20000; i++) x = x * 1664525 + 1013904223;
    atomic_fetch_add_explicit(&c->n, x ? 1 : 2, memory_order_relaxed);
  }
  return NULL;
}

// Everybody between a half and twice of the mean, on a machine with nothing else to do ("fair 10", by hand). Beside other tests,
// the kernel's own shares differ by more.
static double most = 5;
static void shares(int n, double time) {
  pthread_t t[64];
  atomic_store(&stop, 0);
  for (int i = 0; i < n; i++) {
    counters[i].n = 0;
    if (pthread_create(&t[i], NULL, count, &counters[i])) exit(1);
  }
  double end = seconds() + time;
  while (seconds() < end) nanosleep(&(struct timespec){0, 50000000}, NULL);
  atomic_store(&stop, 1);
  long total = 0;
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL), total += counters[i].n;
  int bad = 0;
  for (int i = 0; i < n; i++) {
    double share = (double)counters[i].n * n / total;
    if (share < 1 / most || share > most) bad++, fprintf(stderr, "thread %d of %d: %.2f of its share\n", i, n, share);
  }
  printf("%d equal threads: %s\n", n, bad ? "unequal" : "fair");
}

static atomic_int set;
static void* spin(void* p) {
  while (!atomic_load_explicit(&set, memory_order_acquire));
  return p;
}
static void* setter(void* p) {
  atomic_store_explicit(&set, 1, memory_order_release);
  return p;
}
static void spinners(int n) {
  pthread_t t[64], s;
  atomic_store(&set, 0);
  for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, spin, NULL);
  pthread_create(&s, NULL, setter, NULL);
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
  pthread_join(s, NULL);
  printf("%d spinners\n", n);
}

static void* nothing(void* p) { return p; }
static void beside_a_hog(int n) {
  pthread_t hog, t;
  static struct counter c;
  atomic_store(&stop, 0);
  pthread_create(&hog, NULL, count, &c);
  for (int i = 0; i < n; i++) {
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
  }
  atomic_store(&stop, 1);
  pthread_join(hog, NULL);
  printf("%d short threads beside a hog\n", n);
}

int main(int argc, char** argv) {
  double time = argc > 1 ? atof(argv[1]) : 2.5;
  if (time >= 10) most = 2;
  shares(3, time);
  shares(8, time);
  shares(64, time * 4);
  spinners(8);
  spinners(64);
  beside_a_hog(1000);
  return 0;
}
