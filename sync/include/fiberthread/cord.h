// SPDX-License-Identifier: MIT
// Cord: a kernel thread with fibers of its own, which run one at a time and need no locks among each other. It is the C++ form of the cords
// in fiberthread.h, which has the contract of each call. The man page is Cord(3).
//
// Cost: a kernel thread. A switch between its fibers costs the same as between others. A message or callback from elsewhere costs a malloc,
// and a wake-up of the kernel thread if that sleeps.
#pragma once
#include <cerrno>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "fiber.h"
#include "fiberthread.h"

namespace fiberthread {

// Fibers and foreign threads may call all members. A fiber of the cord must not call the destructor and join(). Only these two, receive()
// and the constructor (for its kernel thread) may park. Errors as of the C functions.
class Cord {
 public:
  // Makes a cord. `name` has at most 15 characters. On failure error() has the reason, and no other member may be called. May park.
  explicit Cord(const char* name) : error_(fiberthread_cord_new(&handle_, name)) {}
  // Waits like join(), also if the caller is cancelled. Parks.
  ~Cord() {
    if (!handle_) return;
    int was = fiberthread_set_cancellable(0);
    join();
    fiberthread_set_cancellable(was);
  }
  Cord(const Cord&) = delete;
  Cord& operator=(const Cord&) = delete;

  // Returns why there is no cord: EAGAIN, ERANGE, ENOTSUP, or ESRCH after join(). 0: there is one. Never parks.
  int error() const { return error_; }
  fiberthread_cord_t handle() const { return handle_; }
  const char* name() const { return fiberthread_cord_name(handle_); }

  // Runs function(arguments…) in a fiber of this cord, like Fiber::spawn(). EPIPE: the cord has ended. Never parks.
  template <class Function, class... Arguments>
  Fiber spawn(Function&& function, Arguments&&... arguments) {
    FiberOptions options;
    options.cord = handle_;
    return Fiber::spawn(options, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }

  // Sends a message. EPIPE, ENOMEM. Never parks.
  int send(void* message) { return fiberthread_cord_send(handle_, message); }
  // Takes a message to the caller's cord, or waits `timeout_ns` nanoseconds for one. ETIMEDOUT, EPIPE, ECANCELED, EPERM. May park.
  static int receive(void** message, uint64_t timeout_ns = FIBERTHREAD_FOREVER) { return fiberthread_cord_receive(message, timeout_ns); }

  // Has the cord run f() on its scheduler fiber. f() must not wait. EPIPE, ENOMEM. Never parks.
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

  // Returns the fiber of the cord with this id, or an empty reference. Never parks.
  FiberRef find(uint64_t id) { return fiberthread_cord_find(handle_, id); }
  // Calls visit(FiberRef), which returns bool, for each fiber of the cord, until it returns false. Never parks by itself.
  template <class Visit>
  void each(Visit visit) {
    fiberthread_cord_each(handle_, [](fiberthread_t f, void* p) -> int { return !(*static_cast<Visit*>(p))(FiberRef(f)); }, &visit);
  }

  // Closes the cord to messages and callbacks. Never parks.
  void close() { fiberthread_cord_close(handle_); }
  // Closes the cord, and waits `timeout_ns` nanoseconds for its end. On 0 the object has no cord any more. EDEADLK, ETIMEDOUT, ECANCELED,
  // ESRCH. Parks.
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
