// Arguments: two libraries to preload. Starts `true` 1,000 times under each, in turn, and prints both medians in ns.
#include <spawn.h>
#include <sys/wait.h>

#include "bench.h"

enum { kStarts = 1000 };
static uint64_t times[2][kStarts];

static int compare(const void* a, const void* b) {
  uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  for (int i = -20; i < kStarts; i++)  // the first ones warm up
    for (int side = 0; side < 2; side++) {
      char preload[4096];
      snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[1 + side]);
      char* arguments[] = {"true", NULL};
      char* environment[] = {preload, NULL};
      pid_t pid;
      int status;
      uint64_t start = now_ns();
      CHECK(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment));
      if (waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "true failed under %s\n", argv[1 + side]);
        return 1;
      }
      if (i >= 0) times[side][i] = now_ns() - start;
    }
  for (int side = 0; side < 2; side++) qsort(times[side], kStarts, sizeof times[side][0], compare);
  printf("%.2f %.2f\n", (double)times[0][kStarts / 2], (double)times[1][kStarts / 2]);
}
