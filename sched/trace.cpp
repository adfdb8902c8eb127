#include "sched/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <new>

#include "sched/arch.h"
#include "sched/poller.h"
#include "sched/stack.h"
#include "sched/text.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {

constexpr uint32_t kOthersTrack = 100'000;         // sysmon's, and that of threads which are no workers
constexpr uint64_t kMostBytes = uint64_t{2} << 30;  // viewers take less
constexpr uint64_t kWriteEveryUs = 1'000'000;       // so that a program which is killed leaves most of it
constexpr size_t kLongestEvent = 1024;              // what one record becomes

char path[4096];
bool of_child = false;
std::atomic<int> file{-1};
enum Over : uint32_t { kOn, kEnded, kGaveUp };
std::atomic<uint32_t> over{kEnded};
std::atomic<uint64_t> bytes{0};
std::atomic<TraceBuffer*> buffers{nullptr};
std::atomic<uint32_t> tracks{0};
TraceBuffer* others = nullptr;
SpinLock others_lock;
int pid = 0;

// cycles() and the time at the start, and ns for 2^32 cycles, measured at the first writing and kept, so that all times agree.
uint64_t zero_cycles = 0, zero_ns = 0;
std::atomic<uint64_t> scale{0};

uint64_t ns_of(uint64_t at) {
  if (at <= zero_cycles) return zero_ns;
  return zero_ns + static_cast<uint64_t>(static_cast<unsigned __int128>(at - zero_cycles) * scale.load(std::memory_order_relaxed) >> 32);
}

void measure_scale() {
  if (scale.load(std::memory_order_relaxed)) return;
  uint64_t c = cycles() - zero_cycles, ns = now_ns() - zero_ns, none = 0;
  scale.compare_exchange_strong(none, c ? static_cast<uint64_t>((static_cast<unsigned __int128>(ns) << 32) / c) : 0, std::memory_order_relaxed);
}

void give_up(const char* why, long error) {
  if (over.exchange(kGaveUp, std::memory_order_relaxed) != kOn) return;
  Line line;
  line << "the trace " << path << " ends here: " << why;
  if (error) line << " (error " << static_cast<uint64_t>(-error) << ")";
}

void write_text(Text& out) {
  const char* at = out.data();
  size_t left = out.size();
  out.clear();
  if (bytes.fetch_add(left, std::memory_order_relaxed) + left > kMostBytes) return give_up("it has become too large", 0);
  while (left) {  // whole lines in one call, which the kernel appends as one
    long r = raw_syscall(SYS_write, file, arg(at), static_cast<long>(left));
    if (r == -EINTR) continue;
    if (r <= 0) return give_up("it cannot be written", r);
    at += r;
    left -= static_cast<size_t>(r);
  }
}

// ---- text ----

void take_name(TraceRecord& r, const FiberRecord* f) {
  if (f && *f->name) memcpy(r.name, f->name, sizeof r.name);
  else memcpy(r.name, f && f->is_main ? "main\0" : "fiber", 6);
}

// Each byte counts here: what a trace costs is to make this text, and to write it.
#define BEGIN(out, kind, b) (out << ",\n{\"ph\":\"" kind "\"").put_padded((b).place, (b).place_size)
#define AT(out, kind, b, at) (BEGIN(out, kind, b) << ",\"ts\":").thousandths(at)
// A fiber's life, and its waits within, are asynchronous events with its id: a track of its own. Viewers want the same name in an
// event's beginning and its end; those of fibers change.
#define LIFE(out, kind, b, at, fiber) AT(out, kind, b, at) << ",\"cat\":\"fiber\",\"id\":" << uint64_t{fiber} << ",\"name\":\""
const char* life_of(uint32_t fiber) { return fiber == main_fiber->id ? "main" : "fiber"; }

