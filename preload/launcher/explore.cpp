// SPDX-License-Identifier: MIT
// fiberthread explore: runs a program again and again, each time under another schedule, until one fails. fiberthread replay: runs it under
// the schedule of a failure that was found. sched/explore/ chooses the schedules; this file says which, and judges what comes of them.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <new>
#include <set>

#include "preload/launcher/launcher.h"
#include "preload/launcher/symbols.h"
#include "preload/launcher/target.h"
#include "preload/options.h"
#include "sched/explore/shared.h"

using namespace fiberthread;

namespace {

constexpr int kNoneFound = 0, kFound = 1;
constexpr uint64_t kMostPoints = 1'000'000;
constexpr char kFirstLine[] = "fiberthread-explore 1";

struct Plan {
  Strategy strategy = Strategy::Script;
  uint64_t seed = 0, expected = 0, number = 0;
  uint32_t depth = 3;
  std::vector<Step> script;
};

enum class Kind { Passed, Signal, Status, Output, Check, Deadlock, Livelock, Hang };
struct Verdict {
  Kind kind = Kind::Passed;
  int detail = 0;
  bool operator==(const Verdict& v) const { return kind == v.kind && detail == v.detail; }
  bool failed() const { return kind != Kind::Passed; }
};

struct Outcome {
  Verdict verdict;
  std::string out, err;
  uint64_t points = 0, choices = 0, hash = 0, outside = 0;
  bool started = false, diverged = false, complete = true;  // complete: all steps were written down
  std::vector<Step> steps;
  std::vector<SeenFiber> fibers;
};

struct Settings {
  std::vector<std::string> command;
  std::string program;  // the file that runs
  std::string expect, check, trace, directory = ".";
  bool same_output = false, has_expect = false, all = false, quiet = false, json = false;
  int status = 0;
  double hang = 10;
  std::string first_output;  // for --same-output
};

[[noreturn]] void wrong(const char* command, const std::string& what) {
  fprintf(stderr, "fiberthread %s: %s\n", command, what.c_str());
  exit(kWrongUsage);
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

std::string name_of(Strategy s) {
  switch (s) {
    case Strategy::Script: return "script";
    case Strategy::Random: return "random";
    case Strategy::Pct: return "pct";
    case Strategy::Pos: return "pos";
  }
  return "";
}

std::string words_of(const Verdict& v) {
  switch (v.kind) {
    case Kind::Passed: return "passed";
    case Kind::Signal: return "signal " + std::to_string(v.detail) + " (" + strsignal(v.detail) + ")";
    case Kind::Status: return "exit status " + std::to_string(v.detail);
    case Kind::Output: return "another output";
    case Kind::Check: return "the check failed";
    case Kind::Deadlock: return "deadlock";
    case Kind::Livelock: return "livelock";
    case Kind::Hang: return "hang";
  }
  return "";
}
constexpr const char* kKinds[] = {"passed", "signal", "status", "output", "check", "deadlock", "livelock", "hang"};

uint64_t draw(uint64_t seed, uint64_t number) {
  uint64_t x = seed + number * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

std::string contents(int fd) {
  std::string text;
  char part[65536];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
  return text;
}

bool file_contents(const std::string& path, std::string& text) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  text = contents(fd);
  close(fd);
  return true;
}

// Tells one program's file from another: FNV-1a.
uint64_t fingerprint(const std::string& path) {
  std::string text;
  uint64_t h = 0xcbf29ce484222325;
  if (file_contents(path, text))
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

std::string quoted(const std::string& s) {
  std::string q;
  for (unsigned char c : s) {
    char code[8];
    snprintf(code, sizeof code, c > ' ' && c < 127 && c != '\\' ? "%c" : "\\%03o", c);
    q += code;
  }
  return q;
}
std::string unquoted(const std::string& q) {
  std::string s;
  for (size_t i = 0; i < q.size(); i++) {
    if (q[i] == '\\' && i + 3 < q.size()) {
      s += static_cast<char>(strtol(q.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      s += q[i];
    }
  }
  return s;
}

// One run of the program at a time, with memory and files that are used again.
class Job {
 public:
  Job() {
    shared_fd_ = memfd_create("fiberthread-explored", MFD_CLOEXEC);
    out_ = memfd_create("stdout", MFD_CLOEXEC);
    err_ = memfd_create("stderr", MFD_CLOEXEC);
    void* p = MAP_FAILED;
    if (shared_fd_ >= 0 && out_ >= 0 && err_ >= 0 && ftruncate(shared_fd_, sizeof(Explored)) == 0)
      p = mmap(nullptr, sizeof(Explored), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd_, 0);
    if (p == MAP_FAILED) wrong("explore", std::string("no memory to share with the program: ") + strerror(errno));
    shared_ = static_cast<Explored*>(p);
  }
  Job(const Job&) = delete;

  pid_t pid() const { return pid_; }
  void keep_open() const { fcntl(shared_fd_, F_SETFD, 0); }  // beyond an exec of the launcher
  pid_t claimed() const { return static_cast<pid_t>(shared_->claimed.load(std::memory_order_relaxed)); }
  const Plan& plan() const { return plan_; }

  void prepare(const Plan& plan, bool reports) {
    plan_ = plan;
    memset(static_cast<void*>(shared_), 0, offsetof(Explored, script));
    shared_->order = {kExploreVersion, plan.strategy, plan.seed, plan.depth, static_cast<uint32_t>(plan.script.size()),
                      plan.expected,   kMostPoints,   reports};
    for (size_t i = 0; i < plan.script.size(); i++) shared_->script[i] = plan.script[i];
  }

  // `traced`: to be shown to the user.
  void start(const Settings& s, const Plan& plan, bool traced = false, bool reports = false) {
    prepare(plan, traced || reports);
    for (int fd : {out_, err_})
      if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0) wrong("explore", strerror(errno));
    hung_ = false;
    seen_points_ = 0;
    moved_at_ = now();
    pid_ = fork();
    if (pid_ < 0) wrong("explore", std::string("no process to be had: ") + strerror(errno));
    if (pid_ == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // its group is its own, so Ctrl-C does not reach it
      int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, 0);
      dup2(out_, 1);
      dup2(err_, 2);
      if (traced) ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      exec(s);
    }
    setpgid(pid_, pid_);
  }

  // Becomes the program.
  [[noreturn]] void exec(const Settings& s) const {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    personality(ADDR_NO_RANDOMIZE);
    set_environment(s);
    std::vector<char*> argv;
    for (auto& a : s.command) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(s.program.c_str(), argv.data());
    fprintf(stderr, "%s\n", strerror(errno));
    _exit(kCannotRun);
  }

  void set_environment(const Settings& s) const {
    std::string library = find_library(), preload = library;
    preload.insert(preload.rfind(".so"), "-explore");
    preload += ":" + library;
    if (const char* others = getenv("LD_PRELOAD"); others && *others) preload += std::string(":") + others;
    setenv("LD_PRELOAD", preload.c_str(), 1);
    // The launcher's descriptor: the program gets none, and finds it again after an exec().
    setenv("FIBERTHREAD_EXPLORE", ("/proc/" + std::to_string(launcher_) + "/fd/" + std::to_string(shared_fd_)).c_str(), 1);
    setenv("FIBERTHREAD_DEADLOCK", "abort", 1);
    if (!s.trace.empty()) setenv("FIBERTHREAD_TRACE", s.trace.c_str(), 1);
  }

  // Kills the process if it has made no progress for too long.
  void look(const Settings& s) {
    uint64_t points = shared_->points.load(std::memory_order_relaxed);
    if (points != seen_points_) moved_at_ = now();
    seen_points_ = points;
    if (now() - moved_at_ < s.hang) return;
    hung_ = true;
    kill(-pid_, SIGKILL);
  }

  Outcome finish(const Settings& s, int status) {
    kill(-pid_, SIGKILL);  // children that it has left
    pid_ = 0;
    Outcome o;
    o.points = shared_->points;
    o.choices = shared_->choices;
    o.hash = shared_->hash;
    o.outside = shared_->outside;
    o.diverged = shared_->diverged;
    o.started = shared_->claimed;
    uint32_t n = shared_->steps < kMostSteps ? shared_->steps : kMostSteps;
    o.complete = n < kMostSteps;
    o.steps.assign(shared_->made, shared_->made + n);
    o.fibers.assign(shared_->seen, shared_->seen + (shared_->fibers < kMostSeen ? shared_->fibers : kMostSeen));
    o.out = contents(out_);
    o.err = contents(err_);
    Verdict& v = o.verdict;
    if (shared_->end == ExploredEnd::Deadlock) v = {Kind::Deadlock, 0};
    else if (shared_->end == ExploredEnd::Livelock) v = {Kind::Livelock, 0};
    else if (hung_) v = {Kind::Hang, 0};
    else if (WIFSIGNALED(status)) v = {Kind::Signal, WTERMSIG(status)};
    else if (WEXITSTATUS(status) != s.status) v = {Kind::Status, WEXITSTATUS(status)};
    else if ((s.has_expect && o.out != s.expect) || (s.same_output && o.out != s.first_output)) v = {Kind::Output, 0};
    else if (!s.check.empty() && !check_passes(s.check)) v = {Kind::Check, 0};
    return o;
  }

  // Runs it to its end.
  Outcome run(const Settings& s, const Plan& plan, bool reports = false) {
    start(s, plan, false, reports);
    return finish(s, wait(s));
  }

  int wait(const Settings& s) {
    int status;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      timespec tenth{0, 100'000'000};
      sigtimedwait(&child, nullptr, &tenth);
      look(s);
    }
    return status;
  }

 private:
  bool check_passes(const std::string& command) const {
    lseek(out_, 0, SEEK_SET);
    pid_t pid = fork();
    if (pid == 0) {
      dup2(out_, 0);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(kNotFound);
    }
    int status = 1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0;
  }

  pid_t launcher_ = getpid();
  int shared_fd_, out_, err_;
  Explored* shared_;
  Plan plan_;
  pid_t pid_ = 0;
  bool hung_ = false;
  uint64_t seen_points_ = 0;
  double moved_at_ = 0;
};

Plan scripted(const std::vector<Step>& steps) {
  Plan p;
  p.script = steps;
  return p;
}

// Leaves out what the failure does not need: delta debugging (Zeller, Hildebrandt, IEEE TSE 28(2), 2002) on the steps.
Outcome shrink(Job& job, const Settings& s, Outcome best, double until) {
  for (size_t part = (best.steps.size() + 1) / 2; part && now() < until;) {
    size_t size = best.steps.size();
    bool smaller = false;
    for (size_t at = 0; at < size && now() < until && !smaller; at += part) {
      std::vector<Step> rest(best.steps.begin(), best.steps.begin() + static_cast<ptrdiff_t>(at));
      rest.insert(rest.end(), best.steps.begin() + static_cast<ptrdiff_t>(at + part < size ? at + part : size), best.steps.end());
      Outcome o = job.run(s, scripted(rest));
      if (o.verdict == best.verdict && o.complete && o.steps.size() < size) {
        best = o;
        smaller = true;
      }
    }
    size_t half = (best.steps.size() + 1) / 2;
    if (!smaller) part /= 2;
    else if (part > half) part = half;
  }
  return best;
}

std::string fiber_name(const Outcome& o, uint32_t number, const std::string& start) {
  if (number == kClock) return "the clock";
  bool seen = number < o.fibers.size();
  if (seen && o.fibers[number].main) return "main";
  std::string text = "thread " + std::to_string(number);
  if (seen && *o.fibers[number].name) text += " '" + std::string(o.fibers[number].name) + "'";
  if (!start.empty() && start != "??") text += " (" + start + ")";
  return text;
}

// Runs the schedule once more, and stops at the process's end. Returns a line for each step that says what was switched, and where. `failure`
// gets what the process has written.
std::vector<std::string> tell(Job& job, const Settings& s, Outcome& failure) {
  std::vector<std::string> lines;
  job.start(s, scripted(failure.steps), true);
  int status = 0, last = 0;
  pid_t program = job.pid(), pid = program;
  Target target;
  Symbols symbols(target, false);
  bool known = false, first = true;
  double until = now() + s.hang + 5;
  // Returns true if a traced process has stopped: `pid`, with `status`.
  auto wait_for_stop = [&] {
    for (;;) {
      pid = waitpid(-program, &status, WNOHANG | __WALL);  // its group, since other jobs run too
      if (pid > 0 && WIFSTOPPED(status)) return true;
      if (pid == program) last = status;
      if (pid < 0) return false;
      if (pid > 0) continue;
      if (now() > until) kill(-program, SIGKILL);
      poll(nullptr, 0, 1);
    }
  };
  for (; wait_for_stop(); first = false) {
    if (first)
      ptrace(PTRACE_SETOPTIONS, pid, nullptr,
             PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    int event = status >> 16;
    bool ends = event == PTRACE_EVENT_EXIT && pid == job.claimed();
    if (ends) {
      known = target.open(std::to_string(pid).c_str()).empty() && symbols.open().empty();
      auto function = [&](uint32_t number) -> std::string {
        if (!known || number >= failure.fibers.size() || !failure.fibers[number].start) return "";
        std::string place = symbols.place({failure.fibers[number].start, true});
        return place.substr(0, place.find(' '));
      };
      for (auto& step : failure.steps) {
        std::string line;
        if (step.from == kNobody) {
          line = "where all that ran so far wait: " + fiber_name(failure, step.to, function(step.to));
        } else {
          line = fiber_name(failure, step.from, function(step.from)) + " is stopped " + (step.after ? "after " : "before ") + step.call +
                 "(";
          std::string variable = known && step.object ? symbols.variable(step.object) : "";
          line += (variable.empty() ? "" : "&" + variable) + ")";
          if (known && step.pc) line += " in " + symbols.place({step.pc, false});
          line += ": " + fiber_name(failure, step.to, function(step.to));
        }
        lines.push_back(line + (step.to == kClock ? " jumps to the next timer" : " goes on"));
      }
    }
    int sig = event || first || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);  // a new process begins with a stop
    ptrace(PTRACE_CONT, pid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(sig)));
  }
  Outcome o = job.finish(s, last);
  failure.out = o.out;
  failure.err = o.err;
  return lines;
}

bool write_file(const std::string& path, const Settings& s, const Outcome& o, const Plan& plan, const std::vector<std::string>& lines) {
  FILE* f = fopen(path.c_str(), "we");
  if (!f) return false;
  fprintf(f, "%s\n", kFirstLine);
  char here[PATH_MAX];
  fprintf(f, "program %s %016lx\n", quoted(s.program).c_str(), static_cast<unsigned long>(fingerprint(s.program)));
  if (getcwd(here, sizeof here)) fprintf(f, "directory %s\n", quoted(here).c_str());
  for (auto& a : s.command) fprintf(f, "argument %s\n", quoted(a).c_str());
  fprintf(f, "failure %s %d\n", kKinds[static_cast<int>(o.verdict.kind)], o.verdict.detail);
  fprintf(f, "wanted %d\n", s.status);
  if (s.has_expect) fprintf(f, "expect %s\n", quoted(s.expect).c_str());
  if (s.same_output) fprintf(f, "expect %s\n", quoted(s.first_output).c_str());
  if (!s.check.empty()) fprintf(f, "check %s\n", quoted(s.check).c_str());
  fprintf(f, "found %s %lu\n", name_of(plan.strategy).c_str(), static_cast<unsigned long>(plan.seed));
  fprintf(f, "schedule %lu %016lx\n", static_cast<unsigned long>(o.choices), static_cast<unsigned long>(o.hash));
  for (size_t i = 0; i < o.steps.size(); i++) {
    if (i < lines.size()) fprintf(f, "# %s\n", lines[i].c_str());
    fprintf(f, "step %lu %u\n", static_cast<unsigned long>(o.steps[i].choice), o.steps[i].index);
  }
  return fclose(f) == 0;
}

struct Recorded {
  std::vector<Step> steps;
  Verdict verdict;
  uint64_t fingerprint = 0, choices = 0, hash = 0;
  std::string directory;
};

void read_recorded(const char* path, Settings& s, Recorded& r) {
  std::string text;
  if (!file_contents(path, text)) wrong("replay", std::string(path) + ": " + strerror(errno));
  size_t at = 0, line_number = 0;
  bool scheduled = false;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line_number++ == 0) {
      if (line == kFirstLine) continue;
      bool other = !line.compare(0, 20, kFirstLine, 20);
      wrong("replay", std::string(path) + (other ? " is of another version of fiberthread" : " is no file of fiberthread explore"));
    }
    if (line.empty() || line[0] == '#') continue;
    size_t space = line.find(' ');
    std::string word = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    unsigned long a = 0, b = 0;
    char kind[32];
    int detail;
    bool ok = true;
    if (word == "program") {
      size_t last = rest.rfind(' ');
      ok = last != std::string::npos;
      if (ok) {
        s.program = unquoted(rest.substr(0, last));
        r.fingerprint = strtoul(rest.c_str() + last + 1, nullptr, 16);
      }
    } else if (word == "directory") {
      r.directory = unquoted(rest);
    } else if (word == "argument") {
      s.command.push_back(unquoted(rest));
    } else if (word == "failure") {
      ok = sscanf(rest.c_str(), "%31s %d", kind, &detail) == 2;
      for (size_t i = 0; ok && i < sizeof kKinds / sizeof *kKinds; i++)
        if (!strcmp(kind, kKinds[i])) r.verdict = {static_cast<Kind>(i), detail};
    } else if (word == "wanted") {
      s.status = atoi(rest.c_str());
    } else if (word == "expect") {
      s.expect = unquoted(rest);
      s.has_expect = true;
    } else if (word == "check") {
      s.check = unquoted(rest);
    } else if (word == "schedule") {
      ok = scheduled = sscanf(rest.c_str(), "%lu %lx", &a, &b) == 2;
      r.choices = a;
      r.hash = b;
    } else if (word == "step") {
      ok = sscanf(rest.c_str(), "%lu %lu", &a, &b) == 2 && r.steps.size() < kMostSteps;
      Step step{};
      step.choice = a;
      step.index = static_cast<uint32_t>(b);
      r.steps.push_back(step);
    } else {
      ok = word == "found";
    }
    if (!ok) wrong("replay", std::string(path) + ": line " + std::to_string(line_number) + " is not understood");
  }
  if (s.command.empty() || !scheduled || !r.verdict.failed()) wrong("replay", std::string(path) + " is cut off");
}

