// SPDX-License-Identifier: MIT
// The library's start and end, and its options. It is linked with -z initfirst, so its constructor runs before those of the program and of
// other libraries. libc itself is not ready then, so options come from envp and output is raw.
#include <string.h>
#include <unistd.h>

#include <fcntl.h>
#include <sys/auxv.h>

#include "preload/settings.h"
#include "preload/sanitizer.h"
#include "sched/chaos.h"
#include "sched/explore/explore.h"
#include "sched/arch/context.h"
#include "sched/own_descriptors.h"
#include "sched/observe/dumper.h"
#include "sched/observe/flight.h"
#include "sched/observe/metrics.h"
#include "sched/observe/names.h"
#include "sched/observe/observe.h"
#include "sched/observe/stall.h"
#include "sched/scheduler.h"
#include "shim/embed.h"
#include "shim/fork.h"
#include "shim/signal.h"
#include "sync/channel_core.h"

namespace fiberthread {
namespace {

std::atomic<int> report_fd{-1};

void dump_on(int sig) {
  if (signal_may_dump(sig)) {
    options.dump_signal = sig;
    return;
  }
  Line line;
  line << kPrefix << "DUMP_SIGNAL=" << static_cast<uint64_t>(sig) << " is a signal that cannot be used for that; ignored";
}

enum Row {
#define OPTION(name, ...) kRow_##name,
#include "preload/options.def"
#undef OPTION
};

void set_option(size_t row, [[maybe_unused]] uint64_t n, [[maybe_unused]] const char* s) {
  switch (row) {
#define OPTION(name, option, letter, form, fallback, help, ...) \
  case kRow_##name: __VA_ARGS__; break;
#include "preload/options.def"
#undef OPTION
  }
}

void refuse_variable(const char* name, size_t length, const char* value) {
  Line line;
  line << kPrefix;
  if (const OptionRow* row = option_row(name, length)) {
    line << row->name << "=" << value;
    explain(line, row->form, value);
    line << "; ignored";
  } else {
    for (size_t i = 0; i < length && i < 64; i++) line.put(name[i]);
    line << " is no variable of the library; ignored (nearest: " << kPrefix << nearest_option(name, length) << ")";
  }
}

void read_options(char** envp) {
  // The caller of a program with more rights than its own must not control it, for example by naming a file for a trace.
  if (getauxval(AT_SECURE)) return;
  char file[4096];
  long n = raw_syscall(SYS_readlinkat, AT_FDCWD, arg("/proc/self/exe"), arg(file), sizeof file - 1);
  file[n > 0 ? n : 0] = 0;
  ProgramNames program{file, reinterpret_cast<const char*>(getauxval(AT_EXECFN))};
  Settings settings;
  settings.read_files(envp, program);
  for (; envp && *envp; envp++) {
    if (strncmp(*envp, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const char* name = *envp + sizeof kPrefix - 1;
    const char* eq = strchr(name, '=');
    if (eq && !settings.take(name, static_cast<size_t>(eq - name), eq + 1)) refuse_variable(name, static_cast<size_t>(eq - name), eq + 1);
  }
  for (size_t i = 0; i < kOptionCount; i++)
    if (settings.of[i].value) set_option(i, settings.of[i].number, settings.of[i].value);
  options.nptl = settings.why_nptl(program);
  if (*settings.broken) Line() << settings.broken << "; this program's threads stay libc's";
}

[[gnu::constructor(101)]] void start(int, char** argv, char** envp) {
  embed();
  context_init();
  sched_init();
  sanitizer_start(argv, envp);
  read_options(envp);
  fork_init();
  if (options.dump_signal) signal_dump_init();
  if (record_wanted()) signal_record_init();
  if (options.statistics != Report::None) {
    observing.fetch_or(kObserveStats, std::memory_order_relaxed);
    // The program may close stderr before it ends. So keep a copy of it among our own descriptors.
    own_fd_take(raw_syscall(SYS_fcntl, 2, F_DUPFD_CLOEXEC, 0), report_fd);
  }
}

[[gnu::destructor]] void end() {
  if (report_fd >= 0 && sched_asked()) report_statistics(report_fd);
  trace_end();
  metrics_end();
}

}  // namespace
}  // namespace fiberthread
