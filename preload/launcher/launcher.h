// SPDX-License-Identifier: MIT
// Between the files of the launcher.
#pragma once
#include <string>
#include <vector>

constexpr int kWrongUsage = 2, kCannotRun = 126, kNotFound = 127;

// The subcommands, with "fiberthread NAME" as argv[0], which getopt() begins its messages with.
int main_doctor(int argc, char** argv);
int main_compare(int argc, char** argv);
int main_top(int argc, char** argv);
int main_dump(int argc, char** argv);
int main_trace(int argc, char** argv);

// Why the loader does not load the library into this program; empty: it does. What is no ELF file is taken for a script.
std::string why_nothing_is_preloaded(const std::string& path);
// Where libfiberthread.so is; as a last resort its name, for the loader to look for.
std::string find_library();
// The file that execvp() would run; empty: there is none, and `why_not` says why, if that is another reason than that nobody has it.
std::string find_program(const std::string& name, std::string* why_not = nullptr);
// What an exec of this program that failed with errno `e` has to tell.
std::string why_not_run(const std::string& name, int e);

struct Result {
  int status = -1;  // as waitpid() tells
  int error = 0;    // of the exec that failed
  bool started = false;
  std::string out, err;
  double seconds = 0;
  long peak_kb = 0;
  int most_threads = 0;  // kernel threads of its first process
};
// Runs it to its end, with stdin from /dev/null. Variables of `environment` ("NAME=value") go before ours, of which LD_PRELOAD and
// FIBERTHREAD_… are left out.
Result run(const std::vector<std::string>& command, const std::vector<std::string>& environment = {}, bool watch = false);
