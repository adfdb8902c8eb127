// SPDX-License-Identifier: MIT
// Stacks of fibers, with names. libunwind finds the frames, and libdw (elfutils) names them. Where libunwind is missing, libdw finds the
// frames too. Where libdw is missing, there are only names of functions, from symbol tables.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "preload/launcher/elf_symbols.h"
#include "preload/launcher/symbols.h"
#include "preload/launcher/unwinder.h"

namespace fiberthread {

class Stacks {
 public:
  // `full`: with lines of the library.
  Stacks(const Target& target, bool full) : target_(target), unwinder_(target), symbols_(target), elf_(target), full_(full) {}
  // Fails if neither library is installed.
  Trouble open();
  // Returns what is missing for want of a library, for the reader, or "".
  const std::string& lacking() const { return lacking_; }
  // Returns at most `most` frames. `copied` has the bytes of the stack from the stack pointer on, as they were together with the registers.
  std::vector<StackFrame> unwind(const Registers& registers, const std::vector<char>& copied, unsigned most);
  // Removes the library's frames, which tell how the fiber waits: a reader wants to know what it waits for. `whole`: the stack has no more.
  void trim(std::vector<StackFrame>& frames, bool whole);
  // Returns the functions at a frame's place, those that were inlined into the last one first. Each is "function at file:line", "function in
  // object" if the line is not known, or "??" for an unknown one.
  const std::vector<std::string>& places(const StackFrame& frame);
  // Returns the name of the variable at this address, with "+offset" inside one, or "" if it is not known.
  std::string variable(uint64_t address) { return named_ ? symbols_.variable(address) : ""; }

 private:
  const Target& target_;
  Unwinder unwinder_;
  Symbols symbols_;
  ElfSymbols elf_;
  bool full_, unwound_ = false, named_ = false;  // libunwind, libdw are there
  std::string lacking_;
  std::map<std::pair<uint64_t, bool>, std::vector<std::string>> places_;
};

}  // namespace fiberthread
