// SPDX-License-Identifier: MIT
// At exit in C++: main returns, and the static object that a detached thread still uses is destroyed.
#include <cassert>
#include <chrono>
#include <mutex>
#include <thread>
struct Log {
  std::mutex lock;
  bool alive = true;
  void line() {
    std::lock_guard<std::mutex> guard(lock);
    assert(alive);
  }
  ~Log() {
    std::lock_guard<std::mutex> guard(lock);
    alive = false;
  }
};
static Log& the_log() {
  static Log log;
  return log;
}
struct Other {  // destroyed after the log
  ~Other() {
    std::mutex m;
    for (int i = 0; i < 3; i++) std::lock_guard<std::mutex> guard(m);
  }
} other;
int main() {
  the_log().line();
  std::thread t([] {
    for (int i = 0; i < 2; i++) the_log().line();
  });
#ifdef MENDED
  t.join();
#else
  t.detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
#endif
}
