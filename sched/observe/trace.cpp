// SPDX-License-Identifier: MIT
#include "sched/observe/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "sched/arch/arch.h"
#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/own_descriptors.h"
#include "sched/observe/text.h"
#include "sched/observe/trace_text.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {

constexpr uint64_t kMostBytes = uint64_t{96} << 20;  // of records; viewers do not take the text of more

FIBERTHREAD_LARGE char path[4096], raw_path[2 * sizeof path + 64];  // FILE as given; the path of FILE.raw from the root, or empty
bool of_child = false;
std::atomic<int> file{-1}, raw{-1};
enum Over : uint32_t { kOn, kEnded, kGaveUp };
std::atomic<uint32_t> over{kEnded};
std::atomic<uint64_t> raw_size{0};
std::atomic<uint32_t> tracks{0};
TraceHead* head = nullptr;
SpinLock words_lock;
TraceBuffer others;
SpinLock others_lock;

// A write beyond the limit would end the program by SIGXFSZ.
using trace_text::within_file_limit;

// Removes FILE.raw, unless another file has that name by now.
void remove_raw() {
  struct stat mine, there;
  if (*raw_path && raw_syscall(SYS_fstat, raw, arg(&mine)) == 0 &&
      raw_syscall(SYS_newfstatat, AT_FDCWD, arg(raw_path), arg(&there), AT_SYMLINK_NOFOLLOW) == 0 && mine.st_dev == there.st_dev &&
      mine.st_ino == there.st_ino)
    raw_syscall(SYS_unlinkat, AT_FDCWD, arg(raw_path), 0);
}

long open_it(const char* name, int flags) { return raw_syscall(SYS_openat, AT_FDCWD, arg(name), flags | O_CLOEXEC | O_NOCTTY, 0666); }

void measure_scale() {
  uint64_t c = cycles() - head->zero_cycles, ns = now_ns() - head->zero_ns;
  // A measurement of less than a tenth of a second would be less exact than the known scale.
  if (ns > 100'000'000) head->scale.store(static_cast<uint64_t>((static_cast<unsigned __int128>(ns) << 32) / c), std::memory_order_relaxed);
}

void give_up(const char* why, long error) {
  if (over.exchange(kGaveUp, std::memory_order_relaxed) != kOn) return;
  Line line;
  line << "the trace " << path << " ends here: " << why;
  if (error) line << " (error " << static_cast<uint64_t>(-error) << ")";
}

// Makes and maps a chunk of FILE.raw. Returns null if the disk or the file's limit has no room.
void* map_trace_chunk(uint64_t at) {
  if (!within_file_limit(at + kTraceChunk)) return nullptr;
  // The chunk is allocated, because a write to mapped memory of a hole fails when the disk is full.
  long r;
  do r = raw_syscall(SYS_fallocate, raw, 0, static_cast<long>(at), kTraceChunk);
  while (r == -EINTR);
  if (r < 0) return nullptr;
  long mem = raw_syscall(SYS_mmap, 0, kTraceChunk, PROT_READ | PROT_WRITE, MAP_SHARED, raw, static_cast<long>(at));
  return mem < 0 && mem > -4096 ? nullptr : reinterpret_cast<void*>(mem);
}

void begin_chunk(TraceBuffer& b) {
  TraceChunk* c = b.chunk;
  c->n.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the process may be killed here
  c->copy.store(0, std::memory_order_relaxed);
  c->base = b.last = cycles();
  c->left = b.left;
  b.maker = 0;
}

bool make_buffer(TraceBuffer& b, uint32_t track, uint32_t tid, bool bound) {
  uint64_t at = raw_size.fetch_add(kTraceChunk, std::memory_order_relaxed);
  if (at > 4 * kMostBytes) return false;
  b.chunk = static_cast<TraceChunk*>(map_trace_chunk(at));
  if (!b.chunk) return false;
  b.chunk->track = track;
  b.chunk->tid = tid;
  b.chunk->bound = bound;
  b.chunk->home = at;
  begin_chunk(b);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  b.chunk->magic = TraceChunk::kMagic;
  return true;
}

