// fiberthread: runs a program with libfiberthread.so preloaded.
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "preload/commands.h"

namespace {

const char kUsage[] =
    "usage: fiberthread [options] [--] program [argument…]\n"
    "Runs the program with its POSIX threads as fibers.\n"
    "  -w, --workers N     run fibers on N kernel threads (default: one per CPU)\n"
    "  -s, --spawn POLICY  where new fibers go: adaptive, round-robin or local\n"
    "      --stats         print counts on stderr when the program ends\n"
    "      --verbose       say on stderr what could not be served\n"
    "      --nptl          load the library but leave the threads to libc\n"
    "  -h, --help          this text\n";

int wrong(const char* what, const char* value) {
  fprintf(stderr, "fiberthread: %s \"%s\"\n", what, value);
  return 2;
}

// Beside the launcher (a build tree), or ../lib of where it is installed.
std::string find_library() {
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return "libfiberthread.so";
  self[n] = 0;
  std::string dir(self);
  dir.erase(dir.rfind('/'));
  for (const char* place : {"/libfiberthread.so", "/../lib/libfiberthread.so"})
    if (access((dir + place).c_str(), R_OK) == 0) return dir + place;
  return "libfiberthread.so";  // the dynamic loader's search path
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "dump")) return main_dump(argc - 1, argv + 1);
  if (argc > 1 && !strcmp(argv[1], "top")) return main_top(argc - 1, argv + 1);
  enum { kStats = 256, kVerbose, kNptl };
  const option options[] = {{"workers", required_argument, nullptr, 'w'}, {"spawn", required_argument, nullptr, 's'},
                            {"stats", no_argument, nullptr, kStats},      {"verbose", no_argument, nullptr, kVerbose},
                            {"nptl", no_argument, nullptr, kNptl},        {"help", no_argument, nullptr, 'h'},
                            {}};
  for (int c; (c = getopt_long(argc, argv, "+w:s:h", options, nullptr)) != -1;) switch (c) {
      case 'w': {
        char* end;
        long n = strtol(optarg, &end, 10);
        if (*end || n < 1 || n > 256) return wrong("--workers takes a number from 1 to 256, not", optarg);
        setenv("FIBERTHREAD_WORKERS", optarg, 1);
        break;
      }
      case 's':
        if (strcmp(optarg, "adaptive") && strcmp(optarg, "round-robin") && strcmp(optarg, "local"))
          return wrong("--spawn takes adaptive, round-robin or local, not", optarg);
        setenv("FIBERTHREAD_SPAWN", optarg, 1);
        break;
      case kStats: setenv("FIBERTHREAD_STATS", "1", 1); break;
      case kVerbose: setenv("FIBERTHREAD_VERBOSE", "1", 1); break;
      case kNptl: setenv("FIBERTHREAD_NPTL", "1", 1); break;
      case 'h': fputs(kUsage, stdout); return 0;
      default: fputs(kUsage, stderr); return 2;
    }
  if (optind >= argc) {
    fputs(kUsage, stderr);
    return 2;
  }
  std::string preload = find_library();
  if (const char* others = getenv("LD_PRELOAD"); others && *others) preload += std::string(":") + others;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  execvp(argv[optind], argv + optind);
  int e = errno;
  fprintf(stderr, "fiberthread: %s: %s\n", argv[optind], strerror(e));
  return e == ENOENT ? 127 : 126;
}
