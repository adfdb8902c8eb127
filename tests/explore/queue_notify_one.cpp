// SPDX-License-Identifier: MIT
// A bounded queue in C++ with one condition variable for "not full" and "not empty": notify_one() may wake a thread of the wrong side.
#include <condition_variable>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>
class Queue {
 public:
  void put(int i) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return items_.size() < 1; });
    items_.push(i);
    tell();
  }
  int take() {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return !items_.empty(); });
    int i = items_.front();
    items_.pop();
    tell();
    return i;
  }

 private:
  void tell() {
#ifdef MENDED
    changed_.notify_all();
#else
    changed_.notify_one();
#endif
  }
  std::mutex lock_;
  std::condition_variable changed_;
  std::queue<int> items_;
};
int main() {
  Queue queue;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++) threads.emplace_back([&] { queue.put(1); });
  for (int i = 0; i < 2; i++) threads.emplace_back([&] { queue.take(); });
  for (auto& t : threads) t.join();
}
