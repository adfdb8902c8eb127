// SPDX-License-Identifier: MIT
// Functions that the files of the launcher share.
#pragma once
#include <string>
#include <vector>

#include "preload/settings.h"

constexpr int kWrongUsage = 2, kCannotRun = 126, kNotFound = 127;

// The subcommands. argv[0] is "fiberthread NAME": getopt() begins its messages with it.
int main_doctor(int argc, char** argv);
int main_compare(int argc, char** argv);
int main_top(int argc, char** argv);
int main_dump(int argc, char** argv);
int main_trace(int argc, char** argv);
int main_explore(int argc, char** argv);
int main_replay(int argc, char** argv);
int main_record(int argc, char** argv);
int main_enable(int argc, char** argv);
int main_disable(int argc, char** argv);

enum class ThreadSanitizer { None, Shared, Linked };  // Linked: statically
// Returns how the program has ThreadSanitizer's run-time, if it was built for it.
ThreadSanitizer sanitizer_of(const std::string& program);
// Returns why the loader does not load the library into this program. Empty if it does, or if the file is not an ELF file: that is a
// script.
std::string why_nothing_is_preloaded(const std::string& path);
// Returns the path of the library. If that is not found, returns its soname, so that the loader looks for it.
std::string find_library();
// Returns the path of a library, or a directory of them, that only `explore` and `replay` use.
std::string find_explore(const char* name);
// Returns the file that execvp() would run, or "" if there is none. Then `why_not` gets the reason, unless no such file exists.
std::string find_program(const std::string& name, std::string* why_not = nullptr);
// Returns a message for an exec of this program that failed with errno `e`.
std::string why_not_run(const std::string& name, int e);

// The settings that hold for a program that is executed by this path. A script is run by an interpreter.
struct ProgramSettings {
  explicit ProgramSettings(const std::string& path, const std::string& interpreter = "");
  ProgramSettings(const ProgramSettings&) = delete;
  std::string called, file;
  fiberthread::ProgramNames names;
  fiberthread::Settings settings;
};

struct Result {
  int status = -1;  // as waitpid() returns it
  int error = 0;    // errno of a failed exec
  bool started = false;
  std::string out, err;
  double seconds = 0;
  long peak_kb = 0;
  int most_threads = 0;  // most kernel threads of the command's first process
};
// Runs the command to its end, with stdin from /dev/null. Its environment is `environment` ("NAME=value"), and then ours without LD_PRELOAD
// and FIBERTHREAD_…. No list of programs keeps it from running on fibers. With `watch`, memory and kernel threads are observed once a millisecond.
Result run(const std::vector<std::string>& command, const std::vector<std::string>& environment = {}, bool watch = false);
