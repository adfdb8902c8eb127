// SPDX-License-Identifier: MIT
// Names of code and data by libdw of elfutils, and stacks too, if that is installed. It is loaded when it is first needed.
#pragma once
#include <string>
#include <vector>

#include "preload/launcher/target.h"
#include "preload/launcher/unwinder.h"

namespace fiberthread {

class Symbols {
 public:
  explicit Symbols(const Target& target) : target_(target) {}
  Symbols(const Symbols&) = delete;
  ~Symbols();
  Trouble open();
  // Returns at most `most` frames.
  std::vector<StackFrame> unwind(const Thread& thread, unsigned most);
  // Appends the functions at this address, as Stacks::places() returns them. Without `lines`, it is only the outermost one, and its object.
  void places(uint64_t pc, bool lines, std::vector<std::string>& to);
  // As Stacks::variable().
  std::string variable(uint64_t address);

 private:
  struct Library;
  static const Library* library();
  struct Die;
  std::string name_of(Die& function);
  bool find_functions(Die& in, uint64_t pc, std::vector<Die>& found);
  const Target& target_;
  const Library* l_ = nullptr;
  void* dwfl_ = nullptr;
  void* elf_ = nullptr;
  friend struct Callbacks;
  // Arguments and result of the running unwind().
  const Thread* thread_ = nullptr;
  unsigned most_ = 0;
  std::vector<StackFrame> frames_;
};

}  // namespace fiberthread
