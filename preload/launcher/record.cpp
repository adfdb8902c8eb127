// SPDX-License-Identifier: MIT
// fiberthread record PID|CORE: the last switches of all workers, which the library's flight recorder keeps, as a trace for Perfetto.
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>

#include "preload/launcher/launcher.h"
#include "preload/launcher/target.h"

namespace fiberthread {
namespace {

const char kUsage[] =
    "usage: fiberthread record [-o FILE] PID|CORE\n"
    "Writes what the workers of a process, or of a core, did last as a trace for https://ui.perfetto.dev: each worker a track, each run "
    "of\n"
    "a fiber a slice, with what it waited for afterwards.\n"
    "  -o, --output FILE  default: fiberthread-PID.json\n"
    "  -h, --help         this text\n";

struct Slice {
  uint64_t record, begin_ns, end_ns;
  uint32_t why;
};

// The rings' times have 48 bits. Returns the difference of two of them.
int64_t between(uint64_t from, uint64_t to) { return static_cast<int64_t>((to - from) << 16) >> 16; }

// Reads a worker's ring. Times that it lacks are set between their neighbours.
std::vector<Slice> read_ring(const Target& target, uint64_t worker, uint64_t now_ns) {
  struct Record {
    uint64_t fiber, why;
  };
  struct Clocks {
    uint64_t cycles, ns, cycles_per_us;
  };
  std::vector<Slice> slices;
  auto ring = target.get<uint64_t>(worker + target.layout("worker.flight_ring"));
  uint64_t size = uint64_t{target.get<uint32_t>(worker + target.layout("worker.flight_mask"))} + 1;
  uint64_t next = target.get<uint32_t>(worker + target.layout("worker.flight_next"));
  auto clocks = target.get<Clocks>(target.layout("flight.clocks"));
  if (!ring || size > 1 << 26 || !clocks.cycles_per_us) return slices;
  std::vector<Record> raw(size);
  if (!target.read(ring, raw.data(), size * sizeof(Record))) return slices;
  // The library's clock at `now_ns`. It is not exact, but the same for all workers.
  uint64_t now = clocks.cycles +
                 static_cast<uint64_t>(static_cast<double>(now_ns - clocks.ns) * static_cast<double>(clocks.cycles_per_us) / 1000);
  // The worker may have gone on meanwhile: its newest records are in place of the oldest, and one may be half written.
  uint64_t after = target.get<uint32_t>(worker + target.layout("worker.flight_next")),
           gone = target.is_core() ? 0 : uint64_t{static_cast<uint32_t>(after - next)} + 1;
  uint64_t n = std::min(next, size);
  if (next + gone > size) n = gone < size ? std::min(n, size - gone) : 0;
  std::vector<Record> in_order;
  for (uint64_t i = next - n; i != next; i++) in_order.push_back(raw[i % size]);
  std::vector<int64_t> at(n);  // cycles from `now`, once `known`
  std::vector<char> known(n);
  for (uint64_t i = 0; i < n; i++) {
    uint64_t t = (in_order[i].fiber & 0xffff) << 32 | (in_order[i].why & 0xffffffff);
    known[i] = t != 0;
    at[i] = t ? between(now, t) : 0;
  }
  // Before the first time that is known, nothing is.
  uint64_t first = static_cast<uint64_t>(std::find(known.begin(), known.end(), 1) - known.begin());
  if (first == n) return slices;
  auto fill = [&](uint64_t from, uint64_t to,
                  int64_t end) {  // the times after `from`, which is known, and before `to`, which comes at `end`
    for (uint64_t j = from + 1; j < to; j++)
      at[j] = at[from] + (end - at[from]) * static_cast<int64_t>(j - from) / static_cast<int64_t>(to - from);
  };
  uint64_t last = first;
  for (uint64_t i = first + 1; i < n; i++)
    if (known[i]) {
      fill(last, i, at[i]);
      last = i;
    }
  fill(last, n, std::max<int64_t>(at[last], 0));
  auto ns = [&](int64_t cycles) {
    return static_cast<uint64_t>(static_cast<double>(now_ns) +
                                 static_cast<double>(cycles) * 1000 / static_cast<double>(clocks.cycles_per_us));
  };
  for (uint64_t i = first; i < n; i++) {
    uint64_t record = in_order[i].fiber >> 16;
    bool newest = i + 1 == n;
    // The time of a core is that of sysmon's last look, and the worker may have gone on since.
    if (record)
      slices.push_back({record, ns(at[i]), newest ? std::max(now_ns, ns(at[i])) : ns(std::max(at[i], at[i + 1])),
                        newest ? ~0u : static_cast<uint32_t>(in_order[i + 1].why >> 32)});
  }
  return slices;
}

std::string quoted(const std::string& s) {
  std::string out;
  for (char c : s) out += c >= ' ' && c < 127 && c != '"' && c != '\\' ? c : '?';
  return out;
}

}  // namespace

std::string write_record(const Target& target, const std::string& path, std::string& summary) {
  uint64_t now = target.now();
  std::map<uint64_t, std::string> names;
  target.each_fiber([&](const FiberSeen& f) {
    std::string name = (f.main ? "main " : "fiber ") + std::to_string(f.id);
    if (*f.name) name += std::string(" ") + f.name;
    names[f.record] = quoted(name);
  });
  struct Track {
    int tid;
    std::vector<Slice> slices;
  };
  std::vector<Track> tracks;
  std::map<uint64_t, uint64_t> ended;  // when a fiber with this record last ended: what was before is not the present one's
  uint64_t first = now, switches = 0;
  for (auto& w : target.workers()) {
    Track t{w.tid, read_ring(target, w.address, now)};
    for (auto& s : t.slices) {
      if (s.why == 3) ended[s.record] = std::max(ended[s.record], s.end_ns);
      first = std::min(first, s.begin_ns);
    }
    switches += t.slices.size();
    if (!t.slices.empty()) tracks.push_back(std::move(t));
  }
  FILE* f = fopen(path.c_str(), "we");
  if (!f) return path + ": " + strerror(errno);
  fprintf(f,
          "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
          "\"fiberthread\"}}",
          target.pid());
  std::map<uint32_t, std::string> reasons;
  for (auto& t : tracks) {
    fprintf(f, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"worker %d\"}}", target.pid(), t.tid,
            t.tid);
    for (auto& s : t.slices) {
      auto name = names.find(s.record);
      auto end = ended.find(s.record);
      bool gone = name == names.end() || (end != ended.end() && s.begin_ns < end->second);
      std::string& why = reasons[s.why];
      if (why.empty())
        why = s.why == 0     ? "nothing"
              : s.why == 1   ? "yielded"
              : s.why == 2   ? "preempted"
              : s.why == 3   ? "ended"
              : s.why == ~0u ? "still running"
                             : "waits for " + quoted(target.library_text(s.why));
      fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\",\"args\":{\"then\":\"%s\"}}",
              target.pid(), t.tid, static_cast<double>(s.begin_ns - first) / 1000, static_cast<double>(s.end_ns - s.begin_ns) / 1000,
              gone ? "a thread that has ended" : name->second.c_str(), why.c_str());
    }
  }
  fputs("\n]}\n", f);
  if (fflush(f) != 0 || ferror(f)) {
    std::string why = path + ": " + strerror(errno);
    fclose(f);
    return why;
  }
  fclose(f);
  char text[200];
  snprintf(text, sizeof text, "%llu runs of fibers on %zu workers, in the last %.3f s: ", static_cast<unsigned long long>(switches),
           tracks.size(), static_cast<double>(now - first) / 1e9);
  summary = text + path;
  return "";
}

}  // namespace fiberthread

using namespace fiberthread;

int main_record(int argc, char** argv) {
  const option options[] = {{"output", required_argument, nullptr, 'o'}, {"help", no_argument, nullptr, 'h'}, {}};
  std::string path;
  for (int c; (c = getopt_long(argc, argv, "o:h", options, nullptr)) != -1;) switch (c) {
      case 'o': path = optarg; break;
      case 'h': fputs(kUsage, stdout); return 0;
      default: fputs(kUsage, stderr); return kWrongUsage;
    }
  if (optind + 1 != argc) {
    fputs(kUsage, stderr);
    return kWrongUsage;
  }
  Target target;
  std::string summary, why = target.open(argv[optind]);
  if (path.empty()) path = "fiberthread-" + std::to_string(target.pid()) + ".json";
  if (why.empty()) {
    // Stopped for some milliseconds, so that the rings of all workers end at the same time. Without that right, they are read as they are.
    std::vector<KernelThread> threads;
    target.stop(threads);
    why = write_record(target, path, summary);
    target.resume();
  }
  if (!why.empty()) {
    fprintf(stderr, "fiberthread record: %s\n", why.c_str());
    return 1;
  }
  puts(summary.c_str());
  return 0;
}
