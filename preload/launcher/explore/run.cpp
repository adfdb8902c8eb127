// SPDX-License-Identifier: MIT
#include "preload/launcher/explore/run.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

namespace fiberthread {

namespace {
constexpr uint64_t kMostPoints = 1'000'000;

// Tells races apart by their two places.
int race_id(const Race& r) {
  uint64_t a = std::min(r.first.pc, r.second.pc), b = std::max(r.first.pc, r.second.pc);
  return static_cast<int>((a * 0x9E3779B97F4A7C15u ^ b * 0xBF58476D1CE4E5B9u) >> 33);
}

// Returns true if a sanitizer or the checked build says on stderr that something is wrong.
bool reports_trouble(const std::string& err) {
  for (const char* words : {"ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: MemorySanitizer", ": runtime error: "})
    if (err.find(words) != std::string::npos) return true;
  return false;
}
}  // namespace

void wrong(const char* name, const std::string& message) {
  fprintf(stderr, "fiberthread %s: %s\n", name, message.c_str());
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
    case Kind::Report: return "a sanitizer's report";
    case Kind::Deadlock: return "deadlock";
    case Kind::Livelock: return "livelock";
    case Kind::Hang: return "hang";
    case Kind::DataRace: return "data race";
  }
  return "";
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

Plan scripted(const std::vector<Step>& steps) {
  Plan p;
  p.script = steps;
  return p;
}

void check_program(const char* name, RunSettings& s) {
  std::string why;
  if (s.program.empty()) s.program = find_program(s.command[0], &why);
  if (s.program.empty() || access(s.program.c_str(), X_OK) != 0) wrong(name, s.command[0] + ": " + (why.empty() ? strerror(ENOENT) : why));
  ThreadSanitizer sanitizer = sanitizer_of(s.program);
  if (sanitizer == ThreadSanitizer::Linked)
    wrong(name, s.command[0] +
                    ": it cannot be explored: ThreadSanitizer is linked into it. Link it with -shared-libsan, or without -static-libtsan");
  s.instrumented = sanitizer == ThreadSanitizer::Shared;
  if (why = why_nothing_is_preloaded(s.program); !why.empty()) wrong(name, s.command[0] + ": it cannot be explored: " + why);
  // The loader goes on without a library that it does not find, and then there would be one schedule only.
  for (const char* part : {"libfiberthread-explore.so", "libfiberthread-explore-memory.so", "fiberthread-tsan"})
    if (std::string path = find_explore(part); path.find('/') != std::string::npos && access(path.c_str(), R_OK) != 0)
      wrong(name, path + ": " + strerror(errno) + "; it comes with the library, which must be installed anew");
}

Job::Job(bool anew) : launcher_(getpid()), anew_(anew) {
  shared_fd_ = memfd_create("fiberthread-explored", MFD_CLOEXEC);
  out_ = memfd_create("stdout", MFD_CLOEXEC);
  err_ = memfd_create("stderr", MFD_CLOEXEC);
  struct stat out, err;
  void* p = MAP_FAILED;
  if (shared_fd_ >= 0 && fstat(out_, &out) == 0 && fstat(err_, &err) == 0 && ftruncate(shared_fd_, sizeof(Explored)) == 0)
    p = mmap(nullptr, sizeof(Explored), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd_, 0);
  if (p == MAP_FAILED) wrong("explore", std::string("no memory to share with the program: ") + strerror(errno));
  shared_ = static_cast<Explored*>(p);
  shared_->server.launcher = launcher_;
  shared_->server.out = out.st_ino;
  shared_->server.err = err.st_ino;
}

void Job::keep_open() const { fcntl(shared_fd_, F_SETFD, 0); }

void Job::prepare(const RunSettings& s, const Plan& plan, bool reports) {
  plan_ = plan;
  memset(static_cast<void*>(&shared_->order), 0, offsetof(Explored, script) - offsetof(Explored, order));
  shared_->order = {kExploreVersion, plan.strategy, plan.seed, plan.depth, static_cast<uint32_t>(plan.script.size()),
                    plan.expected,   kMostPoints,   reports,   plan.loose, plan.log,
                    s.memory,        true,          s.timers};
  for (size_t i = 0; i < plan.script.size(); i++) shared_->script[i] = plan.script[i];
}

void Job::start(const RunSettings& s, const Plan& plan, bool traced, bool reports) {
  bool served = serves();
  prepare(s, plan, traced || reports);
  shared_->order.sysmon = traced || needs_sysmon_;
  if (!served) shared_->server.out_before = shared_->server.err_before = 0;
  for (auto [fd, before] : {std::pair(out_, shared_->server.out_before), {err_, shared_->server.err_before}})
    if (ftruncate(fd, static_cast<off_t>(before)) != 0 || lseek(fd, static_cast<off_t>(before), SEEK_SET) < 0)
      wrong("explore", strerror(errno));
  hung_ = false;
  running_ = true;
  reports_ = reports;
  seen_points_ = 0;
  moved_at_ = now();
  if (served) {
    shared_->server.wanted.store(++runs_, std::memory_order_release);
    syscall(SYS_futex, &shared_->server.wanted, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  } else {
    begin(s, traced);
  }
}

void Job::begin(const RunSettings& s, bool traced) {
  shared_->server.root = shared_->server.child = 0;
  shared_->server.serves.store(0, std::memory_order_relaxed);
  shared_->server.ended.store(0, std::memory_order_relaxed);
  runs_ = 1;
  shared_->server.wanted.store(1, std::memory_order_relaxed);
  root_ = fork();
  if (root_ < 0) wrong("explore", std::string("no process to be had: ") + strerror(errno));
  if (root_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher_) _exit(kCannotRun);
    if (!anew_ && !traced) shared_->server.root = getpid();
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, 0);
    dup2(out_, 1);
    dup2(err_, 2);
    syscall(SYS_close_range, 3, ~0u, 0);  // else the numbers of the program's own descriptors would depend on who calls us
    if (traced) ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    exec(s);
  }
  setpgid(root_, root_);
}

