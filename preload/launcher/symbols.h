// SPDX-License-Identifier: MIT
// Stacks and names of code, by libdw of elfutils, if that is installed. It is loaded when it is first needed.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "preload/launcher/target.h"

namespace fiberthread {

struct StackFrame {
  uint64_t pc;
  bool exact;  // pc is the interrupted instruction itself; else it is a return address
};

class Symbols {
 public:
  Symbols(const Target& target, bool full) : target_(target), full_(full) {}
  ~Symbols();
  Trouble open();
  // Returns at most `most` frames. `copied` has the bytes of the stack from address `copied_at` on, as they were together with the
  // registers.
  std::vector<StackFrame> unwind(const Registers& registers, const std::vector<char>& copied, uint64_t copied_at, unsigned most);
  // Returns "function at file:line", "function in object" if the line is not known, and "??" for an unknown function.
  const std::string& place(const StackFrame& frame);
  // Returns the name of the variable at this address, with "+offset" inside one, or "" if there is none.
  std::string variable(uint64_t address);

 private:
  struct Library;
  static const Library* library();
  const Target& target_;
  bool full_;  // place() gives lines of the library too
  const Library* l_ = nullptr;
  void* dwfl_ = nullptr;
  void* elf_ = nullptr;
  std::map<std::pair<uint64_t, bool>, std::string> places_;
  friend struct Callbacks;
  // Arguments and result of the running unwind().
  const Registers* registers_ = nullptr;
  const std::vector<char>* copied_ = nullptr;
  uint64_t copied_at_ = 0;
  unsigned most_ = 0;
  std::vector<StackFrame> frames_;
};

}  // namespace fiberthread
