// SPDX-License-Identifier: MIT
// fopen() of a thread's files in /proc/self/task. The kernel has none for a fiber. OpenJDK reads a thread's user time in `stat`.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sched/accounting.h"
#include "sched/scheduler.h"
#include "sched/syscall.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread_names.h"
#include "shim/time.h"

namespace fiberthread {
namespace {

// Returns what stands behind `/proc/self/task/ID/`, and the id. Null: the path is another.
const char* file_of_task(const char* path, int* id) {
  auto skip = [&](const char* what) {
    size_t n = strlen(what);
    bool there = strncmp(path, what, n) == 0;
    if (there) path += n;
    return there;
  };
  char pid[16];
  snprintf(pid, sizeof pid, "%d", static_cast<int>(getpid()));
  if (!skip("/proc/") || !(skip("self") || skip(pid)) || !skip("/task/")) return nullptr;
  constexpr long kMost = 0x7fffffff;
  long n = 0;  // by hand: libc's strtol() has another name from 2.38 on
  while (*path >= '0' && *path <= '9' && n <= kMost) n = n * 10 + (*path++ - '0');
  if (n <= 0 || n > kMost || *path != '/') return nullptr;
  *id = static_cast<int>(n);
  return path + 1;
}

// Writes the fiber's line to `to`, after the pattern of the process's: the fiber's id, name, state and CPU time, which is all the user's.
bool write_stat(FILE* to, FiberRecord* f, const char* name) {
  char line[1024];
  FILE* of_process = REAL(fopen)("/proc/self/stat", "re");
  if (!of_process) return false;
  size_t n = fread(line, 1, sizeof line - 1, of_process);
  fclose(of_process);
  line[n] = 0;
  char* rest = strrchr(line, ')');
  if (!rest) return false;
  constexpr int kState = 3, kUserTime = 14, kSystemTime = 15;
  bool runs = f == tls_current || f->run.state.load(std::memory_order_relaxed) != State::Parked;
  fprintf(to, "%u (%s)", f->identity.id, name);
  char* save = nullptr;
  int field = kState;
  for (char* word = strtok_r(rest + 1, " \n", &save); word; word = strtok_r(nullptr, " \n", &save), field++) {
    if (field == kState) fprintf(to, " %c", runs ? 'R' : 'S');
    else if (field == kUserTime) fprintf(to, " %llu", static_cast<unsigned long long>(cpu_time_of(f) / (kNsPerSec / sysconf(_SC_CLK_TCK))));
    else fprintf(to, " %s", field == kSystemTime ? "0" : word);
  }
  fprintf(to, "\n");
  return true;
}

// Returns the file, or null if `path` is none of a fiber's.
FILE* open_task_file(const char* path, const char* mode) {
  if (__builtin_expect(strncmp(path, "/proc/", 6) != 0, 1) || !sched_started()) return nullptr;
  int id, error = errno;
  const char* file = *mode == 'r' && !strchr(mode, '+') ? file_of_task(path, &id) : nullptr;
  bool stat = file && strcmp(file, "stat") == 0;
  if (!file || (!stat && strcmp(file, "comm") != 0) || in_vfork_child()) return nullptr;
  FiberRecord* f = fiber_of_tid(id);
  if (!f || f->run.kernel || f->join.done.load(std::memory_order_acquire)) return nullptr;
  char name[16];
  name_of(f, name);
  constexpr size_t kRoom = 2048;
  FILE* made = fmemopen(nullptr, kRoom, "w+");
  if (!made) return nullptr;
  bool written = stat ? write_stat(made, f, name) : fprintf(made, "%s\n", name) > 0;
  if (written && fseek(made, 0, SEEK_SET) == 0) {
    errno = error;
    return made;
  }
  fclose(made);
  return nullptr;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT FILE* fopen(const char* path, const char* mode) {
  FILE* f = open_task_file(path, mode);
  return f ? f : REAL(fopen)(path, mode);
}

FIBERTHREAD_EXPORT FILE* fopen64(const char* path, const char* mode) {
  FILE* f = open_task_file(path, mode);
  return f ? f : REAL(fopen64)(path, mode);
}
