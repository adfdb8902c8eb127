// SPDX-License-Identifier: MIT
// fiberthread explore: runs a program again and again, each time under another schedule, until one fails. sched/explore/ in the program makes
// the schedules. This file has the options, and search.cpp says which schedules are run.
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#include "preload/launcher/explore/search.h"
#include "sched/arch/step.h"

using namespace fiberthread;

namespace {

bool seconds(const char* text, double& to) {
  char* end;
  to = strtod(text, &end);
  if (end == text || to < 0) return false;
  if (!strcmp(end, "m")) to *= 60;
  else if (!strcmp(end, "h")) to *= 3600;
  else if (*end && strcmp(end, "s") != 0) return false;
  return true;
}

void explore_usage(FILE* to) {
  fputs(
      "usage: fiberthread explore [options] [--] PROGRAM [ARGUMENT…]\n"
      "Runs the program again and again, each time under another schedule of its threads, until one fails. Exit status 0: none has "
      "failed;\n"
      "1: one has; 2: wrong use. A failure is a signal, another exit status, a deadlock, a livelock, a hang, or another output.\n\n"
      "  -t, --time T             how long (60s; 10m, 1h)\n"
      "  -n, --schedules N        how many schedules at most\n"
      "      --strategy NAME      random, pct or pos (all in turn), or bounded: all schedules with few preemptions\n"
      "      --depth D            ordering constraints that pct looks for (3); most preemptions of bounded (2)\n"
      "      --seed S             where the numbers begin (1)\n"
      "      --status N           the exit status of a run that has not failed (0)\n"
      "      --expect FILE        the output of a run that has not failed\n"
      "      --same-output        each run has the output of the first one\n"
      "      --check COMMAND      a shell command that gets the output and fails if that is wrong\n"
      "      --budget T           how long at most with all that comes after a failure\n"
      "      --timers T           a sleep or a timeout of up to T may end while others could run (0.1s)\n"
      "      --hang T             without a scheduling point for so long, a run hangs (10s)\n"
      "      --memory             accesses to memory are points too\n"
      "      --races ignore       with --memory, in a program built with -fsanitize=thread: a data race by itself is no failure\n"
      "  -j, --jobs J             runs at a time (as many as CPUs)\n"
      "      --all                go on after a failure, and collect those that differ\n"
      "      --exec               start the program anew for each schedule, never fork it at its first thread\n"
      "      --out DIRECTORY      where the files for replay go (.)\n"
      "      --json               one line of JSON on stdout, and nothing else\n"
      "      --junit FILE         the result as JUnit's XML\n"
      "  -q, --quiet              no progress\n"
      "  -h, --help               this text\n",
      to);
}

}  // namespace

