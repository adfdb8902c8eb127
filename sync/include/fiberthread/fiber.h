// SPDX-License-Identifier: MIT
// Fiber: the C++ form of fiberthread.h, which has the contract of each call. The man page is Fiber(3).
//
// Cost: about 200 ns to spawn and join an empty fiber (2026-11-21). A callable that does not fit into one word, or is not trivially
// copyable, also costs a malloc.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fiberthread.h"

namespace fiberthread {

// Options of a new fiber. The defaults are those of a thread.
struct FiberOptions {
  size_t stack_size = 0;       // bytes; 0: the size that a thread gets
  const char* name = nullptr;  // at most 15 characters; null: the name of the fiber that makes it
  bool bound = false;          // true: the fiber gets a kernel thread of its own
  bool joinable = true;
  fiberthread_cord_t cord = nullptr;  // the cord that the fiber lives in; null: none
};

// Names a fiber and owns nothing. The program may copy, compare and keep it. Each call returns ESRCH once the fiber is gone. Fibers and
// foreign threads may call all members; signal handlers may call wakeup() and id(). No member parks. Errors as of the C functions.
class FiberRef {
 public:
  constexpr FiberRef() = default;
  constexpr FiberRef(fiberthread_t handle) : handle_(handle) {}

  fiberthread_t handle() const { return handle_; }
  uint64_t id() const { return fiberthread_id(handle_); }
  int name(char* buffer, size_t size) const { return fiberthread_get_name(handle_, buffer, size); }
  int set_name(const char* name) const { return fiberthread_set_name(handle_, name); }
  int wakeup() const { return fiberthread_wakeup(handle_); }
  int cancel() const { return fiberthread_cancel(handle_); }
  int set_joinable(bool joinable) const { return fiberthread_set_joinable(handle_, joinable); }

  explicit operator bool() const { return handle_ != nullptr; }
  friend bool operator==(FiberRef a, FiberRef b) { return a.handle_ == b.handle_; }
  friend bool operator!=(FiberRef a, FiberRef b) { return a.handle_ != b.handle_; }

 protected:
  fiberthread_t handle_ = nullptr;
};

// Owns a fiber. The fiber must have been joined or detached before the object is destroyed, else the process aborts, as with std::thread.
// An object can be moved and not copied, and only one thread at a time may use it. Fibers and foreign threads may call all members.
class Fiber : public FiberRef {
 public:
  Fiber() = default;
  Fiber(Fiber&& other) noexcept { take(other); }
  Fiber& operator=(Fiber&& other) noexcept {
    if (this != &other) {
      end();
      take(other);
    }
    return *this;
  }
  ~Fiber() { end(); }

