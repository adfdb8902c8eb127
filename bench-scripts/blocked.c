// One argument: how many threads block at once, with default attributes. Prints the kB that each costs: resident
// memory and page tables.
#include "bench.h"

static sem_t all_blocked, go;
static atomic_long started;
static long threads;

static void* body(void* p) {
  if (++started == threads) sem_post(&all_blocked);
  while (sem_wait(&go)) {
  }
  return p;
}

static long field(const char* name) {
  FILE* f = fopen("/proc/self/status", "r");
  char line[256];
  long kb = 0;
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) kb = atol(line + strlen(name));
  if (f) fclose(f);
  return kb;
}
static long memory_kb(void) { return field("VmRSS:") + field("VmPTE:"); }

int main(int argc, char** argv) {
  threads = argument(argc, argv, 100000);
  pthread_t* t = malloc(threads * sizeof *t);
  memset(t, 1, threads * sizeof *t);
  sem_init(&all_blocked, 0, 0);
  sem_init(&go, 0, 0);
  long before = memory_kb();
  for (long i = 0; i < threads; i++) CHECK(pthread_create(&t[i], NULL, body, NULL));
  while (sem_wait(&all_blocked)) {
  }
  printf("%.2f\n", (double)(memory_kb() - before) / threads);
  for (long i = 0; i < threads; i++) sem_post(&go);
  for (long i = 0; i < threads; i++) CHECK(pthread_join(t[i], NULL));
}