int main_explore(int argc, char** argv) {
  enum {
    kStrategy = 256,
    kDepth,
    kSeed,
    kStatus,
    kExpect,
    kSame,
    kCheck,
    kHang,
    kAll,
    kOut,
    kJson,
    kBudget,
    kExec,
    kJunit,
    kMemory,
    kRaces,
    kTimers
  };
  static const option options[] = {{"time", required_argument, nullptr, 't'},
                                   {"schedules", required_argument, nullptr, 'n'},
                                   {"strategy", required_argument, nullptr, kStrategy},
                                   {"depth", required_argument, nullptr, kDepth},
                                   {"seed", required_argument, nullptr, kSeed},
                                   {"status", required_argument, nullptr, kStatus},
                                   {"expect", required_argument, nullptr, kExpect},
                                   {"same-output", no_argument, nullptr, kSame},
                                   {"check", required_argument, nullptr, kCheck},
                                   {"hang", required_argument, nullptr, kHang},
                                   {"memory", no_argument, nullptr, kMemory},
                                   {"races", required_argument, nullptr, kRaces},
                                   {"timers", required_argument, nullptr, kTimers},
                                   {"jobs", required_argument, nullptr, 'j'},
                                   {"all", no_argument, nullptr, kAll},
                                   {"out", required_argument, nullptr, kOut},
                                   {"json", no_argument, nullptr, kJson},
                                   {"budget", required_argument, nullptr, kBudget},
                                   {"exec", no_argument, nullptr, kExec},
                                   {"junit", required_argument, nullptr, kJunit},
                                   {"quiet", no_argument, nullptr, 'q'},
                                   {"help", no_argument, nullptr, 'h'},
                                   {}};
  RunSettings s;
  Search x;
  bool has_depth = false, memory = false, races = true;
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (cpus > 0) x.jobs = static_cast<unsigned>(cpus);
  auto time = [&](const char* name, double least, double& to) {
    if (!seconds(optarg, to) || to < least)
      wrong("explore", std::string("--") + name + ": " + optarg + " is no time, such as 30s, 10m or 1h");
  };
  auto number = [&](const char* name, uint64_t least, uint64_t greatest) {
    char* end;
    errno = 0;
    unsigned long long n = strtoull(optarg, &end, 10);
    if (errno || !isdigit(static_cast<unsigned char>(*optarg)) || *end || n < least || n > greatest)
      wrong("explore", std::string("--") + name + ": " + optarg + " is not a number from " + std::to_string(least) + " to " +
                           std::to_string(greatest));
    return static_cast<uint64_t>(n);
  };
  for (int c; (c = getopt_long(argc, argv, "+t:n:j:qh", options, nullptr)) != -1;) {
    switch (c) {
      case 't': time("time", 0, x.time); break;
      case 'n': x.most = number("schedules", 1, UINT64_MAX / 2); break;
      case 'j': x.jobs = static_cast<unsigned>(number("jobs", 1, 1024)); break;
      case 'q': s.quiet = true; break;
      case 'h': explore_usage(stdout); return 0;
      case kStrategy:
        x.only = Strategy::Script;
        x.bounded = !strcmp(optarg, "bounded");
        for (Strategy t : {Strategy::Random, Strategy::Pct, Strategy::Pos})
          if (name_of(t) == optarg) x.only = t;
        if (x.only == Strategy::Script && !x.bounded)
          wrong("explore", std::string("--strategy: ") + optarg + " is none of random, pct, pos and bounded");
        break;
      case kDepth:
        x.depth = static_cast<uint32_t>(number("depth", 0, 64));
        has_depth = true;
        break;
      case kSeed: x.seed = number("seed", 0, UINT64_MAX); break;
      case kStatus: s.status = static_cast<int>(number("status", 0, 255)); break;
      case kExpect:
        if (!file_contents(optarg, s.expect)) wrong("explore", std::string("--expect: ") + optarg + ": " + strerror(errno));
        s.has_expect = true;
        break;
      case kSame: s.same_output = true; break;
      case kCheck: s.check = optarg; break;
      case kHang: time("hang", 0.001, s.hang); break;
      case kTimers: {
        double t;
        time("timers", 0, t);
        s.timers = static_cast<uint64_t>(t * 1e9);
        break;
      }
      case kBudget: time("budget", 0.001, x.budget); break;
      case kExec: s.anew = true; break;
      case kJunit: x.junit = optarg; break;
      case kMemory: memory = true; break;
      case kRaces:
        races = !strcmp(optarg, "fail");
        if (!races && strcmp(optarg, "ignore") != 0) wrong("explore", std::string("--races: ") + optarg + " is neither fail nor ignore");
        break;
      case kAll: s.all = true; break;
      case kOut: s.directory = optarg; break;
      case kJson: s.json = true; break;
      default: return kWrongUsage;
    }
  }
  if (optind >= argc) wrong("explore", "there is no program to explore; see fiberthread explore --help");
  if (x.time < 0) x.time = x.most == UINT64_MAX && x.budget > 1e8 ? 60 : 1e9;
  if (x.bounded && !has_depth) x.depth = 2;
  if (!x.bounded && x.depth == 0) wrong("explore", "--depth: 0 is for --strategy bounded");
  s.command.assign(argv + optind, argv + argc);
  check_program("explore", s);
  if (memory) s.memory = s.instrumented ? kMemoryPoints : kMemoryPoints | kMemorySteps;
  if (memory && races && s.instrumented) s.memory |= kMemoryRaces;
  if (s.memory & kMemorySteps && !kCanStep)
    wrong("explore", "--memory: on this processor the program must be built with -fsanitize=thread");
  if (s.memory & kMemorySteps && x.bounded)
    wrong("explore", "--memory: with --strategy bounded the program must be built with -fsanitize=thread");
  if (access(s.directory.c_str(), W_OK) != 0) wrong("explore", "--out: " + s.directory + ": " + strerror(errno));
  return explore(s, x);
}