// Copies a full chunk to the end of the file. Called by the chunk's writer.
void copy_chunk(TraceChunk* c) {
  uint64_t at = raw_size.fetch_add(kTraceChunk, std::memory_order_relaxed);
  if (at > kMostBytes) return give_up("it has become too large", 0);
  if (!within_file_limit(at + kTraceChunk)) return give_up("it cannot be written", -EFBIG);
  c->end.store(c->base, std::memory_order_relaxed);
  c->copy.store(at, std::memory_order_relaxed);
  long r;
  do r = raw_syscall(SYS_pwrite64, raw, arg(c), kTraceChunk, static_cast<long>(at));
  while (r == -EINTR);
  if (r != kTraceChunk) give_up("it cannot be written", r < 0 ? r : -ENOSPC);
}

// Returns the pid of the process whose trace is in FILE.raw, 0 if the file is empty, or -1 if it is no trace. A file that is no trace must
// not be cut.
int64_t trace_of(int fd) {
  struct stat s;
  TraceHead h;
  if (raw_syscall(SYS_fstat, fd, arg(&s)) != 0 || !S_ISREG(s.st_mode)) return -1;
  if (s.st_size == 0) return 0;
  return raw_syscall(SYS_pread64, fd, arg(&h), sizeof h, 0) == sizeof h && h.magic == TraceHead::kMagic ? int64_t{h.pid} : -1;
}

// Opens FILE, or FILE.PID for the child of a fork and while another process writes FILE. Opens FILE.raw too. If FILE is no regular file, or
// its directory takes no new file, memory without a name stands for FILE.raw. Returns 0 or a negative errno value.
long open_files(uint32_t pid) {
  constexpr int kMostTries = 100;
  for (int i = 0; i < kMostTries; i++) {
    char name[sizeof path + 24];
    Text t(name, sizeof name - 1);
    bool named = false;
    for (const char* s = path; *s; s++) {
      if (s[0] == '%' && s[1] == 'p') {
        t << uint64_t{pid};
        named = true;
        s++;
      } else {
        t.put(*s);
      }
    }
    if (!named && (i || of_child)) t << "." << uint64_t{pid};
    if (i > 1 || (i && (named || of_child))) t << "." << static_cast<uint64_t>(i);
    name[t.size()] = 0;
    long n = *name != '/' ? raw_syscall(SYS_getcwd, arg(raw_path), sizeof path) : 0;  // the program may change its directory
    if (n > 0 && *raw_path == '/') raw_path[n - 1] = '/';
    else n = 0;
    Text r(raw_path + n, sizeof raw_path - 1 - static_cast<size_t>(n));
    r << static_cast<const char*>(name) << ".raw";
    raw_path[static_cast<size_t>(n) + r.size()] = 0;
    long fd = open_it(name, O_WRONLY | O_CREAT | O_APPEND), raw_fd = -1;
    if (fd < 0) return fd;
    struct stat s;
    bool taken = raw_syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) == -EWOULDBLOCK;
    if (!taken && raw_syscall(SYS_fstat, fd, arg(&s)) == 0 && S_ISREG(s.st_mode)) {
      raw_fd = open_it(raw_path, O_RDWR | O_CREAT | O_NOFOLLOW);
      int64_t of = raw_fd < 0 ? -1 : trace_of(static_cast<int>(raw_fd));
      if (of < 0 && raw_fd >= 0) {
        raw_syscall(SYS_close, raw_fd);
        raw_fd = -1;
      }
      // FILE.raw may belong to a running process, whose FILE has been renamed or removed. If it were cut, that process would be killed. It
      // may also belong to this process before an exec(). Then no process has made FILE of it.
      taken = raw_fd >= 0 && (raw_syscall(SYS_flock, raw_fd, LOCK_EX | LOCK_NB) == -EWOULDBLOCK || of == pid);
    }
    if (taken) {
      raw_syscall(SYS_close, fd);
      if (raw_fd >= 0) raw_syscall(SYS_close, raw_fd);
      continue;
    }
    raw_syscall(SYS_ftruncate, fd, 0);
    own_fd_take(fd, file);
    for (bool by_name = raw_fd >= 0;; by_name = false) {
      if (!by_name) {
        *raw_path = 0;
        raw_fd = raw_syscall(SYS_memfd_create, arg("fiberthread-trace"), 1 /* MFD_CLOEXEC */);
        if (raw_fd < 0) return raw_fd;
      }
      raw_syscall(SYS_ftruncate, raw_fd, 0);
      own_fd_take(raw_fd, raw);
      if ((head = static_cast<TraceHead*>(map_trace_chunk(0)))) return 0;
      own_fd_close(raw);
      if (!by_name) return -ENOMEM;
      raw_syscall(SYS_unlinkat, AT_FDCWD, arg(raw_path), 0);
    }
  }
  return -EWOULDBLOCK;
}

}  // namespace

