// SPDX-License-Identifier: MIT
// fiberthread replay: runs a program under the schedule of a failure that was found.
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "preload/launcher/explore/failure.h"
#include "preload/launcher/explore/run.h"

using namespace fiberthread;

namespace {

constexpr int kNoneFound = 0, kFound = 1;

// Returns true if the signal ends the stopped process.
bool ends_it(pid_t pid, int sig) {
  std::string text;
  if (!file_contents("/proc/" + std::to_string(pid) + "/status", text)) return false;
  for (const char* field : {"\nSigIgn:", "\nSigCgt:"}) {
    size_t at = text.find(field);
    if (at == std::string::npos || strtoull(text.c_str() + at + strlen(field), nullptr, 16) >> (sig - 1) & 1) return false;
  }
  return true;
}

// Runs the schedule on this terminal until the signal comes by which the program fails. Returns the process, which is stopped there without
// that signal: it raises it again when it goes on. For gdb, which takes each trap of a single step for one of its own. -1: the program has ended.
pid_t run_until_it_fails(Job& job, const RunSettings& s, const Verdict& v) {
  int wanted = v.kind == Kind::Signal ? v.detail : v.kind == Kind::Deadlock ? SIGABRT : 0;
  pid_t program = fork();
  if (program < 0) return -1;
  if (program == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    job.exec(s);
  }
  bool first = true;
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0; first = false) {
    if (!WIFSTOPPED(status)) {
      if (pid == program) break;
      continue;
    }
    if (first) ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    int sig = status >> 16 || first || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
    if (sig && sig == wanted && ends_it(pid, sig)) {
      pid_t group = job.claimed();
      ptrace(PTRACE_SETOPTIONS, pid, nullptr, nullptr);
      ptrace(PTRACE_DETACH, pid, nullptr, reinterpret_cast<void*>(intptr_t{SIGSTOP}));
      return group;
    }
    ptrace(PTRACE_CONT, pid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(sig)));
  }
  return -1;
}

}  // namespace

int main_replay(int argc, char** argv) {
  enum { kGdb = 256, kTrace };
  static const option options[] = {
      {"gdb", no_argument, nullptr, kGdb}, {"trace", required_argument, nullptr, kTrace}, {"help", no_argument, nullptr, 'h'}, {}};
  bool gdb = false;
  RunSettings s;
  for (int c; (c = getopt_long(argc, argv, "+h", options, nullptr)) != -1;) {
    switch (c) {
      case kGdb: gdb = true; break;
      case kTrace: s.trace = optarg; break;
      case 'h':
        puts(
            "usage: fiberthread replay [options] FILE [-- PROGRAM [ARGUMENT…]]\n"
            "Runs the program under the schedule in FILE, which fiberthread explore has written. Exit status 1: it fails as it did then;\n"
            "0: it does not fail so; 2: it goes another way, or the file is of no use.\n\n"
            "      --gdb                run it in gdb, where \"info fibers\" shows all threads\n"
            "      --trace FILE         write a trace for Perfetto\n"
            "  -h, --help               this text");
        return 0;
      default: return kWrongUsage;
    }
  }
  if (optind >= argc) wrong("replay", "there is no file to replay; see fiberthread replay --help");
  const char* path = argv[optind++];
  if (optind < argc && !strcmp(argv[optind], "--")) optind++;
  Recorded r;
  read_recorded(path, s, r);
  if (optind < argc) {
    s.command.assign(argv + optind, argv + argc);
    s.program.clear();
  } else if (!r.directory.empty() && chdir(r.directory.c_str()) != 0) {
    wrong("replay", r.directory + ": " + strerror(errno));
  }
  check_program("replay", s);
  if (r.fingerprint != fingerprint(s.program))
    wrong("replay", s.program + " is another program, or another version, than the one of " + path);
  Job job(true);
  if (!Job::fix_addresses())
    fprintf(stderr, "fiberthread replay: addresses cannot be fixed here: %s. What depends on them may go another way\n", strerror(errno));
  if (gdb) {
    job.prepare(s, scripted(r.steps), true);
    job.keep_open();
    pid_t failed = s.memory & kMemorySteps ? run_until_it_fails(job, s, r.verdict) : 0;
    if (failed < 0) wrong("replay", "--gdb: the program has ended without a signal, and gdb cannot follow it through its single steps");
    std::vector<std::string> command = {"gdb", "-iex", "set disable-randomization on", "-iex", "set startup-with-shell off"};
    // In a build directory gdb's script stands beside the library.
    std::string library = find_library();
    command.insert(command.end(), {"-iex", "add-auto-load-safe-path " + library.substr(0, library.rfind('/'))});
    const char* outer = getenv("LD_PRELOAD");
    std::string before = outer ? outer : "";
    job.set_environment(s);
    if (failed) command.insert(command.end(), {"-p", std::to_string(failed), s.program});
    else command.insert(command.end(), {"-ex", std::string("set environment LD_PRELOAD ") + getenv("LD_PRELOAD"), "--args", s.program});
    if (!failed) command.insert(command.end(), s.command.begin() + 1, s.command.end());
    setenv("LD_PRELOAD", before.c_str(), 1);
    if (before.empty()) unsetenv("LD_PRELOAD");
    std::vector<char*> words;
    for (auto& w : command) words.push_back(w.data());
    words.push_back(nullptr);
    execvp("gdb", words.data());
    wrong("replay", std::string("gdb: ") + strerror(errno));
  }
  Job::block_child_signal();
  Outcome o = job.run(s, scripted(r.steps), true);
  fwrite(o.out.data(), 1, o.out.size(), stdout);
  fflush(stdout);
  fwrite(o.err.data(), 1, o.err.size(), stderr);
  if (o.hash != r.hash || o.diverged) {
    printf("goes another way: %s, after %lu choices instead of %lu%s\n", words_of(o.verdict).c_str(), static_cast<unsigned long>(o.choices),
           static_cast<unsigned long>(r.choices), o.outside ? "; events from outside came at other times" : "");
    return kWrongUsage;
  }
  printf("%s\n", o.verdict.same_kind(r.verdict) ? ("fails again: " + words_of(o.verdict)).c_str()
                                                : ("does not fail again: " + words_of(o.verdict)).c_str());
  return o.verdict.same_kind(r.verdict) ? kFound : kNoneFound;
}
