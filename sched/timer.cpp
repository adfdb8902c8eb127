// SPDX-License-Identifier: MIT
#include "sched/timer.h"

#include <string.h>

#include "sched/fiber.h"

namespace fiberthread {

// Level l has 64 buckets of 64^l ticks. A timer lies in the lowest level whose current round contains its tick, so
// bucket numbers at each level are plain bits of the tick, and a bucket is opened when the tick enters it.
void TimerWheel::insert(Timer& t) {
  uint64_t due = (t.deadline >> kTickShift) + 1;  // rounded up: never early
  if (due <= tick_) due = tick_ + 1;
  int level = 0;
  uint64_t differ = due ^ tick_;
  if (differ) level = (63 - __builtin_clzll(differ)) / kLevelBits;
  if (level >= kLevels) {  // centuries away
    level = kLevels - 1;
    due = tick_ | ((uint64_t{1} << (kLevels * kLevelBits)) - 1);
  }
  unsigned i = (due >> (level * kLevelBits)) % kWidth;
  Timer*& head = buckets_[level][i];
  t.next = head;
  t.link = &head;
  if (head) head->link = &t.next;
  head = &t;
  occupied_[level] |= uint64_t{1} << i;
}

void TimerWheel::recompute() {
  // The first bucket in time order: at each level only buckets after the current one can be occupied.
  uint64_t first = kNever;
  for (int l = 0; l < kLevels && first == kNever; l++) {
    unsigned now = (tick_ >> (l * kLevelBits)) % kWidth;
    uint64_t later = now == 63 ? 0 : occupied_[l] & (~uint64_t{0} << (now + 1));
    if (!later) continue;
    uint64_t base = tick_ >> (l * kLevelBits) >> kLevelBits << kLevelBits;
    first = (base + __builtin_ctzll(later)) << (l * kLevelBits) << kTickShift;
  }
  next_.store(first, std::memory_order_release);
}

void TimerWheel::add(Timer& t) {
  SpinGuard guard(lock_);
  bool empty = true;
  for (uint64_t o : occupied_) empty = empty && !o;
  if (empty) tick_ = now_ns() >> kTickShift;
  t.wheel = this;
  insert(t);
  recompute();
}

void TimerWheel::cancel(Timer& t) {
  SpinGuard guard(lock_);
  if (!t.link) return;
  *t.link = t.next;
  if (t.next) t.next->link = t.link;
  // A bucket that became empty loses its bit, so that no worker wakes up for it.
  if (!t.next && t.link >= &buckets_[0][0] && t.link < &buckets_[0][0] + kLevels * kWidth) {
    auto n = t.link - &buckets_[0][0];
    occupied_[n / kWidth] &= ~(uint64_t{1} << (n % kWidth));
    recompute();
  }
  t.link = nullptr;
}

void TimerWheel::run(uint64_t now) {
  if (next_.load(std::memory_order_relaxed) > now) return;
  SpinGuard guard(lock_);
  uint64_t target = now >> kTickShift;
  while (next_.load(std::memory_order_relaxed) <= now) {
    tick_ = next_.load(std::memory_order_relaxed) >> kTickShift;
    // Open the buckets that begin at this tick, from the coarsest: their timers move down or are due.
    for (int l = kLevels - 1; l >= 0; l--) {
      if (l > 0 && (tick_ & ((uint64_t{1} << (l * kLevelBits)) - 1))) continue;
      unsigned i = (tick_ >> (l * kLevelBits)) % kWidth;
      Timer* list = buckets_[l][i];
      buckets_[l][i] = nullptr;
      occupied_[l] &= ~(uint64_t{1} << i);
      while (list) {
        Timer* t = list;
        list = t->next;
        if ((t->deadline >> kTickShift) + 1 <= tick_) {
          t->link = nullptr;
          unpark(t->fiber);
        } else {
          insert(*t);
        }
      }
    }
    recompute();
  }
  if (tick_ < target) tick_ = target;  // nothing lies between
  recompute();
}

void TimerWheel::reset() {
  lock_.reset();
  next_.store(kNever, std::memory_order_relaxed);
  memset(occupied_, 0, sizeof occupied_);
  memset(buckets_, 0, sizeof buckets_);
}

}  // namespace fiberthread
