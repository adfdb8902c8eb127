// SPDX-License-Identifier: MIT
// Nursery: structured concurrency (the idea is N. J. Smith's, "Notes on structured concurrency", 2018). The fibers that are spawned in a
// nursery are its children. They end before the nursery does, and the first error of a child cancels the others.
//
//     fiberthread::Nursery nursery;
//     for (auto& url : urls) nursery.spawn([&] { return fetch(url); });  // int: 0, or an error
//     if (int error = nursery.wait()) …                                  // of the first that failed
//
// A child that is cancelled has waits that return ECANCELED from then on. A wait looks for cancellation before it commits to anything,
// never after. So a value that was to be sent is not sent, and one that was to be received is left to others. The child has to return by
// itself then.
//
// Cost: that of a spawn and a join, and an allocation each. The number of children is limited by memory only.
#pragma once
#include <cerrno>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "api.h"
#include "fiberthread.h"

namespace fiberthread {

// Fibers and foreign threads may call the members; signal handlers must not. Only the owner may call the destructor and wait(). The owner,
// the children, and any thread that knows that the nursery has not ended, may call all other members.
class FIBERTHREAD_API Nursery {
 public:
  Nursery() : Nursery(nullptr) {}
  // Makes a nursery. With a parent, it is cancelled when the parent is, and has to end before the parent does. A nursery that a child makes
  // needs no parent: when the child is cancelled, its wait() cancels the nursery. May park for the parent's mutex.
  explicit Nursery(Nursery* parent);
  // Waits like wait(). The error is lost. Parks.
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  // Runs f() in a fiber, which is a child of the nursery. f returns nothing, or an int. A result other than 0 is an error and cancels the
  // nursery. But ECANCELED is no error once the nursery is cancelled. A child that ends by pthread_exit or pthread_cancel counts as one
  // that returned ECANCELED: at once if f is compiled with exceptions, else when wait() comes to it. f must not throw.
  // Returns 0. ECANCELED: the nursery is cancelled, and f does not run. EINVAL: the options say `detached`. ENOMEM, or what
  // fiberthread_spawn() returns. May park while another thread uses the nursery, or while a child that has ended is given back.
  template <class F>
  int spawn(F&& f, const fiberthread_options_t* options = nullptr) {
    using Function = std::decay_t<F>;
    static_assert(alignof(Function) <= alignof(std::max_align_t));
    Child* child = make(sizeof(Function));
    if (!child) return ENOMEM;
    new (child->function()) Function(std::forward<F>(f));
    child->run = [](Child* c) -> int {
      // Ends a child that is unwound.
      struct Unwound {
        Child* child;
        ~Unwound() {
          if (child) ended_by_force(child);
        }
      } unwound{c};
      auto& function = *static_cast<Function*>(c->function());
      int e = 0;
      if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) function();
      else e = function();
      unwound.child = nullptr;
      return e;
    };
    child->destroy = [](Child* c) { static_cast<Function*>(c->function())->~Function(); };
    return start(child, options);
  }

  // Waits until all children have ended, also children that are spawned meanwhile. Returns 0, the first error, or ECANCELED if the nursery
  // was cancelled without an error. If the caller is cancelled, it cancels the nursery, and the wait goes on. The owner may use the nursery
  // again afterwards, but a cancelled one stays cancelled. Owner only. Parks.
  int wait();

  // Cancels all children, later children too, and all nurseries that have this one as their parent. wait() returns `error`, unless it is 0
  // or an error came before. Does not wait for the children; may park for the mutex of the nursery.
  void cancel(int error = 0);
  // Returns whether the nursery is cancelled. Never parks.
  bool cancelled() const;
  // Returns the first error so far, or 0. Never parks.
  int error() const;
  // Returns the number of children that have not ended. May be out of date at once. Never parks.
  size_t children() const;

 private:
  friend struct NurseryInside;
  // The function object of the child stands behind it.
  struct alignas(std::max_align_t) Child {
    int (*run)(Child*) = nullptr;
    void (*destroy)(Child*) = nullptr;
    Nursery* nursery = nullptr;
    fiberthread_t fiber = nullptr;
    Child* next = nullptr;
    Child* prev = nullptr;
    bool ended = false;
    bool claimed = false;  // by wait(), which joins the child
    void* function() { return this + 1; }
  };
  static Child* make(size_t size);
  static void ended_by_force(Child* child);
  int start(Child* child, const fiberthread_options_t* options);

  alignas(8) unsigned char inside_[96];
};

}  // namespace fiberthread
