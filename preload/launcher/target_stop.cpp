// SPDX-License-Identifier: MIT
#include "preload/launcher/target.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "sched/arch/arch.h"
#include FIBERTHREAD_CPU(registers.h)

namespace fiberthread {

Registers registers_of(const user_regs_struct& r) {
  Registers registers;
  set_registers(registers, r);
  return registers;
}

Trouble Target::stop(std::vector<KernelThread>& threads) {
  if (is_core()) {
    threads = core_threads_;
    return {};
  }
  constexpr int kPatienceMs = 500;
  std::vector<int> asked;
  int error = 0;
  // Repeat until there are no new workers: they may be made while we stop the others.
  for (bool more = true; more;) {
    more = false;
    std::vector<int> wanted = {pid_};
    for (auto& w : workers())
      if (w.alive && w.tid != pid_) wanted.push_back(w.tid);
    for (int tid : wanted) {
      if (std::find(asked.begin(), asked.end(), tid) != asked.end()) continue;
      asked.push_back(tid);
      more = true;
      if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0) {
        if (errno != ESRCH) error = errno;
        continue;
      }
      ptrace(PTRACE_INTERRUPT, tid, 0, 0);
      stopped_.push_back({tid, 0});
    }
  }
  if (stopped_.empty() && error) {
    // Another process may trace this one. Parked fibers can be shown all the same.
    std::string by;
    if (FILE* f = fopen(("/proc/" + std::to_string(pid_) + "/status").c_str(), "re")) {
      char line[256];
      int tracer;
      while (fgets(line, sizeof line, f))
        if (sscanf(line, "TracerPid: %d", &tracer) == 1 && tracer) by = "; process " + std::to_string(tracer) + " traces it";
      fclose(f);
    }
    return std::string("its threads cannot be stopped: ") + strerror(error) + by;
  }
  uint64_t until = now() + kPatienceMs * 1'000'000ull;
  for (auto& [tid, signal] : stopped_) {
    int status = 0;
    pid_t r;
    while ((r = waitpid(tid, &status, __WALL | WNOHANG)) == 0 && now() < until) usleep(200);
    if (r == tid && WIFSTOPPED(status) && status >> 16 == 0) signal = WSTOPSIG(status);
    user_regs_struct regs;
    iovec io{&regs, sizeof regs};
    if (r != tid || !WIFSTOPPED(status) || ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) != 0) continue;
    uint64_t tp = thread_pointer_in(regs);
    iovec tls{&tp, sizeof tp};
    if (kThreadPointerNote) ptrace(PTRACE_GETREGSET, tid, kThreadPointerNote, &tls);
    threads.push_back({tid, registers_of(regs), tp});
  }
  return {};
}

void Target::resume() {
  for (auto& s : stopped_) ptrace(PTRACE_DETACH, s.tid, 0, s.signal);
  stopped_.clear();
}

}  // namespace fiberthread
