// SPDX-License-Identifier: MIT
// Filters of system calls (seccomp) that the program sets for itself.
#pragma once

namespace fiberthread {

// A filter as the program has it, and while this exists, as the kernel shall get it. Where a switch asks the kernel for the thread pointer
// (no FSGSBASE), that call goes on to be let by: refused, no fiber could run again. It says nothing that code could not do by
// itself on other processors. The same as the program's where the switch needs no system call, or if there is no memory.
class FilterForKernel {
 public:
  explicit FilterForKernel(const void* program);  // a sock_fprog; need not be readable
  ~FilterForKernel();
  FilterForKernel(const FilterForKernel&) = delete;
  const void* program() const { return program_; }

 private:
  struct Extended;
  const void* program_;
  Extended* extended_ = nullptr;
};

}  // namespace fiberthread
