// SPDX-License-Identifier: MIT
// fiberthread compare [-r RUNS] [--] program [argument…]: runs the program on libc's threads and on fibers, in turn, and prints a verdict.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "preload/launcher/launcher.h"
#include "preload/options.h"

namespace {

constexpr int kDiffer = 1;
constexpr int kDefaultRuns = 10;

struct Side {
  const char* name;
  std::vector<std::string> environment;
  std::vector<double> wall, cpu;
  Result first;

  double median(std::vector<double> v) const {
    std::sort(v.begin(), v.end());
    size_t n = v.size();
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
  }
  double at(double part) const {
    std::vector<double> v = wall;
    std::sort(v.begin(), v.end());
    return v[static_cast<size_t>(part * static_cast<double>(v.size() - 1) + 0.5)];
  }
};

// hyperfine splits a command line as a shell does.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char c : word)
    if (c == '\'') text += "'\\''";
    else text += c;
  return text + "'";
}

// Returns the number that follows "name": in hyperfine's report, or NaN if there is none.
double number_in(const std::string& json, const char* name) {
  size_t at = json.find(std::string("\"") + name + "\":");
  return at == std::string::npos ? NAN : strtod(json.c_str() + at + strlen(name) + 3, nullptr);
}

// The same for "name": {"value": NUMBER
double value_in(const std::string& json, const char* name) {
  size_t at = json.find(std::string("\"") + name + "\":");
  return at == std::string::npos ? NAN : number_in(json.substr(at, 100), "value");
}

// Returns the number of fibers that all processes together have made. Each process that made one has written a report; NaN if there is no
// report.
double fibers_made(const std::string& err) {
  constexpr char kReport[] = "{\"fiberthread\":{";
  double made = NAN;
  for (size_t at = err.find(kReport); at != std::string::npos; at = err.find(kReport, at + 1))
    if (double n = number_in(err.substr(at, err.find('\n', at) - at), "fibers"); std::isfinite(n))
      made = std::isfinite(made) ? made + n : n;
  return made;
}

bool time_once(Side& side, const std::vector<std::string>& command) {
  char file[] = "/tmp/fiberthread-compare-XXXXXX";
  int fd = mkstemp(file);
  if (fd < 0) return false;
  std::string line = "env";  // for both sides, so that both pay for its start
  for (auto& e : side.environment) line += " " + quoted(e);
  for (auto& word : command) line += " " + quoted(word);
  Result r = run({"hyperfine", "-N", "-i", "-r", "1", "--style", "none", "--export-json", file, line});
  char json[65536];
  ssize_t n = read(fd, json, sizeof json - 1);
  close(fd);
  unlink(file);
  if (!r.started || r.status != 0 || n <= 0) {
    fprintf(stderr, "fiberthread: hyperfine: %s\n", r.err.c_str());
    return false;
  }
  json[n] = 0;
  // hyperfine's reports before version 2, and since.
  bool old = std::isfinite(number_in(json, "mean")) && std::isfinite(number_in(json, "user"));
  side.wall.push_back(old ? number_in(json, "mean") : value_in(json, "time_wall_clock"));
  side.cpu.push_back(old ? number_in(json, "user") + number_in(json, "system")
                         : value_in(json, "time_user") + value_in(json, "time_system"));
  return std::isfinite(side.wall.back()) && std::isfinite(side.cpu.back());
}

std::string how_ended(int status) {
  return WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status)) : "signal " + std::to_string(WTERMSIG(status));
}

void put_result(Side (&sides)[2], double made) {
  const Result &nptl = sides[0].first, &fibers = sides[1].first;
  auto line = [&](const char* what, double a, double b, const char* format) {
    char left[32], right[32];
    snprintf(left, sizeof left, format, a);
    snprintf(right, sizeof right, format, b);
    printf("%-16s%12s%12s%10.2f\n", what, left, right, b > 0 ? a / b : 0);
  };
  printf("%-16s%12s%12s%10s\n", "", "NPTL", "fibers", "ratio");
  double a = sides[0].median(sides[0].wall), b = sides[1].median(sides[1].wall);
  line("time, median", a, b, "%.4f s");
  line("time, best", sides[0].at(0), sides[1].at(0), "%.4f s");
  line("CPU time", sides[0].median(sides[0].cpu), sides[1].median(sides[1].cpu), "%.4f s");
  line("peak memory", static_cast<double>(nptl.peak_kb) / 1024, static_cast<double>(fibers.peak_kb) / 1024, "%.1f MB");
  // A process that ended before we looked had at least one kernel thread.
  line("kernel threads", std::max(nptl.most_threads, 1), std::max(fibers.most_threads, 1), "%.0f");
  if (std::isfinite(made)) printf("%-16s%12s%12.0f\n", "fibers made", "", made);

  // A difference is clear of the noise if the middle halves of both sides' runs do not overlap.
  bool clear = sides[0].at(0.25) > sides[1].at(0.75) || sides[1].at(0.25) > sides[0].at(0.75);
  printf("\nverdict: ");
  // A process that makes no thread, or that is killed, writes no report. Then the kernel threads that we saw decide.
  bool none = std::isfinite(made) ? made == 0 : nptl.most_threads <= 1;
  if (none) puts("no threads were seen in it, so there is nothing to gain");
  else if (!clear || std::fabs(a / b - 1) < 0.005) puts("no difference in time that stands out of the noise");
  else if (a > b) printf("faster on fibers: %.2f times as fast, by the medians\n", a / b);
  else printf("slower on fibers: %.2f of its speed on NPTL, by the medians\n", a / b);
}