// Becomes the program.
void Job::exec(const RunSettings& s) const {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  set_environment(s);
  std::vector<char*> argv;
  for (auto& a : s.command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execv(s.program.c_str(), argv.data());
  fprintf(stderr, "%s\n", strerror(errno));
  _exit(kCannotRun);
}

void Job::set_environment(const RunSettings& s) const {
  std::string preload = find_explore("libfiberthread-explore.so");
  if (s.instrumented) preload += ":" + find_explore("libfiberthread-explore-memory.so");
  preload += ":" + find_library();
  // A program that was built with -fsanitize=thread finds our library by the names of its run-time there.
  std::string path = find_explore("fiberthread-tsan");
  if (const char* others = getenv("LD_LIBRARY_PATH"); others && *others) path += std::string(":") + others;
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  if (const char* others = getenv("LD_PRELOAD"); others && *others) preload += std::string(":") + others;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  // The launcher's descriptor: the program gets none, and finds it again after an exec().
  setenv("FIBERTHREAD_EXPLORE", ("/proc/" + std::to_string(launcher_) + "/fd/" + std::to_string(shared_fd_)).c_str(), 1);
  setenv("FIBERTHREAD_DEADLOCK", "abort", 1);
  if (!s.trace.empty()) setenv("FIBERTHREAD_TRACE", s.trace.c_str(), 1);
}

void Job::kill_run() {
  pid_t group = serves() ? shared_->server.child : root_;
  if (group > 1) kill(-group, SIGKILL);  // 0 before the first fork, and -1 would be all processes
}

void Job::stop_server() {
  if (!root_) return;
  kill(-root_, SIGKILL);
  while (waitpid(root_, nullptr, 0) < 0 && errno == EINTR) {
  }
  root_ = 0;
}

// Returns true if the run has been asleep in one call for a while, and has no sysmon, which would let other threads run meanwhile.
bool Job::sleeps_unseen() const {
  constexpr double kWhile = 0.03;
  std::string stat;
  if (again_ || needs_sysmon_ || !claimed() || shared_->has_sysmon.load(std::memory_order_relaxed) || now() - moved_at_ < kWhile ||
      !file_contents("/proc/" + std::to_string(claimed()) + "/stat", stat))
    return false;
  return stat.compare(stat.rfind(')') + 1, 2, " S") == 0;
}

bool Job::has_ended(const RunSettings& s, int& status) {
  bool served = serves(), ended = served && shared_->server.ended.load(std::memory_order_acquire) == runs_;
  if (ended) {
    status = shared_->server.status;
  } else if (waitpid(root_, &status, WNOHANG) == root_) {
    if (served) {
      // The server itself has ended, killed by its own run perhaps. So this program is not for it.
      kill_run();
      anew_ = again_ = true;
    }
    if (served || again_) root_ = 0;
    ended = true;
  }
  if (ended && again_) {
    again_ = false;
    start(s, Plan(plan_), false, reports_);
    return false;
  }
  if (ended) return true;
  uint64_t points = shared_->points.load(std::memory_order_relaxed);
  if (points != seen_points_) moved_at_ = now();
  seen_points_ = points;
  if (now() - moved_at_ >= s.hang) {
    hung_ = true;
    kill_run();
  } else if (sleeps_unseen()) {
    needs_sysmon_ = again_ = true;
    kill_run();
  }
  return false;
}

std::vector<Step> Job::steps() const { return {shared_->made, shared_->made + std::min(shared_->steps, kMostSteps)}; }
std::vector<SeenFiber> Job::fibers() const { return {shared_->seen, shared_->seen + std::min(shared_->fibers, kMostSeen)}; }

Outcome Job::finish(const RunSettings& s, int status) {
  Outcome o;
  kill_run();  // children that it has left
  o.forked = serves();
  if (!o.forked) root_ = 0;
  running_ = false;
  o.points = shared_->points;
  o.choices = shared_->choices;
  o.hash = shared_->hash;
  o.outside = shared_->outside;
  o.diverged = shared_->diverged;
  o.started = shared_->claimed.load(std::memory_order_relaxed) != 0;
  o.complete = shared_->steps < kMostSteps;
  o.steps = steps();
  o.fibers = fibers();
  if (plan_.log) o.offered.assign(shared_->offered, shared_->offered + (o.choices < kMostOffered ? o.choices : kMostOffered));
  o.out = contents(out_);
  o.err = contents(err_);
  Verdict& v = o.verdict;
  o.race = shared_->race;
  bool fixed = personality(0xffffffff) & ADDR_NO_RANDOMIZE;
  if (shared_->end == ExploredEnd::Race) v = {Kind::DataRace, fixed ? race_id(o.race) : 0};
  else if (shared_->end == ExploredEnd::Deadlock) v = {Kind::Deadlock};
  else if (shared_->end == ExploredEnd::Livelock) v = {Kind::Livelock};
  else if (hung_) v = {Kind::Hang};
  else if (WIFSIGNALED(status)) v = {Kind::Signal, WTERMSIG(status)};
  else if (WEXITSTATUS(status) != s.status) v = {Kind::Status, WEXITSTATUS(status)};
  else if (reports_trouble(o.err)) v = {Kind::Report};
  else if ((s.has_expect && o.out != s.expect) || (s.same_output && o.out != s.first_output)) v = {Kind::Output};
  else if (!s.check.empty() && !check_passes(s.check)) v = {Kind::Check};
  if (!fixed || v.kind == Kind::DataRace) return o;  // else the place would be another one in each run
  if (v.kind == Kind::Deadlock)
    for (auto& f : o.fibers) v.place = v.place * 31 + f.pc;
  else if (shared_->last < o.fibers.size()) v.place = o.fibers[shared_->last].pc;
  return o;
}

Outcome Job::run(const RunSettings& s, const Plan& plan, bool reports) {
  start(s, plan, false, reports);
  int status;
  while (!has_ended(s, status)) wait_for_children();
  return finish(s, status);
}

bool Job::check_passes(const std::string& command) const {
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

namespace {
sigset_t child_signal() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  return child;
}
}  // namespace

void Job::block_child_signal() {
  sigset_t child = child_signal();
  sigprocmask(SIG_BLOCK, &child, nullptr);
}

bool Job::fix_addresses() {
  int now = personality(0xffffffff);
  return now >= 0 && personality(static_cast<unsigned>(now) | ADDR_NO_RANDOMIZE) >= 0;
}

void wait_for_children() {
  sigset_t child = child_signal();
  timespec most{0, 20'000'000};
  sigtimedwait(&child, nullptr, &most);
}

}  // namespace fiberthread
