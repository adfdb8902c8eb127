// SPDX-License-Identifier: MIT
#include "preload/launcher/explore/search.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "preload/launcher/explore/bounded.h"
#include "preload/launcher/explore/failure.h"
#include "preload/launcher/explore/result.h"

namespace fiberthread {
namespace {

constexpr int kNoneFound = 0, kFound = 1;

uint64_t draw(uint64_t seed, uint64_t number) {
  uint64_t x = seed + number * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

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
    return result_.failures.empty() ? kNoneFound : kFound;
  }

 private:
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
        result_.all_done = search_.bounded && !stop_ && begun_runs_ + 1 < search_.most && now() < until_ && bounded_.complete();
        return;
      }
      if (!ended) wait_for_children();
      progress();
    }
  }

  void count(const Plan& plan, const Outcome& o) {
    result_.runs++;
    result_.forked += o.forked;
    distinct_.insert(o.hash);
    result_.fingerprint += o.hash;
    result_.longest = std::max(result_.longest, o.points);
    if (search_.bounded) bounded_.add(plan, o);
  }

  void progress() {
    if (s_.quiet || s_.json || !isatty(2) || now() - shown_ < 0.5) return;
    shown_ = now();
    fprintf(stderr, "\r%lu schedules, %lu distinct, %.0f/s, %lu failures ", static_cast<unsigned long>(result_.runs),
            static_cast<unsigned long>(distinct_.size()), static_cast<double>(result_.runs) / (now() - begun_),
            static_cast<unsigned long>(result_.failures.size()));
  }

  void report(Job& job, const Plan& plan, const Outcome& found) {
    stop_ = !s_.all;
    for (auto& f : result_.failures)
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
    std::string text = "failed: " + words_of(best.verdict) + ", in schedule " + std::to_string(result_.runs);
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
    result_.failures.push_back({found.verdict, told.place, written ? path : "", text});
    if (s_.json) return;
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    fputs(text.c_str(), stdout);
    fflush(stdout);
  }

  void end() {
    result_.distinct = distinct_.size();
    result_.seconds = now() - begun_;
    if (!search_.junit.empty() && !write_junit(result_, search_.junit, s_.command))
      fprintf(stderr, "fiberthread explore: --junit: %s: %s\n", search_.junit.c_str(), strerror(errno));
    if (s_.json) return put_json(result_);
    if (!s_.quiet && isatty(2)) fputs("\r\033[K", stderr);
    put_summary(result_);
    if (result_.all_done)
      printf("these are all schedules with at most %u %s\n", search_.depth, search_.depth == 1 ? "preemption" : "preemptions");
  }

  RunSettings& s_;
  Search search_;
  double begun_, ends_, until_, shown_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
  Bounded bounded_;
  uint64_t begun_runs_ = 0, expected_ = 0;
  bool stop_ = false;
  std::set<uint64_t> distinct_;
  Result result_;
};

}  // namespace

int explore(RunSettings& s, const Search& search) { return Exploration(s, search).run(); }

}  // namespace fiberthread
