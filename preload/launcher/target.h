// SPDX-License-Identifier: MIT
// Reads a process or a core in which the library runs, from outside: its memory, and the fibers in it. target_core.cpp opens a core, and
// target_stop.cpp stops a process's threads.
#pragma once
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/observe/report.h"

struct user_regs_struct;

namespace fiberthread {

// A message for the user that says what failed; empty after a success.
using Trouble = std::string;

// A mapped part of a file, or the kernel's code (kKernelCode).
struct Mapping {
  uint64_t low, high, offset;
  std::string path;
};

constexpr const char* kKernelCode = "[vdso]";

struct Segment {  // of a core
  uint64_t address, size, offset;
};

// General registers by DWARF's numbers.
struct Registers {
  static constexpr unsigned kCount = 33;
  uint64_t value[kCount] = {};
  uint64_t known = 0;  // a bit for each register that has a value
  uint64_t pc = 0;
  void set(unsigned number, uint64_t v) {
    value[number] = v;
    known |= uint64_t{1} << number;
  }
};
Registers registers_of(const user_regs_struct& r);
extern const unsigned kStackPointer;
extern const uint64_t kSignature;  // bits that may be set in return addresses on the stack

struct KernelThread {
  int tid;
  Registers registers;
  uint64_t thread_pointer;
};

struct WorkerSeen {
  uint64_t address = 0, running = 0;
  int tid = 0;
  bool idle = false, bound = false, slot = false, alive = false;
  uint64_t switches = 0, parks = 0, steals = 0, preemptions = 0, spawned = 0, ended = 0;
};

struct FiberSeen {
  uint64_t record = 0, id = 0;
  char name[17] = {};
  State state = State::Done;
  bool main = false, kernel = false, bound = false, preempted = false;
  uint64_t start = 0, sp = 0, tp = 0, stack_low = 0, stack_high = 0;
  uint64_t what = 0, object = 0, owner = 0, file = 0, since = 0, worker = 0;
  int line = 0;
};

class Target {
 public:
  ~Target();
  // `name` is a process's id or a core's file name.
  Trouble open(const char* name);
  bool is_core() const { return core_ >= 0; }
  int pid() const { return pid_; }
  int core() const { return core_; }

  bool read(uint64_t address, void* to, size_t size) const;
  // Reads from `address` on until `size` bytes are read or the next one cannot be read. Returns how many it has read.
  size_t read_some(uint64_t address, void* to, size_t size) const;
  template <class T>
  T get(uint64_t address) const {
    T value{};
    read(address, &value, sizeof value);
    return value;
  }
  const std::string& text(uint64_t address) const;  // of the library, where they do not change
  // The text at an address in the library, of which only the low half is known.
  std::string library_text(uint32_t low_half) const { return text(library_low_ + (low_half - static_cast<uint32_t>(library_low_))); }
  const std::vector<Mapping>& mappings() const { return mappings_; }  // by address
  const Mapping* mapping_at(uint64_t address) const;

  // Returns a number of the library's layout. An unknown name ends the program, with a message about versions.
  uint64_t layout(const char* name) const;
  // Returns whether the address is in the mapped library.
  bool in_library(uint64_t address) const { return address >= library_low_ && address < library_high_; }

  std::vector<WorkerSeen> workers() const;
  uint64_t counter(const char* name) const { return get<uint64_t>(layout(name)); }
  // Calls visit(fiber) for each fiber that has not ended.
  template <class Visit>
  void each_fiber(Visit visit) const {
    struct Call {
      static void one(void* p, const FiberSeen& f) { (*static_cast<Visit*>(p))(f); }
    };
    each_fiber(&Call::one, &visit);
  }
  FiberSeen fiber(uint64_t record) const;  // state Done if there is no such fiber
  // Returns why the fiber waits, brought up to date from the object that it waits for: its present owner, and its address as the program
  // knows it.
  WaitView wait_of(const FiberSeen& f, FiberSeen& owner) const;
  uint64_t now() const;  // CLOCK_MONOTONIC; for a core, the time of sysmon's last look
  // Returns the registers with which a fiber that does not run will go on.
  Registers saved_registers(const FiberSeen& f) const;

  // Returns the registers of the stall watch's sample, and the id and name of its fiber, which may have ended. `stack` gets the bytes from the
  // stack pointer on.
  Registers sample(FiberSeen& fiber, std::vector<char>& stack) const;

  // Stops the main thread and the workers, and returns their registers. resume() lets them go on. Of a core, it only returns the registers.
  // A thread that cannot be stopped is left out.
  Trouble stop(std::vector<KernelThread>& threads);
  void resume();

 private:
  Trouble open_process();
  Trouble open_core(const char* path);  // target_core.cpp
  Trouble find_library();
  uint64_t symbol_in_memory(uint64_t base, const char* name) const;
  void each_fiber(void (*visit)(void*, const FiberSeen&), void* data) const;
  FiberSeen read_fiber(uint64_t record, const char* bytes) const;

  int pid_ = 0, core_ = -1;
  std::vector<Mapping> mappings_;
  std::vector<Segment> segments_;
  std::vector<KernelThread> core_threads_;
  struct Stopped {
    int tid, signal;  // a signal that stopped the thread before we did, to be delivered by resume(), or 0
  };
  std::vector<Stopped> stopped_;
  mutable std::map<std::string, int> files_;  // descriptors of mapped files, -1 if one could not be opened
  std::map<std::string, uint64_t> layout_;
  struct {  // offsets in a record, looked up once
    uint64_t size, sp, tp, state, kernel, id, name, start, tcb, stack_low, stack_high, worker, bound, preempted;
    uint64_t what, object, owner, file, line, since;
    uint64_t frame, frame_pc;  // size of a saved frame, and where its pc is
  } at_;
  std::vector<uint64_t> saved_at_;  // where the registers are in one
  mutable uint64_t main_record_ = 0;
  mutable std::unordered_map<uint64_t, std::string> texts_;
  mutable std::map<uint64_t, uint64_t> ids_;  // the records of fibers by id, filled when first needed
  uint64_t library_low_ = 0, library_high_ = 0;
};

// Writes the flight recorder's rings as a trace (record.cpp). Returns what failed, or "" and a line about what was written.
Trouble write_record(const Target& target, const std::string& path, std::string& summary);

}  // namespace fiberthread
