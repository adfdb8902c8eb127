// SPDX-License-Identifier: MIT
// fiberthread trace FILE: converts FILE.raw to FILE, which viewers can read. A process leaves FILE.raw when it is killed, or ends by
// _exit() or exec().
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "preload/launcher/launcher.h"
#include "sched/observe/trace_text.h"

int main_trace(int argc, char** argv) {
  if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
    puts(
        "usage: fiberthread trace FILE\n"
        "Makes FILE from FILE.raw, which a traced process leaves when it is killed, or ends by _exit() or exec().");
    return 0;
  }
  if (argc != 2 || argv[1][0] == '-') {
    fputs("fiberthread trace: there must be one FILE; see fiberthread trace --help\n", stderr);
    return kWrongUsage;
  }
  std::string name = argv[1], raw_name = name + ".raw";
  auto fails = [](const std::string& what, const char* why) {
    fprintf(stderr, "fiberthread trace: %s: %s\n", what.c_str(), why);
    return 1;
  };
  int raw = open(raw_name.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0) return fails(raw_name, strerror(errno));
  if (flock(raw, LOCK_EX | LOCK_NB)) return fails(raw_name, "its process has not ended");
  decltype(fiberthread::TraceHead::magic) magic = 0;
  if (pread(raw, &magic, sizeof magic, offsetof(fiberthread::TraceHead, magic)) != sizeof magic || magic != fiberthread::TraceHead::kMagic)
    return fails(raw_name, "is no trace");  // and FILE is not touched
  int file = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return fails(name, strerror(errno));
  if (flock(file, LOCK_EX | LOCK_NB)) return fails(name, "its process has not ended");
  if (ftruncate(file, 0)) return fails(name, strerror(errno));
  long r = fiberthread::TraceText::convert(raw, file);
  if (r == -ENODATA) return fails(raw_name, "is cut short");
  if (r < 0 && r != -EFBIG) return fails(name, strerror(static_cast<int>(-r)));
  if (r == -EFBIG) fails(name, "ends early: it has become too large");
  unlink(raw_name.c_str());
  return 0;
}
