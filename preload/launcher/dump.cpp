// SPDX-License-Identifier: MIT
// fiberthread dump PID|core: every fiber with its stack.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "preload/launcher/launcher.h"
#include "preload/launcher/stacks.h"

namespace fiberthread {
namespace {

const char kUsage[] =
    "usage: fiberthread dump [options] PID|core\n"
    "Shows all fibers of a process, or of a core, with their stacks.\n"
    "      --full       show the library's own frames too, and stacks of any depth\n"
    "      --no-stacks  one line for each fiber\n"
    "      --fiber IDS  only these fibers: numbers divided by commas\n"
    "      --most N     no more than N fibers\n"
    "  -h, --help       this text\n";

constexpr unsigned kFrames = 10'000;                              // limit of frames unwound for one stack
constexpr size_t kFirst = 48, kLast = 16;                         // frames shown of a longer stack
constexpr size_t kCopy = 64 * 1024, kCopies = size_t{512} << 20;  // limits of copied bytes: of one stack, of all stacks

struct Shown {
  FiberSeen fiber;
  int tid = 0;  // of the kernel thread that runs the fiber
  bool frozen = false;
  Registers registers;
  std::vector<char> copied;
  std::vector<StackFrame> frames;
};

struct DumpOptions {
  bool full = false, stacks = true, report = false, sample = false;
  std::string record;            // a file for the flight recorder's trace, or empty
  std::vector<uint64_t> fibers;  // empty: all
  size_t most = ~size_t{0};
};

// Copies the used part of the fiber's stack. The fiber may go on and overwrite it once the process is resumed.
void copy_stack(const Target& target, Shown& s, size_t size) {
  uint64_t sp = s.registers.value[kStackPointer];
  if (sp < s.fiber.stack_low || sp >= s.fiber.stack_high) return;
  s.copied.resize(std::min<uint64_t>(size, s.fiber.stack_high - sp));
  s.copied.resize(target.read_some(sp, s.copied.data(), s.copied.size()));
  s.copied.shrink_to_fit();
}

void unwind(Stacks& stacks, Shown& s) {
  s.frames = stacks.unwind(s.registers, s.copied, kFrames);
  s.copied = {};
}

void put_stack(Output& out, Stacks& stacks, Shown& s, const DumpOptions& o) {
  bool more = s.frames.size() == kFrames;
  if (!o.full) stacks.trim(s.frames, !more);
  size_t n = s.frames.size();
  bool cut = !o.full && n > kFirst + kLast;
  for (size_t i = 0; i < n; i++) {
    if (cut && i == kFirst) {
      out.begin() << "    … " << n - kFirst - kLast << " more frames\n";
      i = n - kLast;
    }
    for (auto& place : stacks.places(s.frames[i]))
      out.begin() << "    #" << i << " " << reinterpret_cast<const void*>(s.frames[i].pc) << " " << place.c_str() << "\n";
  }
  if (more) out.begin() << "    … and so on\n";
}

bool belongs(uint64_t address, const FiberSeen& f) { return address > f.stack_low && address <= f.stack_high; }

// Fills in each fiber's registers and, where they are wanted, its stack. A kernel thread that has the thread pointer of a fiber runs it,
// whatever the fiber's state says. The exception is a thread on the stack of another fiber: it was stopped in a switch, between the two
// changes.
void take_registers(Target& target, Stacks* stacks, const std::vector<KernelThread>& threads, const std::vector<WorkerSeen>& workers,
                    std::vector<Shown>& all, bool full) {
  std::vector<const FiberSeen*> by_address;
  for (auto& s : all) by_address.push_back(&s.fiber);
  std::sort(by_address.begin(), by_address.end(), [](auto* a, auto* b) { return a->stack_low < b->stack_low; });
  auto owner_of = [&](uint64_t sp) -> const FiberSeen* {
    auto s = std::upper_bound(by_address.begin(), by_address.end(), sp, [](uint64_t a, const FiberSeen* f) { return a <= f->stack_low; });
    return s != by_address.begin() && belongs(sp, **--s) ? *s : nullptr;
  };
  std::map<uint64_t, const KernelThread*> by_pointer;
  for (auto& t : threads) by_pointer[t.thread_pointer] = &t;
  size_t copies = 0;
  for (auto& s : all) {
    FiberSeen& f = s.fiber;
    for (auto& w : workers)
      if (f.state == State::Running && w.running == f.record) s.tid = w.tid;
    if (f.kernel) s.tid = target.pid();
    const KernelThread* on = nullptr;
    if (auto t = by_pointer.find(f.tp); f.tp && t != by_pointer.end()) on = t->second;
    for (auto& t : threads)
      if (f.kernel && f.main && t.tid == target.pid()) on = &t;
    if (on && !f.kernel) {
      const FiberSeen* whose = owner_of(on->registers.value[kStackPointer]);
      if (whose && whose != &f) on = nullptr;
    }
    if (on) {
      s.registers = on->registers;
      s.tid = on->tid;
      if (stacks) unwind(*stacks, s);
    } else if (f.sp && (f.state != State::Running || !threads.empty())) {
      s.registers = target.saved_registers(f);
      s.frozen = true;
      if (stacks && !target.is_core() && copies < kCopies) {
        copy_stack(target, s, full ? kCopies : kCopy);
        copies += s.copied.size();
      }
    }
  }
}

void put_shown(Output& out, Target& target, Stacks* stacks, Shown& s, const DumpOptions& o, uint64_t now) {
  FiberSeen& f = s.fiber;
  FiberView v;
  v.who = {f.id, f.name, f.main};
  v.start = reinterpret_cast<const void*>(f.start);
  v.state = f.state;
  v.bound = f.bound;
  v.tid = static_cast<uint64_t>(s.tid);
  v.preempted = f.preempted;
  FiberSeen owner;
  std::string file, object;
  if (f.state == State::Parked) {
    v.wait = target.wait_of(f, owner);
    v.waited_ns = now > f.since ? now - f.since : 0;
    v.at_least = target.is_core();
    v.file = (file = target.text(f.file)).c_str();
    v.line = static_cast<uint64_t>(f.line);
  }
  put_fiber(out, v);
  if (!stacks) return;
  if (v.wait.object && !v.wait.for_its_end && !(object = stacks->variable(reinterpret_cast<uint64_t>(v.wait.object))).empty())
    out.begin() << "    " << v.wait.object << " is " << object.c_str() << "\n";
  if (s.frozen) {
    if (target.is_core()) copy_stack(target, s, o.full ? kCopies : kCopy);
    unwind(*stacks, s);
  }
  put_stack(out, *stacks, s, o);
  s.frames = {};
}

// The stall watch's sample: a fiber as it was when it kept others waiting.
int put_sample(Output& out, Target& target, Stacks& stacks, const DumpOptions& o) {
  Shown s;
  s.registers = target.sample(s.fiber, s.copied);
  out.begin();
  put_name(out, {s.fiber.id, s.fiber.name, s.fiber.main});
  out << " was here:\n";
  unwind(stacks, s);
  put_stack(out, stacks, s, o);
  return 0;
}

// Writes the trace, and a line that says so. %p in the name is the process's id.
void put_record(Output& out, const Target& target, std::string path) {
  for (size_t at; (at = path.find("%p")) != std::string::npos;) path.replace(at, 2, std::to_string(target.pid()));
  std::string summary, why = write_record(target, path, summary);
  out.begin() << (why.empty() ? summary : "no trace: " + why).c_str() << "\n";
}

int dump(const char* name, const DumpOptions& o) {
  auto fail = [&](const Trouble& t) {
    fprintf(stderr, "fiberthread: %s\n", t.c_str());
    return 1;
  };
  Target target;
  Trouble t = target.open(name);
  if (!t.empty()) return o.report ? 1 : fail(t);
  Stacks found(target, o.full), *stacks = o.stacks ? &found : nullptr;
  std::string remark;
  if (stacks) {
    t = stacks->open();
    remark = t.empty() ? stacks->lacking() : "no stacks: " + t;
    if (!t.empty()) stacks = nullptr;
  }
  if (o.sample && !stacks) return 1;  // there is nothing else to be said
  Output out(o.report ? 2 : 1, o.report ? "fiberthread: " : "", o.report ? 500 : -1);
  if (o.sample) {
    int status = put_sample(out, target, *stacks, o);
    if (!o.record.empty()) put_record(out, target, o.record);
    return status;
  }
  std::vector<KernelThread> threads;
  Trouble not_stopped = target.stop(threads);
  uint64_t now = target.now();
  std::vector<Shown> all;
  size_t count[5] = {};
  target.each_fiber([&](const FiberSeen& f) {
    count[static_cast<int>(f.state)]++;
    if (f.since > now && target.is_core()) now = f.since;
    if (!o.fibers.empty() && std::find(o.fibers.begin(), o.fibers.end(), f.id) == o.fibers.end()) return;
    all.push_back({});
    all.back().fiber = f;
  });
  if (!o.fibers.empty() && all.empty()) return fail("there is no fiber " + std::to_string(o.fibers[0]));
  std::sort(all.begin(), all.end(),
            [](const Shown& a, const Shown& b) { return a.fiber.main != b.fiber.main ? a.fiber.main : a.fiber.id < b.fiber.id; });
  size_t more = all.size() > o.most ? all.size() - o.most : 0;
  if (more) all.resize(o.most);
  std::vector<WorkerSeen> workers = target.workers();
  take_registers(target, stacks, threads, workers, all, o.full);
  if (!o.record.empty()) put_record(out, target, o.record);
  target.resume();

  if (!o.report) {
    size_t sum = 0, alive = 0;
    for (size_t n : count) sum += n;
    for (auto& w : workers) alive += w.alive;
    out << (target.is_core() ? "core of process " : "process ") << static_cast<uint64_t>(target.pid()) << ": " << sum
        << " fibers: " << count[static_cast<int>(State::Running)] << " running, "
        << count[static_cast<int>(State::Queued)] + count[static_cast<int>(State::Created)] << " ready, "
        << count[static_cast<int>(State::Parked)] << " parked; " << alive << " workers\n";
  }
  if (!not_stopped.empty()) out.begin() << "no stacks of running fibers: " << not_stopped.c_str() << "\n";
  if (!remark.empty()) out.begin() << remark.c_str() << "\n";
  for (auto& s : all) put_shown(out, target, stacks, s, o, now);
  if (more) out.begin() << "… and " << more << " more\n";
  return 0;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

int main_dump(int argc, char** argv) {
  enum { kFull = 256, kNoStacks, kFiber, kMost, kReport, kSample, kRecord };
  const option options[] = {{"full", no_argument, nullptr, kFull},
                            {"no-stacks", no_argument, nullptr, kNoStacks},
                            {"fiber", required_argument, nullptr, kFiber},
                            {"most", required_argument, nullptr, kMost},
                            {"report", no_argument, nullptr, kReport},
                            {"sample", no_argument, nullptr, kSample},
                            {"record", required_argument, nullptr, kRecord},
                            {"help", no_argument, nullptr, 'h'},
                            {}};
  DumpOptions o;
  for (int c; (c = getopt_long(argc, argv, "h", options, nullptr)) != -1;) {
    char* end = nullptr;
    switch (c) {
      case kFull: o.full = true; break;
      case kNoStacks: o.stacks = false; break;
      case kReport: o.report = true; break;  // the library passes these for its own reports
      case kSample: o.sample = true; break;
      case kRecord: o.record = optarg; break;
      case kFiber:
        for (char* at = optarg; at; at = end != optarg && *end == ',' ? end + 1 : nullptr) {
          o.fibers.push_back(strtoul(at, &end, 10));
          if (end == at) end = optarg;  // no number
        }
        break;
      case kMost: o.most = strtoul(optarg, &end, 10); break;
      case 'h': fputs(kUsage, stdout); return 0;
      default: fputs(kUsage, stderr); return 2;
    }
    if (end && (*end || end == optarg)) {
      fprintf(stderr, "fiberthread: --%s takes a number, not \"%s\"\n", c == kFiber ? "fiber" : "most", optarg);
      return 2;
    }
  }
  if (optind + 1 != argc) {
    fputs(kUsage, stderr);
    return 2;
  }
  return dump(argv[optind], o);
}