bool trace_make_buffer(TraceBuffer& b, uint32_t tid, bool bound) {
  return over.load(std::memory_order_relaxed) == kOn && make_buffer(b, tracks.fetch_add(1, std::memory_order_relaxed) + 1, tid, bound);
}

bool trace_make_room(TraceBuffer& b, uint64_t now) {
  if (b.chunk->n.load(std::memory_order_relaxed) > TraceChunk::kEntries - TraceChunk::kMost) {
    // Store, then look: either trace_end() sees `in_use`, or this thread sees that the trace is over.
    b.in_use.exchange(1, std::memory_order_seq_cst);
    if (over.load(std::memory_order_seq_cst) == kOn) copy_chunk(b.chunk);
    bool on = over.load(std::memory_order_relaxed) == kOn;
    if (on) {
      begin_chunk(b);
      measure_scale();
    }
    b.in_use.store(0, std::memory_order_release);
    if (!on) return false;
  }
  // A record with the whole time comes first, because 32 bits do not reach from the last record to `now`, or the chunk is new.
  trace_put(b, nullptr, TraceFiber::Numbered, now, trace_rest(TraceKind::Time), now);
  return true;
}

uint32_t trace_new_word(TraceBuffer& b, const char* what) {
  uint32_t word = 1;
  {
    SpinGuard guard(words_lock);
    char(&all)[kTraceWords][kTraceWord] = head->words;
    while (word < kTraceWords - 1 && *all[word] && strncmp(all[word], what, kTraceWord)) word++;
    if (!*all[word]) strncpy(all[word], word < kTraceWords - 1 ? what : "other", kTraceWord);
  }
  auto p = reinterpret_cast<uintptr_t>(what);
  b.words[(p ^ p >> 5) % (sizeof b.words / sizeof *b.words)] = {what, word};
  return word;
}

TraceOthers::TraceOthers() : buffer(others) { others_lock.lock(); }
TraceOthers::~TraceOthers() { others_lock.unlock(); }

void trace_to(const char* name) {
  if (strlen(name) >= sizeof path) return;
  strcpy(path, name);
  observing.fetch_or(kObserveTrace, std::memory_order_relaxed);
}

void trace_start() {
  if (!observed(kObserveTrace)) return;
  auto pid = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  raw_size.store(kTraceChunk, std::memory_order_relaxed);
  long r = open_files(pid);
  if (r == 0 && !make_buffer(others, TraceText::kOthers, 0, false)) r = -ENOMEM;
  if (r < 0) {
    observing.fetch_and(~uint32_t{kObserveTrace}, std::memory_order_relaxed);  // no worker has seen the bit yet
    Line() << "no trace: " << path << " cannot be written (error " << static_cast<uint64_t>(-r) << ")";
    return;
  }
  main_fiber->traced.wait = 0;  // it is the parent's trace that lacks the end of that wait
  head->pid = pid;
  head->main = main_fiber->identity.id;
  head->zero_cycles = cycles();
  head->zero_ns = now_ns();
  head->scale.store((uint64_t{1000} << 32) / cycles_per_us, std::memory_order_relaxed);
  raw_syscall(SYS_prctl, PR_GET_NAME, arg(head->program));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  head->magic = TraceHead::kMagic;
  if (*raw_path && within_file_limit(512)) {  // FILE's text until the trace ends
    char memory[512];
    Text out(memory, sizeof memory);
    out << "[\n{\"ph\":\"i\",\"s\":\"g\",\"ts\":0,\"pid\":" << uint64_t{pid}
        << ",\"tid\":0,\"name\":\"not ended yet, or killed: see fiberthread trace\"}\n]\n";
    out.write_to(file);
  }
  over.store(kOn, std::memory_order_release);
}