void check_program(const char* command, Settings& s) {
  std::string why;
  if (s.program.empty()) s.program = find_program(s.command[0], &why);
  if (s.program.empty() || access(s.program.c_str(), X_OK) != 0)
    wrong(command, s.command[0] + ": " + (why.empty() ? strerror(ENOENT) : why));
  if (why = why_nothing_is_preloaded(s.program); !why.empty()) wrong(command, s.command[0] + ": it cannot be explored: " + why);
}

std::string tail(const std::string& text, size_t lines) {
  size_t at = text.size();
  if (at && text[at - 1] == '\n') at--;
  while (at && lines) {
    size_t before = text.rfind('\n', at - 1);
    if (before == std::string::npos) {
      at = 0;
      break;
    }
    at = before;
    lines--;
  }
  return text.substr(at ? at + 1 : 0);
}

void print_indented(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    printf("    %s\n", text.substr(at, end - at).c_str());
    at = end + 1;
  }
}

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
      "      --strategy NAME      random, pct or pos (all in turn)\n"
      "      --depth D            ordering constraints that pct looks for (3)\n"
      "      --seed S             where the numbers begin (1)\n"
      "      --status N           the exit status of a run that has not failed (0)\n"
      "      --expect FILE        the output of a run that has not failed\n"
      "      --same-output        each run has the output of the first one\n"
      "      --check COMMAND      a shell command that gets the output and fails if that is wrong\n"
      "      --hang T             without a scheduling point for so long, a run hangs (10s)\n"
      "  -j, --jobs J             runs at a time (as many as CPUs)\n"
      "      --all                go on after a failure, and collect those that differ\n"
      "      --out DIRECTORY      where the files for replay go (.)\n"
      "      --json               one line of JSON on stdout, and nothing else\n"
      "  -q, --quiet              no progress\n"
      "  -h, --help               this text\n",
      to);
}

