// SPDX-License-Identifier: MIT
// inside_cxx [N [DEPTH]]: N threads of C++ that wait DEPTH calls deep, for debuggers to look at. Prints "ready", and ends when its stdin
// does.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <unistd.h>

struct Guarded {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  __attribute__((noinline)) void wait(int n, int depth) {
    if (depth > 0) {
      wait(n, depth - 1);
      n++;
    }
    std::unique_lock<std::mutex> lock(mutex);
    waiting++;
    for (;;) changed.wait(lock), n++;
  }
};

int main(int argc, char** argv) {
  int n = argc > 1 ? atoi(argv[1]) : 3, depth = argc > 2 ? atoi(argv[2]) : 0;
  auto* g = new Guarded;
  for (int i = 0; i < n; i++) std::thread([g, depth] { g->wait(7, depth); }).detach();
  for (bool all = false; !all; usleep(1000)) {
    std::lock_guard<std::mutex> lock(g->mutex);
    all = g->waiting == n;
  }
  puts("ready");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  _Exit(0);
}