void name_track(Text& out, const TraceBuffer& b) {
  BEGIN(out, "M", b) << ",\"name\":\"thread_name\",\"args\":{\"name\":\"";
  if (&b == others) out << "others (sysmon)";
  else (b.bound ? out << "bound worker " : out << "worker ") << uint64_t{b.track} << " (thread " << static_cast<uint64_t>(b.tid) << ")";
  out << "\"}}";
  BEGIN(out, "M", b) << ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" << uint64_t{b.track} << "}}";
}

void put_record(Text& out, const TraceRecord& r, const TraceBuffer& b) {
  uint64_t at = ns_of(r.at);
  auto name = [&] { out.quoted(r.name, sizeof r.name); };
  switch (r.kind) {
    case TraceRecord::Born:
      LIFE(out, "b", b, at, r.fiber) << life_of(r.fiber) << "\",\"args\":{\"fiber\":" << uint64_t{r.fiber} << ",\"made by\":" << uint64_t{r.other} << ",\"start\":\"" << r.object << "\"}}";
      AT(out, "i", b, at) << ",\"s\":\"t\",\"cat\":\"spawn\",\"name\":\"spawn\",\"args\":{\"fiber\":" << uint64_t{r.fiber} << "}}";
      return;
    case TraceRecord::Ran: {
      uint64_t until = ns_of(r.until);
      if (r.waited) LIFE(out, "e", b, at, r.fiber) << r.waited << "\"}";
      AT(out, "X", b, at) << ",\"dur\":";
      out.thousandths(until - at) << ",\"cat\":\"run\",\"name\":\"";
      name();
      out << "\",\"args\":{\"fiber\":" << uint64_t{r.fiber} << ",\"then\":\"";
      switch (r.leave) {
        case Leave::Park: out << "parks: " << r.what << "\"}}"; break;
        case Leave::Yield: out << "yields\"}}"; break;
        case Leave::Preempt: out << "is preempted\"}}"; break;
        case Leave::Done: out << "ends\"}}"; break;
        case Leave::Not: out << "goes on\"}}"; break;
      }
      if (r.leave == Leave::Park)
        LIFE(out, "b", b, until, r.fiber) << r.what << "\",\"args\":{\"object\":\"" << r.object << "\"}}";
      if (r.leave == Leave::Preempt)
        AT(out, "i", b, until) << ",\"s\":\"t\",\"cat\":\"preempt\",\"name\":\"preempt\",\"args\":{\"fiber\":" << uint64_t{r.fiber} << "}}";
      if (r.leave == Leave::Done) {
        LIFE(out, "e", b, until, r.fiber) << life_of(r.fiber) << "\",\"args\":{\"name\":\"";
        name();
        out << "\"}}";
      }
      return;
    }
    case TraceRecord::Stolen:
      AT(out, "i", b, at) << ",\"s\":\"t\",\"cat\":\"steal\",\"name\":\"steal\",\"args\":{\"fiber\":" << uint64_t{r.fiber}
                                 << ",\"from slot\":" << uint64_t{r.other} << "}}";
      return;
    case TraceRecord::HandedOver:
      AT(out, "i", b, at) << ",\"s\":\"t\",\"cat\":\"hand-over\",\"name\":\"hand-over\",\"args\":{\"fiber\":" << uint64_t{r.fiber}
                                 << ",\"worker\":" << uint64_t{r.other} << "}}";
      return;
    case TraceRecord::Blocked:
      AT(out, "X", b, at) << ",\"dur\":";
      out.thousandths(ns_of(r.until) - at) << ",\"cat\":\"blocked\",\"name\":\"blocked in the kernel\",\"args\":{\"fiber\":" << uint64_t{r.fiber} << "}}";
      return;
  }
}

// By who may use it.
void write_buffer(TraceBuffer* b) {
  measure_scale();
  Text out(b->text, sizeof b->text);
  if (!b->named) name_track(out, *b);
  b->named = true;
  for (uint32_t i = 0; i < b->n; i++) {
    put_record(out, b->records[i], *b);
    if (out.room() < kLongestEvent) write_text(out);
  }
  write_text(out);
  b->n = 0;
  b->written_at = cycles();
}

