// SPDX-License-Identifier: MIT
// usage: micro CASE [SIZE]     SIZE may also be part of the name: micro mutex 8, micro mutex-8
//
// Small measurements of POSIX threads. The program knows nothing of fibers. It prints one line of NAME=NUMBER, and ends with 0. When the
// platform does not give that many threads, it prints "cannot (N k)" and ends with 3. Names of figures:
//   ns       one operation                      s         all of it, seconds
//   kb       each blocked thread: resident memory, page tables, and the kernel's stacks and slab (of the whole machine)
//   own_kb   the part of it that /proc/self/status shows                  available_kb  by MemAvailable, a second opinion
//   end_s    waking and joining them            left_mb   what the process keeps a second after all have ended
#include "micro.h"
#include "micro_crowds.h"
#include "micro_memory.h"
#include "micro_pairs.h"

// ---- starting a process ----

// Measures starting and ending the program with the library `word` preloaded: the median.
static void measure_starts(const char* program, char** arguments) {
  enum { kStarts = 1000, kWarm = 10 };
  static uint64_t times[kStarts];
  char preload[4096];
  snprintf(preload, sizeof preload, "LD_PRELOAD=%s", word ? word : "");
  char* environment[] = {preload, NULL};
  for (int i = -kWarm; i < kStarts; i++) {
    pid_t pid;
    int status;
    uint64_t start = now_ns();
    CHECK(posix_spawn(&pid, program, NULL, NULL, arguments, environment));
    if (waitpid(pid, &status, 0) != pid || status != 0) fail(program, 0);
    if (i >= 0) times[i] = now_ns() - start;
  }
  qsort(times, kStarts, sizeof times[0], earlier);
  printf("ns=%.2f\n", (double)times[kStarts / 2]);
}
static void start_true(void) {  // micro start-true LIBRARY
  char* arguments[] = {"true", NULL};
  measure_starts("/bin/true", arguments);
}
static void one_thread(void) {
  pthread_t t;
  create(&t, NULL, nothing, NULL, 0);
  CHECK(pthread_join(t, NULL));
}
static void start_thread(void) {  // micro start-thread LIBRARY: the same for a program that makes and joins one thread
  char* arguments[] = {"micro", "one-thread", NULL};
  measure_starts("/proc/self/exe", arguments);
}

// ---- the cases ----

static const struct {
  const char* name;
  void (*run)(void);
  long size;
} cases[] = {
    {"create-join", create_join, 1},
    {"create", create_many, 500},
    {"detached", detached, 1000},
    {"sem-ping-pong", sem_ping_pong, 2},
    {"cond-ping-pong", cond_ping_pong, 2},
    {"halves", halves, 100},
    {"yield", yield, 16},
    {"mutex-alone", mutex_alone, 1},
    {"mutex-uncontended", mutex_uncontended, 1},
    {"mutex", mutex_crowd, 8},
    {"sigmask", mask_of_main, 1},
    {"broadcast", broadcast, 1000},
    {"socketpair-ping-pong", socketpair_ping_pong, 2},
    {"spinners", spinners, 64},
    {"sleep-bound", sleep_bound, 1},
    {"read", read_file, 1},
    {"disk", disk, 4},
    {"sleepers", sleepers, 100000},
    {"blocked", blocked, 1000000},
    {"blocked-256k", blocked_256k, 1000000},
    {"skynet", skynet, 1000000},
    {"start-late", start_late, 400},
    {"woken-late", woken_late, 400},
    {"beside-hogs", beside_hogs, 1000},
    {"beside-reads", beside_reads, 1000},
    {"work", work, 1},
    {"start-true", start_true, 1},
    {"start-thread", start_thread, 1},
    {"one-thread", one_thread, 1},
};
enum { kCases = sizeof cases / sizeof cases[0] };

int main(int argc, char** argv) {
  char name[64] = "";
  if (argc > 1) snprintf(name, sizeof name, "%s", argv[1]);
  word = argc > 2 ? argv[2] : NULL;
  long wanted = word ? atol(word) : 0;
  for (int attempt = 0; attempt < 2; attempt++) {
    for (int i = 0; i < kCases; i++)
      if (!strcmp(name, cases[i].name)) {
        size = wanted > 0 ? wanted : cases[i].size;
        // If memory runs out, the kernel must end this program, and no other.
        int fd = open("/proc/self/oom_score_adj", O_WRONLY);
        if (fd >= 0 && write(fd, "1000", 4) == 4) close(fd);
        cases[i].run();
        fflush(stdout);
        _exit(0);  // threads may still wait
      }
    char* number = strrchr(name, '-');  // `name` is not a case, but may end with the size
    if (!number || !(wanted = atol(number + 1))) break;
    *number = 0;
  }
  fprintf(stderr, "usage: micro CASE [SIZE]\ncases:");
  for (int i = 0; i < kCases; i++) fprintf(stderr, cases[i].size > 2 ? " %s-%ld" : " %s", cases[i].name, cases[i].size);
  fprintf(stderr, "\n");
  return 2;
}