std::string escaped(const std::string& text) {
  std::string e;
  for (unsigned char c : text) {
    char code[8];
    if (c == '"' || c == '\\') e += '\\';
    if (c < ' ') {
      snprintf(code, sizeof code, "\\u%04x", c);
      e += code;
    } else {
      e += static_cast<char>(c);
    }
  }
  return e;
}

void block_child_signal() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
}

class Exploration {
 public:
  Exploration(Settings& s, uint64_t seed, uint32_t depth, Strategy only, uint64_t most, double time, unsigned jobs)
      : s_(s), seed_(seed), depth_(depth), only_(only), most_(most), until_(now() + time), jobs_(jobs) {}

  int run() {
    block_child_signal();
    begun_ = now();
    jobs_in_use_.resize(jobs_);
    for (auto& j : jobs_in_use_) j = new Job;
    // The first schedule makes no switch that it need not make. It tells how long schedules are.
    Job& first = *jobs_in_use_[0];
    Settings plain = s_;
    plain.same_output = false;
    Outcome o = first.run(plain, scripted({}));
    if (s_.same_output) s_.first_output = o.out;
    expected_ = o.points;
    count(o);
    if (!o.started && !o.verdict.failed() && !s_.json)
      fputs("fiberthread explore: the program has made no thread, so there is nothing to choose\n", stderr);
    bool any = o.verdict.failed();
    if (any) report(first, scripted({}), o);
    if (o.started && (!any || s_.all)) any |= explore_on();
    end(any);
    return any ? kFound : kNoneFound;
  }