TraceBuffer* make_buffer(uint32_t track) {
  long mem = raw_syscall(SYS_mmap, 0, sizeof(TraceBuffer), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mem < 0 && mem > -4096) return nullptr;
  // Zeroed already, and most of it may never be touched.
  auto* b = reinterpret_cast<TraceBuffer*>(mem);
  b->track = track;
  b->written_at = cycles();
  Text place(b->place, sizeof b->place);
  place << ",\"pid\":" << static_cast<uint64_t>(pid) << ",\"tid\":" << uint64_t{track};
  b->place_size = static_cast<uint8_t>(place.size());
  TraceBuffer* head = buffers.load(std::memory_order_relaxed);
  do b->next = head;
  while (!buffers.compare_exchange_weak(head, b, std::memory_order_release, std::memory_order_relaxed));
  return b;
}

// FILE, or FILE.PID for the child of a fork, and while another process writes FILE.
long open_file(bool with_pid) {
  char name[sizeof path + 16];
  Text t(name, sizeof name - 1);
  bool named = false;
  for (const char* s = path; *s; s++) {
    if (s[0] == '%' && s[1] == 'p') {
      t << static_cast<uint64_t>(pid);
      named = true;
      s++;
    } else {
      t.put(*s);
    }
  }
  if (with_pid && !named) t << "." << static_cast<uint64_t>(pid);
  name[t.size()] = 0;
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(name), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd < 0) return fd;
  if (raw_syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) == -EWOULDBLOCK) {
    raw_syscall(SYS_close, fd);
    return with_pid ? -EWOULDBLOCK : open_file(true);
  }
  raw_syscall(SYS_ftruncate, fd, 0);
  return fd;
}

}  // namespace

TraceBuffer* trace_make_buffer(int tid, bool bound) {
  TraceBuffer* b = make_buffer(tracks.fetch_add(1, std::memory_order_relaxed) + 1);
  if (!b) return nullptr;
  b->tid = tid;
  b->bound = bound;
  return b;
}

uint64_t ran_since(const Watched& of, const FiberRecord* f, uint64_t now) {
  uint64_t began = of.began > f->traced_at ? of.began : f->traced_at;
  return began && began < now ? began : now;
}

namespace {
TraceBuffer* lock_others() {
  others_lock.lock();
  return others;
}
}  // namespace

TraceEvent::TraceEvent(TraceBuffer* b, TraceRecord::Kind kind, const FiberRecord* f)
    : b_(b ? b : lock_others()), shared_(!b), r_(b_->records[b_->n]) {
  b_->in_use.store(1, std::memory_order_relaxed);
  // The membarrier in trace_end() is the other half.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(no_membarrier, 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
  r_.kind = kind;
  r_.fiber = f ? f->id : 0;
  take_name(r_, f);
}

TraceEvent::~TraceEvent() {
  // Else the record is not there, and the next one in its place.
  if (over.load(std::memory_order_relaxed) == kOn) {
    uint64_t at = r_.kind == TraceRecord::Ran ? r_.until : r_.at;
    if (++b_->n == TraceBuffer::kRecords || at - b_->written_at > kWriteEveryUs * cycles_per_us) write_buffer(b_);
  }
  b_->in_use.store(0, std::memory_order_release);
  if (shared_) others_lock.unlock();
}

void trace_to(const char* name) {
  if (strlen(name) >= sizeof path) return;
  strcpy(path, name);
  watching.fetch_or(kWatchTrace, std::memory_order_relaxed);
}

