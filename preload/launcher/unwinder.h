// SPDX-License-Identifier: MIT
// Stacks by the remote interface of libunwind, if that is installed. It is loaded when it is first needed.
#pragma once
#include <array>
#include <map>
#include <unordered_map>
#include <vector>

#include "preload/launcher/target.h"

namespace fiberthread {

struct StackFrame {
  uint64_t pc;
  bool exact;  // pc is the interrupted instruction itself; else it is a return address
};

// A thread outside, whose frames are wanted: its registers, and the bytes of its stack from `copied_at` on as they were together with them.
// What was not copied is read from the process.
struct Thread {
  const Registers& registers;
  const std::vector<char>& copied;
  uint64_t copied_at;
  bool read(const Target& target, uint64_t address, uint64_t& word) const {
    uint64_t at = address - copied_at;
    if (at < copied.size() && copied.size() - at >= sizeof word) memcpy(&word, copied.data() + at, sizeof word);
    else if (!target.read(address, &word, sizeof word)) return false;
    word = without_signature(target, word);
    return true;
  }
  // Not all versions of the unwinders know of signatures. What would be an address of code without one is taken for a signed one.
  static uint64_t without_signature(const Target& target, uint64_t word) {
    return word & kSignature && target.mapping_at(word & ~kSignature) ? word & ~kSignature : word;
  }
};

class Unwinder {
 public:
  explicit Unwinder(const Target& target) : target_(target) {}
  Unwinder(const Unwinder&) = delete;
  ~Unwinder();
  Trouble open();
  // Returns at most `most` frames.
  std::vector<StackFrame> unwind(const Thread& thread, unsigned most);

 private:
  struct Library;
  static const Library* library();
  friend struct Accessors;
  // Where an object's unwind information is. The table is sorted, and has an entry of two halves for each function.
  struct Table {
    uint64_t low = 0, high = 0;  // of the object
    uint64_t header = 0, entries = 0, count = 0;
  };
  const Table& table_of(uint64_t pc);
  Table read_table(uint64_t base) const;
  bool is_signal(uint64_t pc);
  bool read(uint64_t address, uint64_t& word);

  const Target& target_;
  const Library* l_ = nullptr;
  void* space_ = nullptr;
  const Thread* thread_ = nullptr;  // of the running unwind()
  std::map<const Mapping*, Table> tables_;
  std::unordered_map<uint64_t, bool> signals_;                  // results of is_signal()
  std::unordered_map<uint64_t, std::array<char, 4096>> pages_;  // of mapped files, by address
};

}  // namespace fiberthread