 private:
  Plan next() {
    constexpr Strategy kInTurn[] = {Strategy::Pos, Strategy::Pct, Strategy::Random};
    Plan p;
    p.number = ++begun_runs_;
    p.strategy = only_ != Strategy::Script ? only_ : kInTurn[p.number % 3];
    p.seed = draw(seed_, p.number);
    p.expected = expected_;
    p.depth = p.strategy == Strategy::Pct && only_ == Strategy::Script ? 2 + static_cast<uint32_t>(p.number / 3 % 4) : depth_;
    return p;
  }
  bool more() const { return begun_runs_ + 1 < most_ && now() < until_; }

  bool explore_on() {
    bool any = false, stop = false;
    unsigned running = 0;
    for (auto* j : jobs_in_use_)
      if (more()) {
        j->start(s_, next());
        running++;
      }
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (running) {
      bool ended = false;
      for (auto* j : jobs_in_use_) {
        int status;
        if (!j->pid() || waitpid(j->pid(), &status, WNOHANG) != j->pid()) continue;
        ended = true;
        running--;
        Plan plan = j->plan();
        Outcome o = j->finish(s_, status);
        count(o);
        if (o.verdict.failed() && !stop) {
          any = true;
          stop = !s_.all;
          report(*j, plan, o);
        }
        if (!stop && more()) {
          j->start(s_, next());
          running++;
        }
      }
      if (ended) continue;
      timespec tenth{0, 100'000'000};
      sigtimedwait(&child, nullptr, &tenth);
      for (auto* j : jobs_in_use_)
        if (j->pid()) j->look(s_);
      progress();
    }
    return any;
  }

