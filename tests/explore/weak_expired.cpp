// SPDX-License-Identifier: MIT
// A weak pointer that is looked at twice in C++: it has not expired at the first look, and has at the second.
#include <cassert>
#include <future>
#include <memory>
#include <mutex>
struct Session {
  int user = 7;
};
static std::mutex lock;
static std::shared_ptr<Session> session = std::make_shared<Session>();
static std::weak_ptr<Session> cached = session;
static int user() {
#ifdef MENDED
  auto s = cached.lock();
  if (!s) return 0;
  std::lock_guard<std::mutex> guard(lock);
#else
  if (cached.expired()) return 0;
  std::lock_guard<std::mutex> guard(lock);
  auto s = cached.lock();
  assert(s);
#endif
  return s->user;
}
int main() {
  auto first = std::async(std::launch::async, user), second = std::async(std::launch::async, user);
  auto ends = std::async(std::launch::async, [] {
    std::lock_guard<std::mutex> guard(lock);
    session.reset();
  });
  ends.get();
  return (first.get() | second.get()) > 7;
}
