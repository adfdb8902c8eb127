// SPDX-License-Identifier: MIT
// Cord: a kernel thread with fibers of its own, which run one at a time and need no locks among each other. The C++ form of the part of
// fiberthread.h that is about cords, where the contract of each call stands. The man page is Cord(3).
//
// Cost: a kernel thread; a switch between its fibers as between others; a message or callback from elsewhere a malloc, and a wake-up
// of the kernel thread if it sleeps.
#pragma once
#include <cerrno>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "fiber.h"
#include "fiberthread.h"

namespace fiberthread {

// All members but the destructor and join(): fibers and foreign threads. None waits but those, receive(), and the constructor for its
// kernel thread.
class Cord {
 public:
  // `name`: at most 15 characters. If it fails error() tells why, and all else is an error.
  explicit Cord(const char* name) : error_(fiberthread_cord_new(&handle_, name)) {}
  // As join(), whatever happens.
  ~Cord() {
    if (!handle_) return;
    int was = fiberthread_set_cancellable(0);
    join();
    fiberthread_set_cancellable(was);
  }
  Cord(const Cord&) = delete;
  Cord& operator=(const Cord&) = delete;

  int error() const { return error_; }
  fiberthread_cord_t handle() const { return handle_; }
  const char* name() const { return fiberthread_cord_name(handle_); }

  // As Fiber::spawn(), in this cord. EPIPE: it has ended.
  template <class Function, class... Arguments>
  Fiber spawn(Function&& function, Arguments&&... arguments) {
    FiberOptions options;
    options.cord = handle_;
    return Fiber::spawn(options, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }

  int send(void* message) { return fiberthread_cord_send(handle_, message); }
  // Of the caller's cord.
  static int receive(void** message, uint64_t timeout_ns = FIBERTHREAD_FOREVER) { return fiberthread_cord_receive(message, timeout_ns); }

  // Has f() run on the scheduler fiber. It must not wait.
  template <class F>
  int call(F&& f) {
    using Function = std::decay_t<F>;
    auto* copy = new (std::nothrow) Function(std::forward<F>(f));
    if (!copy) return ENOMEM;
    int e = fiberthread_cord_call(
        handle_,
        [](void* p) {
          auto* function = static_cast<Function*>(p);
          (*function)();
          delete function;
        },
        copy);
    if (e) delete copy;
    return e;
  }

  FiberRef find(uint64_t id) { return fiberthread_cord_find(handle_, id); }
  // bool visit(FiberRef): false ends it.
  template <class Visit>
  void each(Visit visit) {
    fiberthread_cord_each(handle_, [](fiberthread_t f, void* p) -> int { return !(*static_cast<Visit*>(p))(FiberRef(f)); }, &visit);
  }

  void close() { fiberthread_cord_close(handle_); }
  // On 0 it is no more.
  int join(uint64_t timeout_ns = FIBERTHREAD_FOREVER) {
    int e = fiberthread_cord_join(handle_, timeout_ns);
    if (e == 0 || e == ESRCH) handle_ = nullptr;
    if (e == 0) error_ = ESRCH;
    return e;
  }

 private:
  fiberthread_cord_t handle_ = nullptr;
  int error_;
};

}  // namespace fiberthread
