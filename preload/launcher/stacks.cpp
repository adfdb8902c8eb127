// SPDX-License-Identifier: MIT
#include "preload/launcher/stacks.h"

namespace fiberthread {

Trouble Stacks::open() {
  Trouble no_frames = unwinder_.open(), no_names = symbols_.open();
  unwound_ = no_frames.empty();
  named_ = no_names.empty();
  if (!unwound_ && !named_) return no_frames + ", and " + no_names;
  if (!named_) lacking_ = "no lines and no inlined functions: " + no_names;
  return {};
}

std::vector<StackFrame> Stacks::unwind(const Registers& registers, const std::vector<char>& copied, unsigned most) {
  Thread thread{registers, copied, registers.value[kStackPointer]};
  return unwound_ ? unwinder_.unwind(thread, most) : symbols_.unwind(thread, most);
}

// Of the library's frames on top, only the function that the program called stays. Below the start routine, none stays. An interrupted
// frame of the program has called none of them.
void Stacks::trim(std::vector<StackFrame>& frames, bool whole) {
  size_t top = 0;
  while (top < frames.size() && target_.in_library(frames[top].pc)) top++;
  // Below the library's own signal handler there is libc's return from it, and then the interrupted frame.
  if (top > 0 && top + 1 < frames.size() && frames[top].exact && frames[top + 1].exact) top++;
  bool called = top < frames.size() && top > 0 && !frames[top].exact;
  if (called && places(frames[top - 1]).back().find("(anonymous namespace)") == std::string::npos) top--;
  frames.erase(frames.begin(), frames.begin() + static_cast<long>(top));
  while (frames.size() > 1 && whole && target_.in_library(frames.back().pc)) frames.pop_back();
}

const std::vector<std::string>& Stacks::places(const StackFrame& frame) {
  auto [found, fresh] = places_.try_emplace({frame.pc, frame.exact});
  std::vector<std::string>& places = found->second;
  if (!fresh) return places;
  uint64_t pc = frame.pc - !frame.exact;
  // Line numbers of the library do not help a reader who knows only the program.
  if (named_) {
    symbols_.places(pc, full_ || !target_.in_library(pc), places);
  } else {
    std::string name = demangled(elf_.function(pc).c_str());
    const Mapping* m = target_.mapping_at(pc);
    places.push_back((name.empty() ? "??" : name) + (m ? " in " + m->path : ""));
  }
  return places;
}

}  // namespace fiberthread
