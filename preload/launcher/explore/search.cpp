// SPDX-License-Identifier: MIT
// fiberthread explore: runs a program again and again, each time under another schedule, until one fails. sched/explore/ chooses the
// schedules; this file says which.
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <set>

#include "preload/launcher/explore/failure.h"
#include "preload/launcher/explore/run.h"
#include "sched/arch/step.h"

using namespace fiberthread;

namespace {

constexpr int kNoneFound = 0, kFound = 1;

uint64_t draw(uint64_t seed, uint64_t number) {
  uint64_t x = seed + number * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
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

std::string indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    out += "    " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

// Text of XML 1.0, which has no way to write most control characters.
std::string in_xml(const std::string& text) {
  std::string x;
  for (unsigned char c : text) {
    if (c == '<') x += "&lt;";
    else if (c == '>') x += "&gt;";
    else if (c == '&') x += "&amp;";
    else if (c == '"') x += "&quot;";
    else if (c < ' ' && c != '\n' && c != '\t') x += '?';
    else x += static_cast<char>(c);
  }
  return x;
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
      "      --strategy NAME      random, pct or pos (all in turn), or bounded: all schedules with few preemptions\n"
      "      --depth D            ordering constraints that pct looks for (3); most preemptions of bounded (2)\n"
      "      --seed S             where the numbers begin (1)\n"
      "      --status N           the exit status of a run that has not failed (0)\n"
      "      --expect FILE        the output of a run that has not failed\n"
      "      --same-output        each run has the output of the first one\n"
      "      --check COMMAND      a shell command that gets the output and fails if that is wrong\n"
      "      --budget T           how long at most with all that comes after a failure\n"
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

// All schedules with at most so many preemptions, each once. A preemption is a choice of another thread, or of time, where one could have gone
// on. A schedule is the list of its unusual choices, and those that are reached from it have one more at a later place. All with fewer
// preemptions come first: iterative context bounding (Musuvathi, Qadeer, PLDI 2007).
class Bounded {
 public:
  explicit Bounded(uint32_t bound) : bound_(bound), todo_(bound + 1) {}

  // Takes a schedule that was run, with what it offered.
  void add(const Plan& plan, const Outcome& o) {
    auto node = std::make_shared<Node>();
    node->preemptions = plan.preemptions;
    for (auto& step : plan.script) node->steps.push_back(step);
    node->from = plan.script.empty() ? 0 : plan.script.back().choice + 1;
    node->offered.assign(o.offered.begin() + static_cast<ptrdiff_t>(std::min<size_t>(node->from, o.offered.size())), o.offered.end());
    complete_ = complete_ && o.complete && o.offered.size() == o.choices;
    todo_[node->preemptions].push_back({node, 0, 0, false});
    if (node->preemptions < bound_) todo_[node->preemptions + 1].push_back({node, 0, 0, true});
  }

  // Gives the next schedule that is not yet known.
  bool next(Plan& plan) {
    for (uint32_t n = 0; n <= bound_; n++)
      while (!todo_[n].empty()) {
        Cursor& c = todo_[n].back();
        if (advance(c)) {
          plan = scripted(c.node->steps);
          Step step{};
          step.choice = c.node->from + c.at;
          step.index = c.index++;
          plan.script.push_back(step);
          plan.preemptions = n;
          plan.log = true;
          return plan.script.size() < kMostSteps;
        }
        todo_[n].pop_back();
      }
    return false;
  }
  bool complete() const { return complete_; }

 private:
  struct Node {
    uint32_t preemptions = 0;
    uint64_t from = 0;
    std::vector<Step> steps;
    std::vector<uint16_t> offered;  // from choice `from` on
  };
  struct Cursor {
    std::shared_ptr<Node> node;
    size_t at;
    uint32_t index;
    bool preempts;
  };

  // Moves to the next alternative that preempts, or to the next that does not. False if there is none.
  static bool advance(Cursor& c) {
    for (; c.at < c.node->offered.size(); c.at++, c.index = 0) {
      uint16_t offer = c.node->offered[c.at];
      uint32_t n = offer & kOfferedCount, limit = n + (offer & kOfferedTime ? 1 : 0), usual = offer & kOfferedSecond ? 1 : 0;
      for (; c.index < limit; c.index++) {
        bool preempts = c.index == n || ((offer & kOfferedStay) && c.index > 0);
        if (c.index != usual && preempts == c.preempts) return true;
      }
    }
    return false;
  }

  uint32_t bound_;
  bool complete_ = true;
  std::vector<std::vector<Cursor>> todo_;  // by preemptions
};

struct Search {
  uint64_t seed = 1, most = UINT64_MAX;
  uint32_t depth = 3;
  bool bounded = false;
  Strategy only = Strategy::Script;  // Script: all in turn
  double time = -1, budget = 1e9;
  unsigned jobs = 1;
  std::string junit;
};

class Exploration {
 public:
  Exploration(RunSettings& s, const Search& search)
      : s_(s), search_(search), begun_(now()), ends_(begun_ + search.budget), until_(std::min(begun_ + search.time, ends_)),
        bounded_(search.depth) {
    Job::block_child_signal();
    if (!Job::fix_addresses())
      fprintf(stderr, "fiberthread explore: addresses cannot be fixed here: %s. What depends on them may go another way\n",
              strerror(errno));
    for (unsigned i = 0; i < search.jobs; i++) jobs_.push_back(std::make_unique<Job>(s.anew));
  }

  int run() {
    // The first schedule makes no unusual choice. It tells how long schedules are.
    RunSettings plain = s_;
    plain.same_output = false;
    Plan first;
    first.log = search_.bounded;
    Outcome o = jobs_[0]->run(plain, first);
    if (s_.same_output) s_.first_output = o.out;
    expected_ = o.points;
    count(first, o);
    if (!o.started && !o.verdict.failed() && !s_.json)
      fputs("fiberthread explore: the program has made no thread, so there is nothing to choose\n", stderr);
    if (o.verdict.failed()) report(*jobs_[0], first, o);
    if (o.started && !stop_) explore_on();
    end();
    return failures_.empty() ? kNoneFound : kFound;
  }

 private:
  struct Failure {
    Verdict verdict;
    std::string place, file, text;
  };

  bool next(Plan& p) {
    if (stop_ || begun_runs_ + 1 >= search_.most || now() >= until_) return false;
    if (search_.bounded) {
      if (!bounded_.next(p)) return false;
      begun_runs_++;
      return true;
    }
    constexpr Strategy kInTurn[] = {Strategy::Pos, Strategy::Pct, Strategy::Random};
    p = {};
    uint64_t number = ++begun_runs_;
    p.strategy = search_.only != Strategy::Script ? search_.only : kInTurn[number % 3];
    p.seed = draw(search_.seed, number);
    p.expected = expected_;
    p.depth = p.strategy == Strategy::Pct && search_.only == Strategy::Script ? 2 + static_cast<uint32_t>(number / 3 % 4) : search_.depth;
    return true;
  }

  void explore_on() {
    for (;;) {
      bool running = false, ended = false;
      for (auto& j : jobs_) {
        Plan p;
        int status;
        if (j->running() && j->has_ended(s_, status)) {
          ended = true;
          Plan plan = j->plan();
          Outcome o = j->finish(s_, status);
          count(plan, o);
          if (o.verdict.failed() && !stop_) report(*j, plan, o);
        }
        if (!j->running() && next(p)) j->start(s_, p);
        running |= j->running();
      }
      if (!running) {
        done_ = search_.bounded && !stop_ && begun_runs_ + 1 < search_.most && now() < until_ && bounded_.complete();
        return;
      }
      if (!ended) wait_for_children();
      progress();
    }
  }

  void count(const Plan& plan, const Outcome& o) {
    runs_++;
    forked_ += o.forked;
    distinct_.insert(o.hash);
    fingerprint_ += o.hash;
    longest_ = std::max(longest_, o.points);
    if (search_.bounded) bounded_.add(plan, o);
  }

  void progress() {
    if (s_.quiet || s_.json || !isatty(2) || now() - shown_ < 0.5) return;
    shown_ = now();
    fprintf(stderr, "\r%lu schedules, %lu distinct, %.0f/s, %lu failures ", static_cast<unsigned long>(runs_),
            static_cast<unsigned long>(distinct_.size()), static_cast<double>(runs_) / (now() - begun_),
            static_cast<unsigned long>(failures_.size()));
  }

  void report(Job& job, const Plan& plan, const Outcome& found) {
    stop_ = !s_.all;
    for (auto& f : failures_)
      if (f.verdict == found.verdict) return;
    size_t steps_before = found.steps.size();
    Outcome best = found;
    // From here on by an exec, as replay does it.
    Job alone(true);
    bool again = false;
    if (found.complete) {
      Outcome o = alone.run(s_, scripted(found.steps));
      again = o.verdict == found.verdict && o.hash == found.hash;
      if (again) {
        best = shrink(job, s_, o, std::min(now() + 20, ends_));
        Outcome last = alone.run(s_, scripted(best.steps));
        if (!(last.verdict == best.verdict) || last.hash != best.hash) best = o;
      }
    }
    Told told = tell(alone, s_, best);
    std::string base = s_.command[0].substr(s_.command[0].rfind('/') + 1), path;
    for (int i = 1; path.empty() || access(path.c_str(), F_OK) == 0; i++)
      path = s_.directory + "/" + base + "-" + std::to_string(i) + ".explored";
    bool written = write_file(path, s_, best, plan, told);
    int why = errno;
    std::string text = "failed: " + words_of(best.verdict) + ", in schedule " + std::to_string(runs_);
    if (search_.bounded)
      text += " (bounded, " + std::to_string(plan.preemptions) + (plan.preemptions == 1 ? " preemption)" : " preemptions)");
    else if (plan.strategy != Strategy::Script) text += " (" + name_of(plan.strategy) + ", seed " + std::to_string(plan.seed) + ")";
    text += "\n";
    if (!told.place.empty()) text += "  after a call in " + told.place + "\n";
    if (!best.err.empty()) text += "  stderr ends with\n" + indented(tail(best.err, 12));
    for (auto& line : told.race) text += "  " + line + "\n";
    if (best.verdict.kind == Kind::Output || best.verdict.kind == Kind::Check) text += "  stdout ends with\n" + indented(tail(best.out, 8));
    if (told.lines.empty()) {
      text += "  no switch is needed: the program fails if each thread runs until it waits\n";
    } else {
      text += "  what it needs, " + std::to_string(told.lines.size()) + " of " + std::to_string(steps_before) + " unusual choices:\n";
      for (size_t i = 0; i < told.lines.size() && i < 40; i++) {
        std::string number = std::to_string(i + 1);
        text += std::string(5 - std::min<size_t>(5, number.size()), ' ') + number + ". " + told.lines[i] + "\n";
      }
      if (told.lines.size() > 40) text += "       and " + std::to_string(told.lines.size() - 40) + " more, in the file\n";
    }
    if (!again)
      text += std::string("  a second run of this schedule was not the same") +
              (best.outside ? ": events from outside came at other times\n" : "\n");
    if (written) text += "  replay it: fiberthread replay " + path + "\n";
    else text += "  " + path + ": " + strerror(why) + "\n";
    failures_.push_back({found.verdict, told.place, written ? path : "", text});
    if (s_.json) return;
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    fputs(text.c_str(), stdout);
    fflush(stdout);
  }

  void end() {
    double time = now() - begun_;
    if (!search_.junit.empty() && !write_junit(time))
      fprintf(stderr, "fiberthread explore: --junit: %s: %s\n", search_.junit.c_str(), strerror(errno));
    if (s_.json) {
      printf(
          "{\"failed\":%s,\"schedules\":%lu,\"distinct\":%lu,\"seconds\":%.3f,\"longest\":%lu,\"forked\":%lu,\"fingerprint\":\"%016lx\","
          "\"all_done\":%s,\"failures\":"
          "[",
          failures_.empty() ? "false" : "true", static_cast<unsigned long>(runs_), static_cast<unsigned long>(distinct_.size()), time,
          static_cast<unsigned long>(longest_), static_cast<unsigned long>(forked_), static_cast<unsigned long>(fingerprint_),
          done_ ? "true" : "false");
      const char* comma = "";
      for (auto& f : failures_) {
        printf("%s{\"kind\":\"%s\",\"detail\":%d,\"place\":\"%s\",\"file\":\"%s\"}", comma, kKinds[static_cast<int>(f.verdict.kind)],
               f.verdict.detail, escaped(f.place).c_str(), escaped(f.file).c_str());
        comma = ",";
      }
      puts("]}");
      return;
    }
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    printf(
        "%lu schedules in %.1f s (%.0f a second), %lu distinct, at most %lu points each: %s\n", static_cast<unsigned long>(runs_), time,
        static_cast<double>(runs_) / time, static_cast<unsigned long>(distinct_.size()), static_cast<unsigned long>(longest_),
        failures_.empty() ? "no failure" : (std::to_string(failures_.size()) + (failures_.size() == 1 ? " failure" : " failures")).c_str());
    if (done_) printf("these are all schedules with at most %u %s\n", search_.depth, search_.depth == 1 ? "preemption" : "preemptions");
  }

  // One test case for the exploration, as JUnit's readers know it.
  bool write_junit(double time) const {
    FILE* f = fopen(search_.junit.c_str(), "we");
    if (!f) return false;
    std::string name;
    for (auto& a : s_.command) name += (name.empty() ? "" : " ") + a;
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"fiberthread explore\" tests=\"1\" failures=\"%d\" errors=\"0\" "
            "time=\"%.3f\">\n  <testcase classname=\"explore\" name=\"%s\" time=\"%.3f\">\n",
            !failures_.empty(), time, in_xml(name).c_str(), time);
    if (!failures_.empty()) {
      std::string all;
      for (auto& v : failures_) all += v.text;
      fprintf(f, "    <failure message=\"%s\">%s</failure>\n", in_xml(words_of(failures_[0].verdict)).c_str(), in_xml(all).c_str());
    }
    fprintf(f, "    <system-out>%lu schedules, %lu distinct</system-out>\n  </testcase>\n</testsuite>\n", static_cast<unsigned long>(runs_),
            static_cast<unsigned long>(distinct_.size()));
    return fclose(f) == 0;
  }

  RunSettings& s_;
  Search search_;
  double begun_, ends_, until_, shown_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
  Bounded bounded_;
  uint64_t begun_runs_ = 0, expected_ = 0, runs_ = 0, forked_ = 0, longest_ = 0;
  uint64_t fingerprint_ = 0;          // of all schedules, in whatever order they ended
  bool stop_ = false, done_ = false;  // done_: all schedules within the bound have been run
  std::set<uint64_t> distinct_;
  std::vector<Failure> failures_;
};

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
    kRaces
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
  return Exploration(s, x).run();
}
