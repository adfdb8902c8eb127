// SPDX-License-Identifier: MIT
// Stacks and names of code, by libdw of elfutils, if that is installed: loaded when it is first wanted.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "preload/launcher/target.h"

namespace fiberthread {

struct StackFrame {
  uint64_t pc;
  bool exact;  // the instruction itself; else a return address
};

class Symbols {
 public:
  Symbols(const Target& target, bool full) : target_(target), full_(full) {}
  ~Symbols();
  Trouble open();
  // `copied`: bytes of the stack as they were when the registers were, at `copied_at`.
  std::vector<StackFrame> unwind(const Registers& registers, const std::vector<char>& copied, uint64_t copied_at, unsigned most);
  // "function at file:line (object)", as much of it as is known.
  const std::string& place(const StackFrame& frame);
  // A variable's name, empty if it is none.
  std::string variable(uint64_t address);

 private:
  struct Library;
  static const Library* library();
  const Target& target_;
  bool full_;  // lines of the library too
  const Library* l_ = nullptr;
  void* dwfl_ = nullptr;
  void* elf_ = nullptr;
  std::map<std::pair<uint64_t, bool>, std::string> places_;
  friend struct Callbacks;
  // What is unwound now.
  const Registers* registers_ = nullptr;
  const std::vector<char>* copied_ = nullptr;
  uint64_t copied_at_ = 0;
  unsigned most_ = 0;
  std::vector<StackFrame> frames_;
};

}  // namespace fiberthread