int usage(FILE* to, int status) {
  fputs(
      "usage: fiberthread compare [-r RUNS] [--] PROGRAM [ARGUMENT…]\n"
      "Runs the program once on libc's threads and once on fibers. If output and exit status are the same, times both by hyperfine.\n"
      "  -r, --runs RUNS  timed runs of each side, 2 to 1000 (default: 10)\n"
      "  -h, --help       this text\n",
      to);
  return status;
}

}  // namespace

int main_compare(int argc, char** argv) {
  int runs = kDefaultRuns, at = 1;
  for (; at < argc && argv[at][0] == '-'; at++) {
    if (!strcmp(argv[at], "--")) {
      at++;
      break;
    }
    if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h")) return usage(stdout, 0);
    const char* value = !strncmp(argv[at], "--runs=", 7)                         ? argv[at] + 7
                        : !strcmp(argv[at], "-r") || !strcmp(argv[at], "--runs") ? argv[++at]
                                                                                 : nullptr;
    char* end;
    runs = value ? static_cast<int>(strtol(value, &end, 10)) : 0;
    if (!value || *end || runs < 2 || runs > 1000) return usage(stderr, kWrongUsage);
  }
  std::vector<std::string> command(argv + at, argv + argc);
  if (command.empty()) return usage(stderr, kWrongUsage);
  std::string why;
  if (find_program(command[0], &why).empty()) {
    fprintf(stderr, "fiberthread: %s: %s\n", command[0].c_str(), why.empty() ? "there is no such program" : why.c_str());
    return why.empty() ? kNotFound : kCannotRun;
  }
  if (find_program("hyperfine").empty()) {
    fputs("fiberthread: compare needs hyperfine, which is not installed (Debian's package has that name)\n", stderr);
    return kCannotRun;
  }
  // The caller's own settings: other preloaded libraries, such as an allocator, count for both sides, variables of the library for the
  // fibers' side.
  std::string others;
  for (std::string list = getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : ""; !list.empty();) {
    size_t end = list.find_first_of(": ");
    std::string one = list.substr(0, end);
    if (!one.empty() && one.find("libfiberthread.so") == std::string::npos) others += ":" + one;
    list.erase(0, end == std::string::npos ? end : end + 1);
  }
  std::vector<std::string> plain, preloaded{"LD_PRELOAD=" + find_library() + others};
  if (!others.empty()) plain.push_back("LD_PRELOAD=" + others.substr(1));
  std::string statistics = std::string(fiberthread::kPrefix) + "STATS=";
  for (char** e = environ; *e; e++)
    if (!strncmp(*e, fiberthread::kPrefix, strlen(fiberthread::kPrefix)) && statistics.compare(0, std::string::npos, *e, statistics.size()))
      preloaded.push_back(*e);
  Side sides[2] = {{"NPTL", plain, {}, {}, {}}, {"fibers", preloaded, {}, {}, {}}};

  // Run each side once, to compare the output and to observe memory and threads. This also warms up the caches.
  sides[0].first = run(command, plain, true);
  preloaded.push_back(statistics + "json");
  sides[1].first = run(command, preloaded, true);
  const Result &nptl = sides[0].first, &fibers = sides[1].first;
  if (!nptl.started || !fibers.started) {
    int e = nptl.error ? nptl.error : fibers.error;
    fprintf(stderr, "fiberthread: %s cannot be run: %s\n", command[0].c_str(), why_not_run(command[0], e).c_str());
    return kCannotRun;
  }
  if (nptl.status != fibers.status || nptl.out != fibers.out) {
    Result again = run(command, plain);
    bool steady = again.status == nptl.status && again.out == nptl.out;
    printf("The two differ: on NPTL it ended with %s and %zu bytes of output, on fibers with %s and %zu bytes.\n",
           how_ended(nptl.status).c_str(), nptl.out.size(), how_ended(fibers.status).c_str(), fibers.out.size());
    puts(steady ? "Two runs on NPTL do not differ, so please report this." : "But so do two runs on NPTL.");
    puts(
        "Nothing was compared: a program that does something else is neither faster nor slower. If only unimportant output differs,\n"
        "try: fiberthread compare -- sh -c '… >/dev/null'");
    return kDiffer;
  }
  double made = fibers_made(fibers.err);
  printf("Output and status are the same (%zu bytes, %s). Timing %d runs of each in turn…\n\n", nptl.out.size(),
         how_ended(nptl.status).c_str(), runs);
  fflush(stdout);
  for (int i = 0; i < runs; i++)
    for (int k = 0; k < 2; k++)
      if (!time_once(sides[(i + k) % 2], command)) return kCannotRun;
  put_result(sides, made);
  return 0;
}