  // Runs function(arguments…) in a fiber, with copies of all of them, as std::thread does. The function returns nothing or a pointer, which
  // join() gives. On failure the object names no fiber, and error() has the reason: EAGAIN, EINVAL, ERANGE, EPIPE. Never parks.
  template <class Function, class... Arguments, class = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, FiberOptions>>>
  static Fiber spawn(Function&& function, Arguments&&... arguments) {
    return make(nullptr, true, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }
  template <class Function, class... Arguments>
  static Fiber spawn(const FiberOptions& options, Function&& function, Arguments&&... arguments) {
    return make(&options, true, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }
  // Makes a fiber like spawn(), but it does not run until start() or call(). If neither is called, the fiber is discarded with the object.
  // Never parks.
  template <class Function, class... Arguments, class = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, FiberOptions>>>
  static Fiber create(Function&& function, Arguments&&... arguments) {
    return make(nullptr, false, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }
  template <class Function, class... Arguments>
  static Fiber create(const FiberOptions& options, Function&& function, Arguments&&... arguments) {
    return make(&options, false, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  }

  // Returns the reason why the object names no fiber, or 0 if no fiber was to be made. Never parks.
  int error() const { return error_; }

  // Makes the fiber runnable. Errors as of fiberthread_start(). Never parks.
  int start() { return begin(fiberthread_start); }
  // Runs the fiber at once. Errors as of fiberthread_call(). Parks.
  int call() { return begin(fiberthread_call); }

  // Waits until the fiber has ended, and stores its result. Times are in nanoseconds from now. On 0 the object names no fiber any more.
  // Errors as of fiberthread_join(). Parks.
  int join(void** result = nullptr) { return joined(fiberthread_join(handle_, result)); }
  int join_timeout(uint64_t timeout_ns, void** result = nullptr) { return joined(fiberthread_join_timeout(handle_, result, timeout_ns)); }
  // Makes the fiber one that is not joined, and lets go of it. EBUSY, EINVAL, ESRCH. Never parks.
  int detach() {
    int e = fiberthread_set_joinable(handle_, 0);
    if (e == 0) handle_ = nullptr;
    return e;
  }
  // Makes the fiber joinable or not. EBUSY, EINVAL, ESRCH. Never parks.
  int set_joinable(bool joinable) {
    int e = fiberthread_set_joinable(handle_, joinable);
    if (e == 0) joinable_ = joinable;
    return e;
  }

  // The C functions of these names, for the caller. yield(), yield_timeout() and sleep() park.
  static FiberRef self() { return fiberthread_self(); }
  static int yield() { return fiberthread_yield(); }
  static int yield_timeout(uint64_t timeout_ns) { return fiberthread_yield_timeout(timeout_ns); }
  static void reschedule() { fiberthread_reschedule(); }
  static int sleep(uint64_t timeout_ns) { return fiberthread_sleep(timeout_ns); }
  static bool cancelled() { return fiberthread_cancelled(); }
  static bool set_cancellable(bool cancellable) { return fiberthread_set_cancellable(cancellable); }

  static FiberRef find(uint64_t id) { return fiberthread_find(id); }
  // Calls visit(FiberRef), which returns bool, like fiberthread_each(), until it returns false. Never parks by itself.
  template <class Visit>
  static void each(Visit visit) {
    fiberthread_each([](fiberthread_t f, void* p) -> int { return !(*static_cast<Visit*>(p))(FiberRef(f)); }, &visit);
  }

 private:
  // The argument of a fiber that was not started, and the function that frees it.
  struct Pending {
    void* argument = nullptr;
    void (*drop)(void* argument) = nullptr;
  };

  template <class Function, class... Arguments>
  struct Closure {
    using Parts = std::tuple<Function, Arguments...>;
    using Result = std::invoke_result_t<Function, Arguments...>;
    static_assert(std::is_void_v<Result> || std::is_convertible_v<Result, void*>, "a fiber returns nothing, or a pointer");
    // The callable travels in the argument itself, if it fits.
    static constexpr bool kSmall = sizeof(Parts) <= sizeof(void*) && std::is_trivially_copyable_v<Function> &&
                                   (std::is_trivially_copyable_v<Arguments> && ...) && std::is_trivially_destructible_v<Parts>;

    // Destroys the callable when the fiber ends, also when it is unwound.
    struct Owner {
      Parts* parts;
      ~Owner() { delete parts; }
    };

    template <class F, class... A>
    static void* pack(F&& function, A&&... arguments) {
      if constexpr (kSmall) {
        Parts parts(std::forward<F>(function), std::forward<A>(arguments)...);
        void* argument = nullptr;
        std::memcpy(static_cast<void*>(&argument), static_cast<const void*>(&parts), sizeof parts);
        return argument;
      } else {
        return new (std::nothrow) Parts(std::forward<F>(function), std::forward<A>(arguments)...);
      }
    }
    static void drop(void* argument) {
      if constexpr (!kSmall) delete static_cast<Parts*>(argument);
      else (void)argument;
    }
    static void* run(void* argument) {
      if constexpr (kSmall) {
        alignas(Parts) unsigned char room[sizeof(void*)];
        std::memcpy(room, &argument, sizeof room);
        return run_parts(*std::launder(reinterpret_cast<Parts*>(room)));
      } else {
        Owner owner{static_cast<Parts*>(argument)};
        return run_parts(*owner.parts);
      }
    }
    static void* run_parts(Parts& parts) {
      if constexpr (std::is_void_v<Result>) {
        std::apply([](auto&&... all) { invoke(std::move(all)...); }, std::move(parts));
        return nullptr;
      } else {
        return std::apply([](auto&&... all) -> void* { return invoke(std::move(all)...); }, std::move(parts));
      }
    }
    // Does what std::invoke does, without <functional>.
    template <class F, class... A>
    static decltype(auto) invoke(F&& function, A&&... arguments) {
      if constexpr (std::is_member_function_pointer_v<std::decay_t<F>>) return invoke_member(function, std::forward<A>(arguments)...);
      else return std::forward<F>(function)(std::forward<A>(arguments)...);
    }
    template <class F, class Object, class... A>
    static decltype(auto) invoke_member(F function, Object&& object, A&&... arguments) {
      if constexpr (std::is_pointer_v<std::decay_t<Object>>) return (object->*function)(std::forward<A>(arguments)...);
      else return (std::forward<Object>(object).*function)(std::forward<A>(arguments)...);
    }
  };

  template <class Function, class... Arguments>
  static Fiber make(const FiberOptions* options, bool at_once, Function&& function, Arguments&&... arguments) {
    using Made = Closure<std::decay_t<Function>, std::decay_t<Arguments>...>;
    Fiber fiber;
    void* argument = Made::pack(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    if (!Made::kSmall && !argument) {
      fiber.error_ = EAGAIN;
      return fiber;
    }
    fiberthread_options_t o{};
    if (options) {
      o.stack_size = options->stack_size;
      o.name = options->name;
      o.bound = options->bound;
      o.detached = !options->joinable;
      o.cord = options->cord;
    }
    fiber.error_ = at_once ? fiberthread_spawn(&fiber.handle_, options ? &o : nullptr, Made::run, argument)
                           : fiberthread_new(&fiber.handle_, options ? &o : nullptr, Made::run);
    if (fiber.error_ != 0) {
      Made::drop(argument);
      fiber.handle_ = nullptr;
      return fiber;
    }
    if (!at_once) fiber.pending_ = {argument, Made::drop};
    fiber.joinable_ = !o.detached;
    return fiber;
  }

  int begin(int (*how)(fiberthread_t, void*)) {
    int e = how(handle_, pending_.argument);
    if (e == 0 || e == ECANCELED) pending_ = {};  // the fiber has begun
    return e;
  }
  int joined(int e) {
    if (e == 0) handle_ = nullptr;
    return e;
  }
  void take(Fiber& other) {
    handle_ = std::exchange(other.handle_, nullptr);
    pending_ = std::exchange(other.pending_, {});
    error_ = other.error_;
    joinable_ = other.joinable_;
  }
  void end() {
    if (!handle_) return;
    if (pending_.drop) {
      fiberthread_discard(handle_);
      pending_.drop(pending_.argument);
    } else if (joinable_) {
      std::fputs("fiberthread: a Fiber was destroyed that was neither joined nor detached\n", stderr);
      std::abort();
    }
  }

  int error_ = 0;
  bool joinable_ = false;
  Pending pending_;
};

// One pointer for each fiber, where a variable will not do: `thread_local` variables are each fiber's own anyway. When a fiber ends, its
// pointer is deleted. When the object is destroyed, only the caller's pointer is deleted, and those of other fibers are lost. Fibers and
// foreign threads may call all members, also at the same time. No member parks.
template <class T>
class FiberLocal {
 public:
  FiberLocal() : valid_(fiberthread_key_create(&key_, [](void* p) { delete static_cast<T*>(p); }) == 0) {}
  ~FiberLocal() {
    if (!valid_) return;
    reset();
    fiberthread_key_delete(key_);
  }
  FiberLocal(const FiberLocal&) = delete;
  FiberLocal& operator=(const FiberLocal&) = delete;

  // Returns whether there was a key left (there are PTHREAD_KEYS_MAX). If not, the object must not be used.
  bool valid() const { return valid_; }
  // Returns the caller's pointer, null at first.
  T* get() const { return static_cast<T*>(fiberthread_get_local(key_)); }
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }
  // Deletes the caller's previous pointer and stores `value`. ENOMEM: nothing has changed.
  int reset(T* value = nullptr) {
    T* old = get();
    if (old == value) return 0;
    int e = fiberthread_set_local(key_, value);
    if (e == 0) delete old;
    return e;
  }

 private:
  fiberthread_key_t key_;
  bool valid_;
};

}  // namespace fiberthread
