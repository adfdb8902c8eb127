// SPDX-License-Identifier: MIT
// The inside of a channel, for channel.cpp and select.cpp: values are bytes here.
//
// Two words count the values that were ever sent into the ring (`tail`) and ever taken out of it (`head`). Who raises one by a
// compare-and-swap has that position, fills or empties its cell, and then says so by the cell's `turn`; everybody else may go on
// with the next positions meanwhile. (The cells' turns are those of D. Vyukov's bounded MPMC queue; that the counters alone decide what is
// full and what is empty makes it linearizable.)
//
// Whoever must not go by without looking at what has changed, finds a flag in the word that he wants to raise, and takes the lock:
//
//     tail: {position, receivers wait, senders wait, closed, locked}        head: {position, senders wait, locked}
//
// `locked` is for ever, for channels without a ring and where the lock-free path is switched off. All flags change under the lock. As each
// is in the word that is raised, nobody who saw it clear can have a position that comes after it. So, under the lock:
//   - receivers are queued only if the flag is set and the ring empty; it stays empty, since senders then come to the lock and
//     give their values to who waits;
//   - senders are queued only if both flags are set and the ring full; it stays full, since receivers then come to the lock and
//     for each value that they take put the first sender's in;
//   - after `closed` is set no position is given to a sender any more. Those given before are the sends in flight: a receiver
//     that sees tail ahead of head waits for them, for some instructions, and so drains all.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"
#include "fiberthread/channel.h"

namespace fiberthread {

class Output;

// FIBERTHREAD_CHANNEL_LOCKFREE. Read when a channel is made.
extern bool channel_lock_free;

// One wait for one or several cases, on the stack of who waits.
struct ChannelWait {
  static constexpr int32_t kNone = -1, kGaveUp = -2;
  FiberRecord* fiber = self();           // before any lock: for a foreign thread it calls malloc
  std::atomic<int32_t> selected{kNone};  // the one case that happens. Who changes it from kNone decides
  std::atomic<uint32_t> signaled{0};     // the last touch of who did, unless it was the waiter itself
  int error = 0;                         // of that case
  ChannelWait* next_woken = nullptr;

  bool decide(int32_t what) {
    int32_t none = kNone;
    // Relaxed: what else is passed on goes by the channel's lock and by `signaled`.
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

// Doubly linked, so that who gives up leaves in one step. FIFO.
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

// What the library sees of a case.
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
  static void tell_all(Output& out);  // for the report of a deadlock
  static void reset_after_fork();

  // Without the lock. False: not like this. Busy.
  bool send_fast(const void* value);
  bool receive_fast(void* value);

  // All from here on under `lock`, Busy.
  SpinLock lock;
  // 0, EPIPE or EAGAIN. Who gets or gives a value meanwhile is added to `woken`.
  int try_case(bool sends, void* value, Woken& woken) { return sends ? send_locked(value, woken) : receive_locked(value, woken); }
  // Queues it after try_case() said EAGAIN. False: that is no longer true, so try again.
  bool queue(SelectCase& c);
  void dequeue(SelectCase& c);
  void close(Woken& woken);

  // Without the lock: a hint, true if try_case() may do something.
  bool looks_ready(bool sends) const;
  bool is_closed() const { return tail_.load(std::memory_order_acquire) & kClosed; }
  size_t size() const;
  size_t capacity() const { return capacity_; }
  void drop_all();  // the values left in it
  // Handles. One of the last ones closes.
  void hold(bool sender) { (sender ? senders_held_ : receivers_held_).fetch_add(1, std::memory_order_relaxed); }
  void release(bool sender);

 private:
  static constexpr uint64_t kLocked = 1, kClosed = 2, kSendersWait = 4, kReceiversWait = 8, kOne = 16;
  static constexpr uint64_t kFlags = kOne - 1;
  static constexpr size_t kCellHeader = 8;
  struct Cell {
    std::atomic<uint64_t> turn;  // p: may be filled for position p. p + 1: is filled
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

  // Apart: senders and receivers are on different CPUs.
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
  // Among all channels.
  ChannelCore* next_;
  ChannelCore** link_;
  unsigned made_in_;  // how many forks away from the first process
};

inline int SelectInside::attempt(SelectCase& c, Woken& woken) { return c.channel_->try_case(c.sends_, c.value_, woken); }
inline bool SelectInside::looks_ready(const SelectCase& c) { return c.channel_->looks_ready(c.sends_); }

}  // namespace fiberthread
