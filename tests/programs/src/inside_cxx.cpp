// Threads of C++ that wait, for those who look inside. Says "ready", and ends when its stdin does.
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
  __attribute__((noinline)) void wait(int n) {
    std::unique_lock<std::mutex> lock(mutex);
    waiting++;
    for (;;) changed.wait(lock), n++;
  }
};

int main() {
  auto* g = new Guarded;
  for (int i = 0; i < 3; i++) std::thread([g] { g->wait(7); }).detach();
  for (bool all = false; !all; usleep(1000)) {
    std::lock_guard<std::mutex> lock(g->mutex);
    all = g->waiting == 3;
  }
  puts("ready");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {}
  _Exit(0);
}
