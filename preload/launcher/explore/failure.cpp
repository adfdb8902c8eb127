// SPDX-License-Identifier: MIT
#include "preload/launcher/explore/failure.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/launcher/stacks.h"
#include "preload/launcher/target.h"

namespace fiberthread {

namespace {
constexpr char kFirstLine[] = "fiberthread-explore 4";

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

std::string fiber_name(const std::vector<SeenFiber>& fibers, uint32_t number, const std::string& start) {
  if (number == kClock) return "the clock";
  bool seen = number < fibers.size();
  if (seen && fibers[number].main) return "main";
  std::string text = "thread " + std::to_string(number);
  if (seen && *fibers[number].name) text += " '" + std::string(fibers[number].name) + "'";
  if (!start.empty() && start != "??") text += " (" + start + ")";
  return text;
}

}  // namespace

namespace {
Outcome shrink(Job& job, const RunSettings& s, Outcome best, double until, bool loose) {
  for (size_t part = (best.steps.size() + 1) / 2; part && now() < until;) {
    size_t size = best.steps.size();
    bool smaller = false;
    for (size_t at = 0; at < size && now() < until && !smaller; at += part) {
      std::vector<Step> rest(best.steps.begin(), best.steps.begin() + static_cast<ptrdiff_t>(at));
      rest.insert(rest.end(), best.steps.begin() + static_cast<ptrdiff_t>(at + part < size ? at + part : size), best.steps.end());
      Plan plan = scripted(rest);
      plan.loose = loose;
      Outcome o = job.run(s, plan);
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
}  // namespace

Outcome shrink(Job& job, const RunSettings& s, Outcome best, double until) {
  bool stops = false;  // between points; a window has its number in the schedule
  for (auto& step : best.steps) stops |= step.accesses != 0;
  for (size_t before = 0; !stops && before != best.steps.size() && now() < until;) {
    before = best.steps.size();
    best = shrink(job, s, best, until, true);
  }
  return shrink(job, s, best, until, false);
}

Told tell(Job& job, const RunSettings& s, Outcome& failure) {
  Told told;
  job.start(s, scripted(failure.steps), true);
  int status = 0, last = 0;
  pid_t program = job.pid(), pid = program;
  Target target;
  Stacks stacks(target, false);
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
      wait_for_children();  // in a window each instruction is a stop
    }
  };
  for (; wait_for_stop(); first = false) {
    if (first)
      ptrace(PTRACE_SETOPTIONS, pid, nullptr,
             PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    int event = status >> 16;
    bool ends = event == PTRACE_EVENT_EXIT && pid == job.claimed();
    if (ends) {
      known = target.open(std::to_string(pid).c_str()).empty() && stacks.open().empty();
      // As this run has them: its addresses may be other ones.
      std::vector<Step> steps = job.steps();
      std::vector<SeenFiber> fibers = job.fibers();
      // An inlined function tells more than the one around it.
      auto place = [&](uint64_t pc, bool exact) { return stacks.places({pc, exact}).front(); };
      auto function = [&](uint32_t number) -> std::string {
        if (!known || number >= fibers.size() || !fibers[number].start) return "";
        const std::string& start = stacks.places({fibers[number].start, true}).back();
        return start.substr(0, start.find(' '));
      };
      if (known && failure.verdict.kind != Kind::Deadlock && failure.verdict.place) told.place = place(failure.verdict.place, false);
      auto racing = [&](const RacingAccess& a, const char* verb, const std::string& object) {
        return fiber_name(fibers, a.fiber, function(a.fiber)) + " " + verb + " " + std::to_string(a.size) +
               (a.size == 1 ? " byte" : " bytes") + object + (known ? " in " + place(a.pc, false) : "");
      };
      if (failure.verdict.kind == Kind::DataRace) {
        const Race r = job.race();
        std::string variable = known ? stacks.variable(r.first.address) : "";
        auto verb = [](const RacingAccess& a, const char* frees, const char* writes, const char* reads) {
          return a.frees ? frees : a.write ? writes : reads;
        };
        told.race = {racing(r.first,
                            verb(r.first, "has freed", r.first.atomic ? "has atomically written" : "has written",
                                 r.first.atomic ? "has atomically read" : "has read"),
                            variable.empty() ? " on the heap or a stack" : " at &" + variable),
                     racing(r.second,
                            verb(r.second, "frees", r.second.atomic ? "atomically writes" : "writes",
                                 r.second.atomic ? "atomically reads" : "reads"),
                            " there") +
                         ", and nothing orders the two"};
      }
      for (auto& step : steps) {
        std::string line;
        if (step.from == kNobody) {
          line = "where all that ran so far wait: " + fiber_name(fibers, step.to, function(step.to));
        } else {
          line = fiber_name(fibers, step.from, function(step.from)) + " is stopped ";
          std::string variable = known && step.object ? stacks.variable(step.object) : "";
          if (!variable.empty()) variable.insert(0, 1, '&');
          if (step.accesses) line += step.after ? "between reading and writing" : "before an access to";
          else line += (step.after ? "after " : "before ") + std::string(step.call);
          if (!step.accesses && !strchr(step.call, ' ')) line += "(" + variable + ")";
          else line += " " + (variable.empty() ? "memory on the heap or a stack" : variable);
          if (known && step.pc) line += " in " + place(step.pc, step.accesses != 0);
          line += ": " + fiber_name(fibers, step.to, function(step.to));
        }
        told.lines.push_back(line + (step.to == kClock ? " jumps to the next timer" : " goes on"));
      }
    }
    int sig = event || first || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);  // a new process begins with a stop
    ptrace(PTRACE_CONT, pid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(sig)));
  }
  Outcome o = job.finish(s, last);
  if (o.verdict.same_kind(failure.verdict)) {
    failure.out = o.out;
    failure.err = o.err;
  }
  return told;
}

uint64_t fingerprint(const std::string& path) {
  std::string text;
  uint64_t h = 0xcbf29ce484222325;
  if (file_contents(path, text))
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

bool write_file(const std::string& path, const RunSettings& s, const Outcome& o, const Plan& plan, const Told& told) {
  FILE* f = fopen(path.c_str(), "we");
  if (!f) return false;
  fprintf(f, "%s\n", kFirstLine);
  char here[PATH_MAX];
  fprintf(f, "program %s %016lx\n", quoted(s.program).c_str(), static_cast<unsigned long>(fingerprint(s.program)));
  if (getcwd(here, sizeof here)) fprintf(f, "directory %s\n", quoted(here).c_str());
  for (auto& a : s.command) fprintf(f, "argument %s\n", quoted(a).c_str());
  fprintf(f, "failure %s %d\n", kKinds[static_cast<int>(o.verdict.kind)], o.verdict.detail);
  for (auto& line : told.race) fprintf(f, "# %s\n", line.c_str());
  if (s.memory) fprintf(f, "memory %u\n", s.memory);
  fprintf(f, "timers %lu\n", static_cast<unsigned long>(s.timers));
  fprintf(f, "wanted %d\n", s.status);
  if (s.has_expect) fprintf(f, "expect %s\n", quoted(s.expect).c_str());
  if (s.same_output) fprintf(f, "expect %s\n", quoted(s.first_output).c_str());
  if (!s.check.empty()) fprintf(f, "check %s\n", quoted(s.check).c_str());
  fprintf(f, "found %s %lu\n", name_of(plan.strategy).c_str(), static_cast<unsigned long>(plan.seed));
  fprintf(f, "schedule %lu %016lx\n", static_cast<unsigned long>(o.choices), static_cast<unsigned long>(o.hash));
  for (size_t i = 0; i < o.steps.size(); i++) {
    if (i < told.lines.size()) fprintf(f, "# %s\n", told.lines[i].c_str());
    const Step& step = o.steps[i];
    if (step.accesses) fprintf(f, "stop %lu %u %u\n", static_cast<unsigned long>(step.window), step.accesses, step.index);
    else fprintf(f, "step %lu %u\n", static_cast<unsigned long>(step.choice), step.index);
  }
  return fclose(f) == 0;
}

void read_recorded(const char* path, RunSettings& s, Recorded& r) {
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
        if (!strcmp(kind, kKinds[i])) r.verdict = {static_cast<Kind>(i), detail, 0};
    } else if (word == "memory") {
      s.memory = static_cast<uint32_t>(atoi(rest.c_str()));
    } else if (word == "timers") {
      s.timers = strtoul(rest.c_str(), nullptr, 10);
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
    } else if (word == "stop") {
      Step step{};
      ok = sscanf(rest.c_str(), "%lu %u %u", &a, &step.accesses, &step.index) == 3 && step.accesses && r.steps.size() < kMostSteps;
      step.window = a;
      r.steps.push_back(step);
    } else {
      ok = word == "found";
    }
    if (!ok) wrong("replay", std::string(path) + ": line " + std::to_string(line_number) + " is not understood");
  }
  if (s.command.empty() || !scheduled || !r.verdict.failed()) wrong("replay", std::string(path) + " is cut off");
}

}  // namespace fiberthread