  void count(const Outcome& o) {
    runs_++;
    distinct_.insert(o.hash);
    if (o.points > longest_) longest_ = o.points;
  }

  void progress() {
    if (s_.quiet || s_.json || !isatty(2) || now() - shown_ < 0.5) return;
    shown_ = now();
    fprintf(stderr, "\r%lu schedules, %lu distinct, %.0f/s, %lu failures ", static_cast<unsigned long>(runs_),
            static_cast<unsigned long>(distinct_.size()), static_cast<double>(runs_) / (now() - begun_),
            static_cast<unsigned long>(files_.size()));
  }

  void report(Job& job, const Plan& plan, const Outcome& found) {
    for (auto& v : known_)
      if (v == found.verdict) return;
    known_.push_back(found.verdict);
    uint64_t at = plan.number + 1;
    size_t steps_before = found.steps.size();
    Outcome best = found;
    bool again = false;
    if (found.complete) {
      Outcome o = job.run(s_, scripted(found.steps));
      again = o.verdict == found.verdict && o.hash == found.hash;
      if (again) best = shrink(job, s_, o, now() + 20);
    }
    std::vector<std::string> lines = tell(job, s_, best);
    std::string base = s_.command[0].substr(s_.command[0].rfind('/') + 1), path;
    for (int i = 1; path.empty() || access(path.c_str(), F_OK) == 0; i++)
      path = s_.directory + "/" + base + "-" + std::to_string(i) + ".explored";
    bool written = write_file(path, s_, best, plan, lines);
    files_.push_back(written ? path : "");
    if (s_.json) return;
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    printf("failed: %s, in schedule %lu (%s, seed %lu)\n", words_of(best.verdict).c_str(), static_cast<unsigned long>(at),
           name_of(plan.strategy).c_str(), static_cast<unsigned long>(plan.seed));
    if (!best.err.empty()) {
      printf("  stderr ends with\n");
      print_indented(tail(best.err, 12));
    }
    if (best.verdict.kind == Kind::Output || best.verdict.kind == Kind::Check) {
      printf("  stdout ends with\n");
      print_indented(tail(best.out, 8));
    }
    if (lines.empty()) {
      printf("  no switch is needed: the program fails if each thread runs until it waits\n");
    } else {
      printf("  what it needs, %zu of %zu unusual choices:\n", lines.size(), steps_before);
      for (size_t i = 0; i < lines.size() && i < 40; i++) printf("  %3zu. %s\n", i + 1, lines[i].c_str());
      if (lines.size() > 40) printf("       and %zu more, in the file\n", lines.size() - 40);
    }
    if (!again)
      printf("  a second run of this schedule was not the same%s\n", best.outside ? ": events from outside came at other times" : "");
    if (written) printf("  replay it: fiberthread replay %s\n", path.c_str());
    else printf("  %s: %s\n", path.c_str(), strerror(errno));
    fflush(stdout);
  }