void trace_start() {
  if (!watched(kWatchTrace)) return;
  pid = static_cast<int>(raw_syscall(SYS_getpid));
  long fd = open_file(of_child);
  if (fd >= 0) poll_take(fd, file);
  if (fd < 0 || !(others = make_buffer(kOthersTrack))) {
    watching.fetch_and(~uint32_t{kWatchTrace}, std::memory_order_relaxed);  // nobody has seen it yet
    Line() << "no trace: " << path << " cannot be written (error " << static_cast<uint64_t>(fd < 0 ? -fd : ENOMEM) << ")";
    return;
  }
  main_fiber->traced_wait = nullptr;  // of the parent's trace
  zero_cycles = cycles();
  zero_ns = now_ns();
  scale.store(0, std::memory_order_relaxed);
  bytes.store(0, std::memory_order_relaxed);
  char program[17] = {};
  raw_syscall(SYS_prctl, PR_GET_NAME, arg(program));
  char line[512];
  Text out(line, sizeof line);
  out << "[\n{\"ph\":\"M\",\"pid\":" << static_cast<uint64_t>(pid) << ",\"name\":\"process_name\",\"args\":{\"name\":\"";
  out.quoted(program, sizeof program) << "\"}}";
  LIFE(out, "b", *others, zero_ns, main_fiber->id) << "main\"}";
  over.store(kOn, std::memory_order_relaxed);
  write_text(out);
}

void trace_end() {
  if (!watched(kWatchTrace) || file < 0) return;
  uint32_t before = over.exchange(kEnded, std::memory_order_seq_cst);
  if (before == kEnded) return;
  if (before == kGaveUp) {
    raw_syscall(SYS_write, file, arg("\n]\n"), 3);
    return;
  }
  Busy busy;
  raw_syscall(SYS_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0);
  constexpr uint64_t kPatience = 5'000'000'000;  // for one that waits for the disk
  uint64_t from = now_ns(), now = cycles();
  for (TraceBuffer* b = buffers.load(std::memory_order_acquire); b; b = b->next) {
    while (b->in_use.load(std::memory_order_acquire))
      if (now_ns() - from > kPatience) return;
      else raw_syscall(SYS_sched_yield);
    write_buffer(b);
  }
  Text out(others->text, sizeof others->text);
  // What goes on.
  for (Worker* w = all_workers(); w; w = w->all_next) {
    Watched* of = __atomic_load_n(&w->watch, __ATOMIC_ACQUIRE);
    FiberRecord* f = w->running.load(std::memory_order_relaxed);
    if (!of || !of->buffer || !f || of->began > now) continue;
    TraceRecord r{};
    r.kind = TraceRecord::Ran;
    r.at = ran_since(*of, f, now);
    r.until = now;
    r.leave = Leave::Not;
    r.fiber = f->id;
    r.waited = f->traced_wait;
    take_name(r, f);
    put_record(out, r, *of->buffer);
    if (uint64_t taken = w->taken_at.load(std::memory_order_relaxed); taken && taken < now) {
      r.kind = TraceRecord::Blocked;
      r.at = taken > r.at ? taken : r.at;
      put_record(out, r, *of->buffer);
    }
    if (out.room() < kLongestEvent) write_text(out);
  }
  auto end_life = [](FiberRecord* f, void* p) {
    State s = f->state.load(std::memory_order_relaxed);
    auto& text = *static_cast<Text*>(p);
    if (s == State::Done || s == State::Created) return true;
    uint64_t at = ns_of(cycles());
    if (f->traced_wait && s != State::Running) LIFE(text, "e", *others, at, f->id) << f->traced_wait << "\"}";
    LIFE(text, "e", *others, at, f->id) << life_of(f->id) << "\",\"args\":{\"then\":\"goes on\"}}";
    if (text.room() < kLongestEvent) write_text(text);
    return true;
  };
  if (!main_fiber->block) end_life(main_fiber, &out);
  block_each(end_life, &out);
  out << "\n]\n";
  write_text(out);
}

void trace_after_fork_child() {
  poll_give_back(file);
  over.store(kEnded, std::memory_order_relaxed);
  buffers.store(nullptr, std::memory_order_relaxed);
  tracks.store(0, std::memory_order_relaxed);
  others = nullptr;
  others_lock.reset();
  of_child = true;
}

}  // namespace fiberthread
