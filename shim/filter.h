// SPDX-License-Identifier: MIT
// Filters of system calls (seccomp) that the program sets for itself.
#pragma once

namespace fiberthread {

// A filter as the program has it and, while this object exists, as the kernel gets it. Where a switch asks the kernel for the thread
// pointer (no FSGSBASE), the kernel's copy goes on to allow that call. If the filter refused it, no fiber could run again. Allowing it lets
// code do nothing that it could not do by itself on other processors. Where the switch needs no system call, or memory is missing, the
// filter is the program's.
class FilterForKernel {
 public:
  explicit FilterForKernel(const void* program);  // a sock_fprog; it need not be readable
  ~FilterForKernel();
  FilterForKernel(const FilterForKernel&) = delete;
  const void* program() const { return program_; }

 private:
  struct Extended;
  const void* program_;
  Extended* extended_ = nullptr;
};

}  // namespace fiberthread
