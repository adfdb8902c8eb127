// SPDX-License-Identifier: MIT
// CancelToken: ends the waits of all fibers that use it, by one call. The man page is CancelToken(3).
//
//     CancelToken stop;                    // or CancelToken stop(&parent): cancelled with its parent, and by itself
//     in any number of fibers:             CancelToken::Scope scope(stop);
//                                          … each wait in here ends with ECANCELED once stop is cancelled …
//     elsewhere:                           stop.cancel();
//
// A Scope uses a token for the fiber that makes it. Once the token is cancelled, the fiber waits as if fiberthread_cancel() had been called
// on it. When the Scope ends, the fiber waits as before. So a token ends all waits that fiberthread_cancel() ends: each wait of this
// library that can fail, and the waits of libc that park. Scopes nest, of one token or several. A fiber is cancelled while any of its
// tokens is.
//
// Cost: a Scope is two uncontended locks. cancel() takes some 50 ns (2026-11-21) for each Scope and token below it. Nothing is allocated.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"

namespace fiberthread {

struct FiberRecord;

// Fibers and foreign threads may call all members; signal handlers may call cancelled() only. A token must outlive its Scopes and its
// children. In DEBUG builds of the library, one that does not aborts the process.
class FIBERTHREAD_API CancelToken {
 public:
  // Makes a token. With a parent, it is cancelled when the parent is, at once if the parent is already. May park for the parent's mutex.
  explicit CancelToken(CancelToken* parent = nullptr);
  ~CancelToken();
  CancelToken(const CancelToken&) = delete;
  CancelToken& operator=(const CancelToken&) = delete;

  // Cancels the token and all tokens below it, for ever. A second call does nothing. A thread that sees the token cancelled sees what the
  // caller did before. Fibers and foreign threads. May park for the mutexes of these tokens.
  void cancel();
  // Returns whether the token, or one above it, was cancelled. Fibers, foreign threads and signal handlers. Never parks.
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // Makes the calling fiber use a token. It lies on the stack of that fiber. May park for the token's mutex.
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
    Scope** link_ = nullptr;  // the link that points to this one
  };

 private:
  class Lock;
  std::atomic<uint64_t> mutex_{0};  // a FiberMutex for all members below; a parent's comes before its child's
  std::atomic<bool> cancelled_{false};
  Scope* scopes_ = nullptr;
  CancelToken* const parent_;
  CancelToken* children_ = nullptr;
  CancelToken* next_ = nullptr;  // next child of the same parent; under the parent's mutex
  CancelToken** link_ = nullptr;
};

}  // namespace fiberthread
