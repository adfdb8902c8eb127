// SPDX-License-Identifier: MIT
// One run of an explored program: what is asked of it, and what came of it.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "preload/launcher/launcher.h"
#include "sched/explore/shared.h"

namespace fiberthread {

struct Plan {
  Strategy strategy = Strategy::Script;
  uint64_t seed = 0, expected = 0;
  uint32_t depth = 3;
  uint32_t preemptions = 0;  // of a bounded search's schedule
  bool loose = false;        // as Explored::Order::loose
  bool log = false;          // all that is offered is wanted
  std::vector<Step> script;
};

enum class Kind { Passed, Signal, Status, Output, Check, Report, Deadlock, Livelock, Hang, DataRace };
// As they stand in a failure's file.
constexpr const char* kKinds[] = {"passed", "signal", "status", "output", "check", "report", "deadlock", "livelock", "hang", "race"};
struct Verdict {
  Kind kind = Kind::Passed;
  int detail = 0;
  uint64_t place = 0;  // the call that came last before it; of a deadlock, of all threads
  bool same_kind(const Verdict& v) const { return kind == v.kind && detail == v.detail; }
  bool operator==(const Verdict& v) const { return same_kind(v) && place == v.place; }
  bool failed() const { return kind != Kind::Passed; }
};

struct Outcome {
  Verdict verdict;
  std::string out, err;
  uint64_t points = 0, choices = 0, hash = 0, outside = 0;
  bool started = false, diverged = false, forked = false;
  bool complete = true;  // all steps were written down
  std::vector<Step> steps;
  std::vector<uint16_t> offered;  // if Plan::log asks for it, see Explored::offered
  std::vector<SeenFiber> fibers;
  Race race = {};  // if the verdict is one
};

struct RunSettings {
  std::vector<std::string> command;
  std::string program;  // the file that runs
  std::string expect, check, trace, directory = ".";
  bool same_output = false, has_expect = false, all = false, quiet = false, json = false, anew = false;
  int status = 0;
  double hang = 10;
  uint64_t timers = 100'000'000;  // ns, as in Explored::Order
  uint32_t memory = 0;            // kMemoryPoints and its kin
  bool instrumented = false;      // the program was built with -fsanitize=thread
  std::string first_output;       // for --same-output
};

// Prints the message after "fiberthread NAME: ", and ends with the status of wrong use.
[[noreturn]] void wrong(const char* name, const std::string& message);
double now();  // seconds of a clock that only goes on
std::string name_of(Strategy s);
std::string words_of(const Verdict& v);
std::string contents(int fd);
bool file_contents(const std::string& path, std::string& text);  // false, with errno, if it cannot be read
Plan scripted(const std::vector<Step>& steps);
// Finds the program's file, or ends with a message.
void check_program(const char* name, RunSettings& s);

// Runs the program, once at a time, with memory and files that are used again. Job waits for SIGCHLD, which must be blocked.
//
// Where the program allows it, its first run stays at its first thread and is forked for each schedule, so that the loader and all that the
// program does before are done once (preload/explore/server.cpp).
class Job {
 public:
  // With `anew`, each run is an exec.
  explicit Job(bool anew);
  Job(const Job&) = delete;
  ~Job() { stop_server(); }

  static void block_child_signal();
  // Lets all addresses be the same in each run. False, with errno, where that is refused, as in many containers.
  static bool fix_addresses();
  bool running() const { return running_; }
  pid_t pid() const { return root_; }
  pid_t claimed() const { return static_cast<pid_t>(shared_->claimed.load(std::memory_order_relaxed)); }
  const Plan& plan() const { return plan_; }
  // What the run has written down so far.
  std::vector<Step> steps() const;
  std::vector<SeenFiber> fibers() const;
  Race race() const { return shared_->race; }

  // Begins a run. `traced`: the process stops for its tracer. `reports`: to be shown to the user.
  void start(const RunSettings& s, const Plan& plan, bool traced = false, bool reports = false);
  // Returns true if the run has ended, with its status as waitpid() gives it. Kills the process if it has made no progress for too long.
  bool has_ended(const RunSettings& s, int& status);
  Outcome finish(const RunSettings& s, int status);
  // All of them: runs it to its end.
  Outcome run(const RunSettings& s, const Plan& plan, bool reports = false);

  // For a debugger, which starts the program itself, or is given a process that becomes it by exec().
  void prepare(const RunSettings& s, const Plan& plan, bool reports);
  void set_environment(const RunSettings& s) const;
  [[noreturn]] void exec(const RunSettings& s) const;
  void keep_open() const;  // beyond an exec of the launcher

 private:
  void begin(const RunSettings& s, bool traced);
  bool serves() const { return root_ && shared_->server.serves.load(std::memory_order_acquire); }
  void stop_server();
  void kill_run();
  bool sleeps_unseen() const;
  bool check_passes(const std::string& command) const;

  pid_t launcher_;
  bool anew_;
  int shared_fd_, out_, err_;
  Explored* shared_;
  Plan plan_;
  bool running_ = false, hung_ = false, reports_ = false;
  bool needs_sysmon_ = false;  // a fiber of some run was asleep in a call that only sysmon would have seen
  bool again_ = false;         // so that run is being ended, and begins anew
  pid_t root_ = 0;             // the process that was started: the program, or its server
  uint32_t runs_ = 0;          // of this server
  uint64_t seen_points_ = 0;
  double moved_at_ = 0;
};

// Sleeps until a run may have ended, 20 ms at most.
void wait_for_children();

}  // namespace fiberthread