  void end(bool any) {
    double time = now() - begun_;
    if (s_.json) {
      printf("{\"failed\":%s,\"schedules\":%lu,\"distinct\":%lu,\"seconds\":%.3f,\"longest\":%lu,\"failures\":[", any ? "true" : "false",
             static_cast<unsigned long>(runs_), static_cast<unsigned long>(distinct_.size()), time, static_cast<unsigned long>(longest_));
      for (size_t i = 0; i < known_.size(); i++)
        printf("%s{\"kind\":\"%s\",\"detail\":%d,\"file\":\"%s\"}", i ? "," : "", kKinds[static_cast<int>(known_[i].kind)],
               known_[i].detail, escaped(files_[i]).c_str());
      puts("]}");
      return;
    }
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    printf("%lu schedules in %.1f s (%.0f a second), %lu distinct, at most %lu points each: %s\n", static_cast<unsigned long>(runs_), time,
           static_cast<double>(runs_) / time, static_cast<unsigned long>(distinct_.size()), static_cast<unsigned long>(longest_),
           any ? std::to_string(known_.size()).append(known_.size() == 1 ? " failure" : " failures").c_str() : "no failure");
  }

  Settings& s_;
  uint64_t seed_, begun_runs_ = 0;
  uint32_t depth_;
  Strategy only_;
  uint64_t most_;
  double until_, begun_ = 0, shown_ = 0;
  unsigned jobs_;
  std::vector<Job*> jobs_in_use_;
  uint64_t expected_ = 0, runs_ = 0, longest_ = 0;
  std::set<uint64_t> distinct_;
  std::vector<Verdict> known_;
  std::vector<std::string> files_;
};

}  // namespace

