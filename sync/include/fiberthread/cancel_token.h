// SPDX-License-Identifier: MIT
// CancelToken: ends the waits of all fibers that use it, by one call. The man page is CancelToken(3).
//
//     CancelToken stop;                    // or CancelToken stop(&parent): cancelled with its parent, and by itself
//     in any number of fibers:             CancelToken::Scope scope(stop);
//                                          … each wait in here ends with ECANCELED once stop is cancelled …
//     elsewhere:                           stop.cancel();
//
// While a Scope lives, its fiber is as if fiberthread_cancel() had been called on it once the token is cancelled; when the Scope ends, it
// waits as before. So a token ends whatever that does: each wait of this library that can fail, and of libc's those that park.
// Scopes nest, of one token or several, and what is cancelled counts.
//
// Cost: a Scope is two uncontended locks; cancel() some 50 ns for each Scope and token below it. Nothing is allocated.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"

namespace fiberthread {

struct FiberRecord;

// All members: fibers and foreign threads, not signal handlers; they wait for no more than a lock. A token outlives its Scopes and its
// children (in DEBUG builds of the library, one that does not aborts the process).
class FIBERTHREAD_API CancelToken {
 public:
  explicit CancelToken(CancelToken* parent = nullptr);
  ~CancelToken();
  CancelToken(const CancelToken&) = delete;
  CancelToken& operator=(const CancelToken&) = delete;

  // For ever; again it does nothing. What the caller did before is seen by who sees that it is cancelled.
  void cancel();
  // The token, or one above it. Any context.
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // Of the fiber that makes it, on its stack.
  class FIBERTHREAD_API Scope {
   public:
    explicit Scope(CancelToken& token);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class CancelToken;
    CancelToken& token_;
    FiberRecord* fiber_;
    Scope* next_ = nullptr;
    Scope** link_ = nullptr;  // what points to this one
  };

 private:
  class Lock;
  std::atomic<uint64_t> mutex_{0};  // a FiberMutex, of all below: a parent's before its child's
  std::atomic<bool> cancelled_{false};
  Scope* scopes_ = nullptr;
  CancelToken* const parent_;
  CancelToken* children_ = nullptr;
  CancelToken* next_ = nullptr;  // of the same parent; under its mutex
  CancelToken** link_ = nullptr;
};

}  // namespace fiberthread
