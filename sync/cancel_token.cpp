// SPDX-License-Identifier: MIT
#include "fiberthread/cancel_token.h"

#include "sched/fiber.h"
#include "fiberthread/fiber_mutex.h"

#if defined(FIBERTHREAD_DEBUG_CHECKS)
#include <stdlib.h>

#include "sched/syscall.h"
#endif

namespace fiberthread {

// A mutex and not a spin lock, because cancel() holds it for as long as it takes to tell all fibers.
class CancelToken::Lock {
 public:
  explicit Lock(CancelToken& token) : mutex_(reinterpret_cast<FiberMutex&>(token.mutex_)) { mutex_.lock(); }
  ~Lock() { mutex_.unlock(); }

  template <class Node>
  static void link(Node* n, Node*& first) {
    n->next_ = first;
    n->link_ = &first;
    if (first) first->link_ = &n->next_;
    first = n;
  }
  template <class Node>
  static void unlink(Node* n) {
    *n->link_ = n->next_;
    if (n->next_) n->next_->link_ = n->link_;
  }

 private:
  FiberMutex& mutex_;
};

CancelToken::CancelToken(CancelToken* parent) : parent_(parent) {
  static_assert(sizeof mutex_ == sizeof(FiberMutex));
  if (!parent) return;
  Lock lock(*parent);
  if (parent->cancelled_.load(std::memory_order_relaxed)) cancelled_.store(true, std::memory_order_relaxed);
  lock.link(this, parent->children_);
}

CancelToken::~CancelToken() {
  if (parent_) {
    Lock lock(*parent_);  // waits for a thread that cancels the parent, and this token with it
    lock.unlink(this);
  }
#if defined(FIBERTHREAD_DEBUG_CHECKS)
  if (!scopes_ && !children_) return;
  static const char kUsed[] = "fiberthread: a CancelToken was destroyed that is still used\n";
  raw_syscall(SYS_write, 2, arg(kUsed), sizeof kUsed - 1);
  abort();
#endif
}

void CancelToken::cancel() {
  Lock lock(*this);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  cancelled_.store(true, std::memory_order_release);
  for (Scope* s = scopes_; s; s = s->next_) add_end_reason(s->fiber_);
  for (CancelToken* c = children_; c; c = c->next_) c->cancel();
}

CancelToken::Scope::Scope(CancelToken& token) : token_(token), fiber_(self()) {
  Lock lock(token);
  lock.link(this, token.scopes_);
  if (token.cancelled_.load(std::memory_order_relaxed)) add_end_reason(fiber_);
}

CancelToken::Scope::~Scope() {
  Lock lock(token_);
  lock.unlink(this);
  if (token_.cancelled_.load(std::memory_order_relaxed)) drop_end_reason(fiber_);
}

}  // namespace fiberthread