int main_explore(int argc, char** argv) {
  enum { kStrategy = 256, kDepth, kSeed, kStatus, kExpect, kSame, kCheck, kHang, kAll, kOut, kJson };
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
                                   {"jobs", required_argument, nullptr, 'j'},
                                   {"all", no_argument, nullptr, kAll},
                                   {"out", required_argument, nullptr, kOut},
                                   {"json", no_argument, nullptr, kJson},
                                   {"quiet", no_argument, nullptr, 'q'},
                                   {"help", no_argument, nullptr, 'h'},
                                   {}};
  Settings s;
  uint64_t seed = 1, most = UINT64_MAX;
  uint32_t depth = 3;
  double time = -1;
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  uint64_t jobs = cpus > 0 ? static_cast<uint64_t>(cpus) : 1;
  Strategy only = Strategy::Script;
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
      case 't':
        if (!seconds(optarg, time)) wrong("explore", std::string("--time: ") + optarg + " is no time, such as 30s, 10m or 1h");
        break;
      case 'n': most = number("schedules", 1, UINT64_MAX / 2); break;
      case 'j': jobs = number("jobs", 1, 1024); break;
      case 'q': s.quiet = true; break;
      case 'h': explore_usage(stdout); return 0;
      case kStrategy:
        only = Strategy::Script;
        for (Strategy t : {Strategy::Random, Strategy::Pct, Strategy::Pos})
          if (name_of(t) == optarg) only = t;
        if (only == Strategy::Script) wrong("explore", std::string("--strategy: ") + optarg + " is none of random, pct and pos");
        break;
      case kDepth: depth = static_cast<uint32_t>(number("depth", 1, 64)); break;
      case kSeed: seed = number("seed", 0, UINT64_MAX); break;
      case kStatus: s.status = static_cast<int>(number("status", 0, 255)); break;
      case kExpect:
        if (!file_contents(optarg, s.expect)) wrong("explore", std::string("--expect: ") + optarg + ": " + strerror(errno));
        s.has_expect = true;
        break;
      case kSame: s.same_output = true; break;
      case kCheck: s.check = optarg; break;
      case kHang:
        if (!seconds(optarg, s.hang) || s.hang <= 0) wrong("explore", std::string("--hang: ") + optarg + " is no time, such as 30s");
        break;
      case kAll: s.all = true; break;
      case kOut: s.directory = optarg; break;
      case kJson: s.json = true; break;
      default: return kWrongUsage;
    }
  }
  if (optind >= argc) wrong("explore", "there is no program to explore; see fiberthread explore --help");
  if (time < 0) time = most == UINT64_MAX ? 60 : 1e9;
  s.command.assign(argv + optind, argv + argc);
  check_program("explore", s);
  if (access(s.directory.c_str(), W_OK) != 0) wrong("explore", "--out: " + s.directory + ": " + strerror(errno));
  return Exploration(s, seed, depth, only, most, time, static_cast<unsigned>(jobs)).run();
}

