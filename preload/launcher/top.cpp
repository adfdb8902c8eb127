// SPDX-License-Identifier: MIT
// fiberthread top PID: a live view of what the fibers of a process do. It only reads the process's memory and does not stop the process, so
// the parts of one view are from slightly different moments.
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "preload/launcher/launcher.h"
#include "preload/launcher/stacks.h"
#include "preload/launcher/target.h"

namespace fiberthread {
namespace {

const char kUsage[] =
    "usage: fiberthread top [options] PID\n"
    "Shows what the fibers of a process do: how many are in which state and what they wait for, switches and steals per second,\n"
    "and the fibers that have waited longest.\n"
    "  -d, --delay SECONDS  time between two views (default: 1)\n"
    "  -n, --number N       end after N views\n"
    "  -b, --batch          plain text, one view after the other: for files and scripts\n"
    "  -h, --help           this text\n"
    "Keys: q ends it.\n";

struct Sample {
  uint64_t at = 0;
  uint64_t spawned = 0, ended = 0, switches = 0, parks = 0, steals = 0, preemptions = 0, handovers = 0;
  unsigned workers = 0, busy = 0, idle = 0, bound = 0;
  std::map<uint64_t, uint64_t> switches_of;  // by worker
  std::vector<WorkerSeen> all;
  size_t states[5] = {};
  std::map<std::string, size_t> reasons;
  std::vector<FiberSeen> longest;
};

Sample take(const Target& target, size_t most) {
  Sample s;
  s.at = target.now();
  s.spawned = target.counter("spawned");
  s.ended = target.counter("ended");
  s.handovers = target.counter("handovers");
  s.all = target.workers();
  for (auto& w : s.all) {
    // Workers whose threads have ended count too.
    s.spawned += w.spawned;
    s.ended += w.ended;
    s.switches += w.switches;
    s.parks += w.parks;
    s.steals += w.steals;
    s.preemptions += w.preemptions;
    s.switches_of[w.address] = w.switches;
    if (!w.alive) continue;
    s.workers++;
    s.bound += w.bound;
    if (w.running) s.busy++;
    else s.idle++;
  }
  auto later = [](const FiberSeen& a, const FiberSeen& b) { return a.since != b.since ? a.since < b.since : a.id < b.id; };
  target.each_fiber([&](const FiberSeen& f) {
    s.states[static_cast<int>(f.state)]++;
    if (f.state != State::Parked) return;
    s.reasons[target.text(f.what)]++;
    if (most == 0 || (s.longest.size() == most && !later(f, s.longest.front()))) return;
    if (s.longest.size() == most) {
      std::pop_heap(s.longest.begin(), s.longest.end(), later);
      s.longest.pop_back();
    }
    s.longest.push_back(f);
    std::push_heap(s.longest.begin(), s.longest.end(), later);
  });
  std::sort_heap(s.longest.begin(), s.longest.end(), later);
  return s;
}

std::string command_of(int pid) {
  char name[64] = {};
  FILE* f = fopen(("/proc/" + std::to_string(pid) + "/comm").c_str(), "re");
  if (f) {
    if (!fgets(name, sizeof name, f)) *name = 0;
    fclose(f);
  }
  name[strcspn(name, "\n")] = 0;
  return name;
}

std::string name_of(uint64_t id, bool main, const char* name) {
  return std::to_string(id) + (main ? " (main)" : "") + (*name ? " '" + std::string(name) + "'" : "");
}

// Returns the function in which the program waits, or "". The fiber may go on meanwhile: then what was read of its stack is not used.
std::string waits_in(const Target& target, Stacks& stacks, const FiberSeen& f) {
  constexpr unsigned kFrames = 32;
  std::vector<StackFrame> frames = stacks.unwind(target.saved_registers(f), {}, kFrames);
  FiberSeen now = target.fiber(f.record);
  if (now.id != f.id || now.state != State::Parked || now.since != f.since || now.sp != f.sp) return {};
  for (auto& frame : frames)
    if (!target.in_library(frame.pc)) return stacks.places(frame).front();
  return {};
}

// Returns one view as lines. Without `stacks`, it does not say in which functions fibers wait.
std::vector<std::string> lines_of(const Target& target, Stacks* stacks, const Sample& s, const Sample& before, const std::string& command) {
  std::vector<std::string> lines;
  char line[512];
  auto add = [&](auto... arguments) {
    snprintf(line, sizeof line, arguments...);
    lines.push_back(line);
  };
  double seconds = before.at ? static_cast<double>(s.at - before.at) / 1e9 : 0;
  auto rate = [&](uint64_t now, uint64_t then) { return seconds > 0 ? static_cast<double>(now - then) / seconds : 0; };
  size_t sum = 0;
  for (size_t n : s.states) sum += n;
  add("process %d (%s): %zu fibers, %llu made, %llu ended", target.pid(), command.c_str(), sum, static_cast<unsigned long long>(s.spawned),
      static_cast<unsigned long long>(s.ended));
  add("fibers:  %zu running, %zu ready, %zu parked", s.states[static_cast<int>(State::Running)],
      s.states[static_cast<int>(State::Queued)] + s.states[static_cast<int>(State::Created)], s.states[static_cast<int>(State::Parked)]);
  add("workers: %u: %u busy, %u idle, %u bound", s.workers, s.busy, s.idle, s.bound);
  if (seconds > 0)
    add("per second: %.0f switches, %.0f parks, %.0f steals, %.0f preemptions, %.0f hand-overs, %.0f fibers made",
        rate(s.switches, before.switches), rate(s.parks, before.parks), rate(s.steals, before.steals),
        rate(s.preemptions, before.preemptions), rate(s.handovers, before.handovers), rate(s.spawned, before.spawned));
  else
    add("in all: %llu switches, %llu parks, %llu steals, %llu preemptions, %llu hand-overs", static_cast<unsigned long long>(s.switches),
        static_cast<unsigned long long>(s.parks), static_cast<unsigned long long>(s.steals), static_cast<unsigned long long>(s.preemptions),
        static_cast<unsigned long long>(s.handovers));
  std::vector<std::pair<size_t, std::string>> reasons;
  for (auto& r : s.reasons) reasons.push_back({r.second, r.first});
  std::sort(reasons.rbegin(), reasons.rend());
  std::string waits;
  for (auto& r : reasons) waits += (waits.empty() ? "" : ", ") + std::to_string(r.first) + " " + r.second;
  if (!waits.empty()) lines.push_back("wait for: " + waits);
  add("%s", "");
  add("%8s %-6s %14s  %s", "WORKER", "STATE", seconds > 0 ? "SWITCHES/S" : "SWITCHES", "FIBER");
  constexpr size_t kMostWorkers = 16;
  size_t shown = 0;
  for (auto& w : s.all) {
    if (!w.alive || shown++ >= kMostWorkers) continue;
    FiberSeen f = target.fiber(w.running);
    auto then = before.switches_of.find(w.address);
    double n = seconds > 0 ? rate(w.switches, then == before.switches_of.end() ? 0 : then->second) : static_cast<double>(w.switches);
    std::string fiber = w.running && f.id ? name_of(f.id, f.main, f.name) : "-";
    add("%8d %-6s %14.0f  %s", w.tid, w.bound ? "bound" : w.running ? "busy" : "idle", n, fiber.c_str());
  }
  if (shown > kMostWorkers) add("         and %zu more", shown - kMostWorkers);
  if (s.longest.empty()) return lines;
  add("%s", "");
  add("%10s %-16s %12s  %s", "FIBER", "NAME", "PARKED FOR", "WHY");
  for (auto& f : s.longest) {
    FiberSeen owner;
    WaitView w = target.wait_of(f, owner);
    std::string why = w.for_its_end ? "the end of " : w.what;
    if (w.object && !w.for_its_end) {
      snprintf(line, sizeof line, " %p", w.object);
      why += line;
    }
    if (w.owned != w.NoOwner) {
      if (!w.for_its_end) why += " held by ";
      why += w.owned == w.Itself ? "itself" : "fiber " + name_of(w.owner.id, w.owner.is_main, w.owner.name);
      if (w.owned == w.Ended) why += ", which has ended";
    }
    if (std::string function = stacks && f.sp ? waits_in(target, *stacks, f) : ""; !function.empty()) why += ", in " + function;
    double parked = s.at > f.since ? static_cast<double>(s.at - f.since) / 1e9 : 0;
    snprintf(line, sizeof line, "%10llu %-16s %10.3f s  ", static_cast<unsigned long long>(f.id), f.main ? "(main)" : f.name, parked);
    lines.push_back(line + why);
  }
  return lines;
}

// The terminal's settings at the start, which are restored however we end.
termios saved;
bool changed = false;
void restore() {
  if (!changed) return;
  changed = false;
  tcsetattr(0, TCSANOW, &saved);
  constexpr char kShowCursor[] = "\033[?25h";
  if (write(1, kShowCursor, sizeof kShowCursor - 1) < 0) return;
}
volatile sig_atomic_t ended = 0;

int top(const char* name, double delay, long looks, bool batch) {
  Target target;
  char* end;
  if (strtol(name, &end, 10) <= 0 || *end) {
    fprintf(stderr, "fiberthread: top wants a process's id, not \"%s\"\n", name);
    return 2;
  }
  if (Trouble t = target.open(name); !t.empty()) {
    fprintf(stderr, "fiberthread: %s\n", t.c_str());
    return 1;
  }
  bool screen = !batch && isatty(1);
  if (screen) {
    struct sigaction action = {};
    action.sa_handler = [](int) { ended = 1; };
    for (int sig : {SIGINT, SIGTERM, SIGHUP}) sigaction(sig, &action, nullptr);
    if (tcgetattr(0, &saved) == 0) {
      changed = true;
      atexit(restore);
      termios raw = saved;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(0, TCSANOW, &raw);
    }
    fputs("\033[?25l", stdout);
  }
  std::string command = command_of(target.pid());
  Stacks found(target, false), *stacks = found.open().empty() ? &found : nullptr;
  Sample before;
  for (long n = 0; (looks == 0 || n < looks) && !ended; n++) {
    if (n > 0) {
      pollfd key{screen && changed ? 0 : -1, POLLIN, 0};
      char c = 0;
      if (poll(&key, 1, static_cast<int>(delay * 1000)) == 1 && (read(0, &c, 1) != 1 || c == 'q')) break;
      if (ended) break;
    }
    winsize size{};
    size_t rows = screen && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_row ? size.ws_row : 50, columns = size.ws_col ? size.ws_col : 200;
    Sample s = take(target, 20);
    // Nothing can be read from a process that ends meanwhile.
    if (s.all.empty() && !s.states[static_cast<int>(State::Running)] && kill(target.pid(), 0) != 0 && errno == ESRCH) {
      restore();
      fprintf(stderr, "fiberthread: process %d has ended\n", target.pid());
      return before.at ? 0 : 1;
    }
    std::vector<std::string> lines = lines_of(target, stacks, s, before, command);
    if (screen) {
      fputs("\033[H", stdout);
      for (size_t i = 0; i < lines.size() && i + 1 < rows; i++) printf("%.*s\033[K\n", static_cast<int>(columns), lines[i].c_str());
      fputs("\033[J", stdout);
    } else {
      for (auto& line : lines) puts(line.c_str());
      puts("");
    }
    if (fflush(stdout) != 0) return 1;
    before = std::move(s);
  }
  restore();
  return 0;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

int main_top(int argc, char** argv) {
  const option options[] = {{"delay", required_argument, nullptr, 'd'},
                            {"number", required_argument, nullptr, 'n'},
                            {"batch", no_argument, nullptr, 'b'},
                            {"help", no_argument, nullptr, 'h'},
                            {}};
  double delay = 1;
  long looks = 0;
  bool batch = false;
  for (int c; (c = getopt_long(argc, argv, "d:n:bh", options, nullptr)) != -1;) {
    char* end = nullptr;
    switch (c) {
      case 'd':
        delay = strtod(optarg, &end);
        if (*end || end == optarg || !(delay >= 0.01 && delay <= 86'400)) {
          fprintf(stderr, "fiberthread: --delay takes seconds, from 0.01 to 86400, not \"%s\"\n", optarg);
          return 2;
        }
        break;
      case 'n':
        looks = strtol(optarg, &end, 10);
        if (*end || end == optarg || looks < 1) {
          fprintf(stderr, "fiberthread: --number takes a number from 1, not \"%s\"\n", optarg);
          return 2;
        }
        break;
      case 'b': batch = true; break;
      case 'h': fputs(kUsage, stdout); return 0;
      default: fputs(kUsage, stderr); return 2;
    }
  }
  if (optind + 1 != argc) {
    fputs(kUsage, stderr);
    return 2;
  }
  return top(argv[optind], delay, looks, batch);
}