namespace {

// Records of what goes on at the trace's end. They are written as more chunks of the file.
class Rest {
 public:
  explicit Rest(uint64_t now) : now_(now) {
    char* mem = map_memory(kTraceChunk, PROT_READ | PROT_WRITE);
    if (!mem) return;
    b_.chunk = reinterpret_cast<TraceChunk*>(mem);
    b_.chunk->magic = TraceChunk::kMagic;
  }
  ~Rest() {
    if (b_.chunk) unmap_memory(b_.chunk, kTraceChunk);
  }
  explicit operator bool() const { return b_.chunk; }
  void begin(uint32_t track) {
    write();
    b_.chunk->track = track;
    b_.chunk->base = b_.last = now_;
  }
  void put(const FiberRecord* f, TraceFiber as, uint64_t rest, uint64_t more = 0) {
    if (b_.chunk->n.load(std::memory_order_relaxed) > TraceChunk::kEntries - TraceChunk::kMost) begin(b_.chunk->track);
    trace_put(b_, f, as, now_, rest, more);
  }
  void write() {
    if (!b_.chunk->n.load(std::memory_order_relaxed)) return;
    b_.chunk->end.store(b_.chunk->base, std::memory_order_relaxed);
    uint64_t at = raw_size.fetch_add(kTraceChunk, std::memory_order_relaxed);
    if (within_file_limit(at + kTraceChunk)) raw_syscall(SYS_pwrite64, raw, arg(b_.chunk), kTraceChunk, static_cast<long>(at));
    b_.chunk->n.store(0, std::memory_order_relaxed);
  }

 private:
  TraceBuffer b_;
  uint64_t now_;
};

void note_what_goes_on(uint64_t now) {
  Rest rest(now);
  if (!rest) return;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    ObservedWorker* of = __atomic_load_n(&w->observed.by, __ATOMIC_ACQUIRE);
    FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
    if (!of || !of->trace.chunk || !f || of->began > now) continue;
    uint64_t from = ran_since(*of, f, now);
    rest.begin(of->trace.chunk->track);
    rest.put(f, TraceFiber::Numbered, trace_rest(TraceKind::Began), from);
    rest.put(f, TraceFiber::Named, trace_rest(TraceKind::GoesOn, 0, 0, f->traced.wait));
    if (uint64_t taken = w->observed.taken_at.load(std::memory_order_relaxed); taken && taken < now)
      rest.put(f, TraceFiber::Numbered, trace_rest(TraceKind::Blocked), taken > from ? taken : from);
  }
  rest.begin(TraceText::kOthers);
  auto goes_on = [](FiberRecord* f, void* p) {
    State s = f->run.state.load(std::memory_order_relaxed);
    if (s == State::Done || s == State::Created) return true;
    static_cast<Rest*>(p)->put(f, TraceFiber::Numbered, trace_rest(TraceKind::Lives, 0, 0, s == State::Running ? 0 : f->traced.wait));
    return true;
  };
  if (!main_fiber->memory.block) goes_on(main_fiber, &rest);
  block_each(goes_on, &rest);
  rest.write();
}

}  // namespace

void trace_end() {
  if (!observed(kObserveTrace) || file < 0) return;
  uint32_t before = over.exchange(kEnded, std::memory_order_seq_cst);
  if (before == kEnded) return;
  Busy busy;
  constexpr uint64_t kPatience = 5'000'000'000;  // for a thread that copies its chunk and waits for the disk
  uint64_t from = now_ns();
  auto wait_for = [&](TraceBuffer& b) {
    while (b.in_use.load(std::memory_order_seq_cst) && now_ns() - from < kPatience) raw_syscall(SYS_sched_yield);
  };
  wait_for(others);
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    if (ObservedWorker* of = __atomic_load_n(&w->observed.by, __ATOMIC_ACQUIRE)) wait_for(of->trace);
  measure_scale();
  uint64_t now = cycles();
  if (before == kOn) note_what_goes_on(now);
  head->ended.store(now, std::memory_order_relaxed);
  raw_syscall(SYS_ftruncate, file, 0);
  long r = TraceText::convert(raw, file);
  if (r == 0 || r == -EFBIG) remove_raw();
  if (r == 0 || before == kGaveUp) return;
  over.store(kOn, std::memory_order_relaxed);
  give_up(r == -EFBIG ? "it has become too large" : "it cannot be written", r == -EFBIG ? 0 : r);
}

FIBERTHREAD_IN_FORK_CHILD(Observers, trace, [](FiberRecord*) {
  own_fd_close(file);
  own_fd_close(raw);
  over.store(kEnded, std::memory_order_relaxed);
  tracks.store(0, std::memory_order_relaxed);
  // The chunks that are mapped are the parent's.
  others.chunk = nullptr;
  for (auto& w : others.words) w = {};
  others.in_use.store(0, std::memory_order_relaxed);
  words_lock.reset();
  others_lock.reset();
  of_child = true;
})

}  // namespace fiberthread