int main_replay(int argc, char** argv) {
  enum { kGdb = 256, kTrace };
  static const option options[] = {
      {"gdb", no_argument, nullptr, kGdb}, {"trace", required_argument, nullptr, kTrace}, {"help", no_argument, nullptr, 'h'}, {}};
  bool gdb = false;
  Settings s;
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
  Job job;
  if (gdb) {
    job.prepare(scripted(r.steps), true);
    job.keep_open();
    std::vector<std::string> command = {"gdb", "-iex", "set disable-randomization on", "-iex", "set startup-with-shell off"};
    // In a build directory gdb's script stands beside the library.
    std::string library = find_library();
    command.insert(command.end(), {"-iex", "add-auto-load-safe-path " + library.substr(0, library.rfind('/'))});
    std::string before = getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "";
    job.set_environment(s);
    command.insert(command.end(), {"-ex", std::string("set environment LD_PRELOAD ") + getenv("LD_PRELOAD"), "--args", s.program});
    command.insert(command.end(), s.command.begin() + 1, s.command.end());
    setenv("LD_PRELOAD", before.c_str(), 1);
    if (before.empty()) unsetenv("LD_PRELOAD");
    std::vector<char*> words;
    for (auto& w : command) words.push_back(w.data());
    words.push_back(nullptr);
    execvp("gdb", words.data());
    wrong("replay", std::string("gdb: ") + strerror(errno));
  }
  block_child_signal();
  Outcome o = job.run(s, scripted(r.steps), true);
  fwrite(o.out.data(), 1, o.out.size(), stdout);
  fflush(stdout);
  fwrite(o.err.data(), 1, o.err.size(), stderr);
  if (o.hash != r.hash || o.diverged) {
    printf("goes another way: %s, after %lu choices instead of %lu%s\n", words_of(o.verdict).c_str(), static_cast<unsigned long>(o.choices),
           static_cast<unsigned long>(r.choices), o.outside ? "; events from outside came at other times" : "");
    return kWrongUsage;
  }
  printf("%s\n", o.verdict == r.verdict ? ("fails again: " + words_of(o.verdict)).c_str()
                                        : ("does not fail again: " + words_of(o.verdict)).c_str());
  return o.verdict == r.verdict ? kFound : kNoneFound;
}
