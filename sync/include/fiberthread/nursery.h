// SPDX-License-Identifier: MIT
// Nursery: structured concurrency. The fibers that are spawned in a nursery, its children, end before it does, and the first error of one
// ends the others.
//
//     fiberthread::Nursery nursery;
//     for (auto& url : urls) nursery.spawn([&] { return fetch(url); });  // int: 0, or an error
//     if (int error = nursery.wait()) …                                  // of the first that failed
//
// To be ended is to be cancelled: a child's waits return ECANCELED from then on. They look for it before they commit to anything, never
// after: a value that was to be sent is not sent, one that was to be received is left to others. It is up to the child to return
// then. (The idea is N. J. Smith's, "Notes on structured concurrency", 2018.)
//
// Cost: that of a spawn and a join, and an allocation each. Children may be as many as there is memory for.
#pragma once
#include <cerrno>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "api.h"
#include "fiberthread.h"

namespace fiberthread {

// All members but the destructor and wait() may be called by its owner, its children and anybody else who knows that it has not ended,
// fibers and foreign threads; none by signal handlers.
class FIBERTHREAD_API Nursery {
 public:
  Nursery() : Nursery(nullptr) {}
  // With a parent, it is cancelled when that is. It has to end before the parent does. (A nursery that a child makes needs none: when
  // the child is cancelled, its wait() cancels the nursery.)
  explicit Nursery(Nursery* parent);
  // As wait(); the error is lost.
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  // Runs f() in a fiber of its own. It returns nothing, or an int: other than 0 it is an error, and cancels the nursery; but
  // ECANCELED is none if the nursery is cancelled. To end by pthread_exit or pthread_cancel counts as ECANCELED (at once, if f is
  // compiled with exceptions, else when wait() comes to it). f must not throw.
  // May wait for who spawns or cancels at the same time. 0; ECANCELED: the nursery is cancelled, f does not run; EINVAL: the options
  // say `detached`; ENOMEM, or what fiberthread_spawn() says.
  template <class F>
  int spawn(F&& f, const fiberthread_options_t* options = nullptr) {
    using Function = std::decay_t<F>;
    static_assert(alignof(Function) <= alignof(std::max_align_t));
    Child* child = make(sizeof(Function));
    if (!child) return ENOMEM;
    new (child->function()) Function(std::forward<F>(f));
    child->run = [](Child* c) -> int {
      // Of a child that is unwound.
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

  // Waits until all children have ended, those too that they spawn meanwhile. 0, or the first error; ECANCELED if there was none,
  // but the nursery was cancelled. If the caller is cancelled, so is the nursery, and the wait goes on. By its owner. The nursery may
  // be used again afterwards, but a cancelled one stays so.
  int wait();

  // Cancels all children, those that are spawned later, and nurseries of which this one is the parent. Does not wait. With an error,
  // that is what wait() returns if it is the first.
  void cancel(int error = 0);
  bool cancelled() const;
  // The first error so far, or 0.
  int error() const;
  // Those that have not ended, as far as one can tell.
  size_t children() const;

 private:
  friend struct NurseryInside;
  // What it runs stands behind it.
  struct alignas(std::max_align_t) Child {
    int (*run)(Child*) = nullptr;
    void (*destroy)(Child*) = nullptr;
    Nursery* nursery = nullptr;
    fiberthread_t fiber = nullptr;
    Child* next = nullptr;
    Child* prev = nullptr;
    bool ended = false;
    bool claimed = false;  // by wait()
    void* function() { return this + 1; }
  };
  static Child* make(size_t size);
  static void ended_by_force(Child* child);
  int start(Child* child, const fiberthread_options_t* options);

  alignas(8) unsigned char inside_[96];
};

}  // namespace fiberthread
