// SPDX-License-Identifier: MIT
// The inside of a channel, for channel.cpp and select.cpp. Values are bytes here.
//
// Two words count the values that were ever sent into the ring (`tail`) and ever taken out of it (`head`). A thread that raises one of them
// by a compare-and-swap has that position. It fills or empties the cell, and then says so by the cell's `turn`. All other threads may go on
// with the next positions meanwhile. (The turns of the cells are those of D. Vyukov's bounded MPMC queue. The counters alone decide what is
// full and what is empty, which makes the channel linearizable.)
//
// A thread that must not go by without a look at a change finds a flag in the word that it wants to raise. Then it takes the lock:
//
//     tail: {position, receivers wait, senders wait, closed, locked}        head: {position, senders wait, locked}
//
// `locked` is never cleared. It is for channels without a ring, and for those made while the lock-free path is switched off. All flags
// change under the lock. Each flag is in the word that is raised, so a thread that saw it clear cannot have a position that comes after it.
// So, under the lock:
//   - Receivers are queued only if the flag is set and the ring is empty. It stays empty, because senders then come to the lock and give
//     their values to the waiting receivers.
//   - Senders are queued only if both flags are set and the ring is full. It stays full, because receivers then come to the lock, and put
//     in the first sender's value for each value that they take.
//   - After `closed` is set no sender gets a position any more. The positions given out before are the sends in flight. A receiver that
//     sees tail ahead of head waits for them, for some instructions, and so drains all.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"
#include "fiberthread/channel.h"

namespace fiberthread {

class Output;

// The variable FIBERTHREAD_CHANNEL_LOCKFREE of the environment. It is read when a channel is made.
extern bool channel_lock_free;

// One wait for one or several cases, on the stack of the waiting thread.
struct ChannelWait {
  static constexpr int32_t kNone = -1, kGaveUp = -2;
  FiberRecord* fiber = self();           // looked up before any lock, because it calls malloc for a foreign thread
  std::atomic<int32_t> selected{kNone};  // the one case that happens; the thread that changes it from kNone decides
  std::atomic<uint32_t> signaled{0};     // the last touch of that thread, unless it was the waiter itself
  int error = 0;                         // of the case that happens
  ChannelWait* next_woken = nullptr;

  bool decide(int32_t what) {
    int32_t none = kNone;
    // Relaxed: the channel's lock and `signaled` pass on all other data.
    return selected.compare_exchange_strong(none, what, std::memory_order_relaxed);
  }
};

// Waits that have been decided, to be woken once the locks are released.
class Woken {
 public:
  void add(ChannelWait& w) {
    *tail_ = &w;
    tail_ = &w.next_woken;
  }
  void wake_all();

 private:
  ChannelWait* first_ = nullptr;
  ChannelWait** tail_ = &first_;
};

// A FIFO list, doubly linked, so that a waiter that gives up leaves in one step.
class CaseList {
 public:
  bool empty() const { return !first_; }
  SelectCase* first() const { return first_; }
  size_t size() const;
  void push_back(SelectCase& c);
  void remove(SelectCase& c);

 private:
  SelectCase* first_ = nullptr;
  SelectCase* last_ = nullptr;
};

// The library's access to a case.
struct SelectInside {
  static ChannelCore* channel(const SelectCase& c) { return c.channel_; }
  static void begin(SelectCase& c, ChannelWait* wait, int32_t index) {
    c.wait_ = wait;
    c.index_ = index;
    c.queued_ = false;
  }
  static int attempt(SelectCase& c, Woken& woken);
  static bool looks_ready(const SelectCase& c);
  static SelectCase*& next_locked(SelectCase& c) { return c.next_locked_; }
  static void finish(SelectCase& c, int error) {
    if (c.finish_) c.finish_(c, error);
  }
};

class ChannelCore {
 public:
  static ChannelCore* make(size_t capacity, size_t value_size, void (*drop)(void*));
  static void tell_all(Output& out);  // for the deadlock report
  static void reset_after_fork();

  // Sends or receives without the lock. Returns false if that is not possible. The caller is Busy.
  bool send_fast(const void* value);
  bool receive_fast(void* value);

  // All members from here on need `lock`, and a Busy caller.
  SpinLock lock;
  // Returns 0, EPIPE or EAGAIN. A waiter that gets or gives a value meanwhile is added to `woken`.
  int try_case(bool sends, void* value, Woken& woken) { return sends ? send_locked(value, woken) : receive_locked(value, woken); }
  // Queues a case after try_case() returned EAGAIN. Returns false if it may not wait any more: then the caller tries again.
  bool queue(SelectCase& c);
  void dequeue(SelectCase& c);
  void close(Woken& woken);

  // A hint without the lock: true if try_case() may do something.
  bool looks_ready(bool sends) const;
  bool is_closed() const { return tail_.load(std::memory_order_acquire) & kClosed; }
  size_t size() const;
  size_t capacity() const { return capacity_; }
  void drop_all();  // destroys the values left in the ring
  // Counts a handle up, or down. The last handle of a side closes the channel.
  void hold(bool sender) { (sender ? senders_held_ : receivers_held_).fetch_add(1, std::memory_order_relaxed); }
  void release(bool sender);

 private:
  static constexpr uint64_t kLocked = 1, kClosed = 2, kSendersWait = 4, kReceiversWait = 8, kOne = 16;
  static constexpr uint64_t kFlags = kOne - 1;
  static constexpr size_t kCellHeader = 8;
  struct Cell {
    std::atomic<uint64_t> turn;  // p: position p may fill the cell; p + 1: position p has filled it
    unsigned char* value() { return reinterpret_cast<unsigned char*>(this) + kCellHeader; }
  };
  static uint64_t position(uint64_t word) { return word / kOne; }
  Cell& cell(uint64_t position) { return *reinterpret_cast<Cell*>(cells_ + (position & mask_) * cell_size_); }
  void copy(void* to, const void* from);
  void fill(uint64_t position, const void* value);
  void empty(uint64_t position, void* value);
  bool push(const void* value);
  int send_locked(const void* value, Woken& woken);
  int receive_locked(void* value, Woken& woken);
  SelectCase* pop(CaseList& list, int error, Woken& woken);
  void set(std::atomic<uint64_t>& word, uint64_t flags);
  void clear_flags(const CaseList& list);

  // On cache lines of their own: senders and receivers are on different CPUs.
  alignas(64) std::atomic<uint64_t> tail_;
  alignas(64) std::atomic<uint64_t> head_;
  alignas(64) CaseList receivers_;
  CaseList senders_;
  size_t capacity_, mask_, value_size_, cell_size_;
  void (*drop_)(void*);
  unsigned char* cells_;
  std::atomic<size_t> senders_held_{1}, receivers_held_{1};
  std::atomic<uint32_t> sides_{2};
  bool exact_;  // the ring has no more cells than the capacity
  // Links of the list of all channels.
  ChannelCore* next_;
  ChannelCore** link_;
  unsigned made_in_;  // number of forks from the first process to the one that made the channel
};

inline int SelectInside::attempt(SelectCase& c, Woken& woken) { return c.channel_->try_case(c.sends_, c.value_, woken); }
inline bool SelectInside::looks_ready(const SelectCase& c) { return c.channel_->looks_ready(c.sends_); }

}  // namespace fiberthread
