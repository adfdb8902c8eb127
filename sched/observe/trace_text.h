// SPDX-License-Identifier: MIT
// Turns the records of a trace into text for viewers (the JSON of chrome://tracing). The library does so at the end of a process.
// `fiberthread trace` does so for a process that was killed.
#pragma once
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "sched/observe/text.h"
#include "sched/observe/trace.h"

namespace fiberthread {

namespace trace_text {
inline bool within_file_limit(uint64_t size) {
  rlimit64 limit;
  return raw_syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, arg(&limit)) != 0 || size <= limit.rlim_cur;
}
}  // namespace trace_text

class TraceText {
 public:
  // Writes the text of the trace in `raw` to `file`, which has O_APPEND and is empty. Returns 0, or a negative errno value. -EFBIG means
  // that the text ends early, because viewers take no more.
  static long convert(int raw, int file) {
    long size = raw_syscall(SYS_lseek, raw, 0, SEEK_END);
    if (size < static_cast<long>(kTraceChunk)) return size < 0 ? size : -ENODATA;
    long in = raw_syscall(SYS_mmap, 0, size, PROT_READ, MAP_SHARED, raw, 0);
    if (failed(in)) return in;
    long memory = raw_syscall(SYS_mmap, 0, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long r = memory;
    if (!failed(memory)) {
      TraceText t(reinterpret_cast<const char*>(in), static_cast<uint64_t>(size), reinterpret_cast<char*>(memory), file);
      r = t.head_.magic == TraceHead::kMagic ? t.all() : -ENODATA;
      raw_syscall(SYS_munmap, memory, kMemory);
    }
    raw_syscall(SYS_munmap, in, size);
    return r;
  }
  static constexpr uint32_t kOthers = 100'000;  // the track of sysmon, and of threads that are no workers

 private:
  static constexpr size_t kMemory = 64 * 1024, kLongestRecord = 1024;
  static constexpr uint64_t kMostBytes = uint64_t{2} << 30;  // more than viewers take
  static bool failed(long r) { return r < 0 && r > -4096; }

  TraceText(const char* in, uint64_t size, char* memory, int file)
      : in_(in), size_(size), head_(*reinterpret_cast<const TraceHead*>(in)), out_(memory, kMemory), file_(file),
        scale_(head_.scale.load(std::memory_order_relaxed)), ended_(head_.ended.load(std::memory_order_relaxed)) {
    struct stat s;
    is_file_ = raw_syscall(SYS_fstat, file, arg(&s)) == 0 && S_ISREG(s.st_mode);
  }

  const TraceChunk* chunk(uint64_t at) const {
    return at && at % kTraceChunk == 0 && at + kTraceChunk <= size_ ? reinterpret_cast<const TraceChunk*>(in_ + at) : nullptr;
  }
  // Returns true if the chunk at `at` counts: a complete copy, or an original without one. A process may have been killed while it copied.
  bool counts(const TraceChunk* c, uint64_t at) const {
    auto complete = [](const TraceChunk* copy) {
      return copy->magic == TraceChunk::kMagic && copy->end.load(std::memory_order_relaxed) == copy->base;
    };
    if (c->magic != TraceChunk::kMagic) return false;
    if (c->home != at) return complete(c);
    const TraceChunk* copy = chunk(c->copy.load(std::memory_order_relaxed));
    return !(copy && complete(copy) && copy->home == c->home && copy->base == c->base);
  }

  long all() {
    out_ << "[\n{\"ph\":\"M\",\"pid\":" << uint64_t{head_.pid} << ",\"name\":\"process_name\",\"args\":{\"name\":\"";
    out_.quoted(head_.program, sizeof head_.program) << "\"}}";
    set_place(kOthers);
    life("b", head_.zero_ns, head_.main) << "main\"}";
    for (uint64_t at = kTraceChunk; at < size_ && !error_; at += kTraceChunk)
      if (const TraceChunk* c = chunk(at); c && counts(c, at)) one(c, c->home == at);
    if (error_ == -EFBIG) error_ = 0, too_large_ = true;
    out_ << "\n]\n";
    write();
    return error_ ? error_ : too_large_ ? -EFBIG : 0;
  }

  void write() {
    const char* at = out_.data();
    size_t left = out_.size();
    out_.clear();
    bytes_ += left;
    // -ENOSPC, because -EFBIG means that the text ends early for viewers.
    if (!error_ && is_file_ && !trace_text::within_file_limit(bytes_)) error_ = -ENOSPC;
    while (left && !error_) {
      long r = raw_syscall(SYS_write, file_, arg(at), static_cast<long>(left));
      if (r == -EINTR) continue;
      if (r <= 0) {
        error_ = r ? r : -EIO;
        return;
      }
      at += r;
      left -= static_cast<size_t>(r);
    }
    if (!error_ && bytes_ > kMostBytes) error_ = -EFBIG;
  }

  uint64_t ns(uint64_t at) const {
    if (at <= head_.zero_cycles) return head_.zero_ns;
    return head_.zero_ns + static_cast<uint64_t>(static_cast<unsigned __int128>(at - head_.zero_cycles) * scale_ >> 32);
  }

  // The text of a track's events, made once: to make and to write text is what a trace costs at its end.
  void set_place(uint32_t track) {
    Text place(place_, sizeof place_);
    place << ",\"pid\":" << uint64_t{head_.pid} << ",\"tid\":" << uint64_t{track};
    place_size_ = place.size();
  }
  [[gnu::always_inline]] Text& begin(const char* kind) { return (out_ << ",\n{\"ph\":\"" << kind << "\"").put_padded(place_, place_size_); }
  [[gnu::always_inline]] Text& event(const char* kind, uint64_t at) { return (begin(kind) << ",\"ts\":").thousandths(at); }
  [[gnu::always_inline]] Text& mark(const char* kind, uint64_t at) {
    return event("i", at) << ",\"s\":\"t\",\"cat\":\"" << kind << "\",\"name\":\"" << kind << "\",\"args\":{\"fiber\":";
  }
  // A fiber's life and its waits are asynchronous events with its id, so viewers give them a track of their own. Viewers want the same name
  // at an event's beginning and end, and a fiber's name may change. So a life is called "fiber" or "main".
  [[gnu::always_inline]] Text& life(const char* kind, uint64_t at, uint32_t fiber) {
    return event(kind, at) << ",\"cat\":\"fiber\",\"id\":" << uint64_t{fiber} << ",\"name\":\"";
  }
  const char* life_of(uint32_t fiber) const { return fiber == head_.main ? "main" : "fiber"; }
  Text& word(uint32_t w) { return out_.quoted(head_.words[w], kTraceWord); }
  void name(uint32_t fiber, const TraceEntry* named) {
    if (named) out_.quoted(reinterpret_cast<const char*>(named), sizeof *named);
    else out_ << life_of(fiber);
  }

  void one(const TraceChunk* c, bool home) {
    set_place(c->track);
    if (home) {  // each track has one chunk at its own place, which names the track
      begin("M") << ",\"name\":\"thread_name\",\"args\":{\"name\":\"";
      if (c->track == kOthers) out_ << "others (sysmon)";
      else (c->bound ? out_ << "bound worker " : out_ << "worker ") << uint64_t{c->track} << " (thread " << uint64_t{c->tid} << ")";
      out_ << "\"}}";
      begin("M") << ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" << uint64_t{c->track} << "}}";
    }
    uint32_t n = c->n.load(std::memory_order_acquire);
    if (n > TraceChunk::kEntries) return;
    uint64_t last = c->base, began = c->left, burst = 0;
    maker_ = 0;
    for (const TraceEntry *s = c->entries, *end = s + n; s < end && !error_;) {
      const TraceEntry& slot = *s++;
      auto kind = static_cast<TraceKind>(slot.rest & 15);
      uint64_t more = trace_has_more(kind) && s < end ? (s++)->rest : 0;
      const TraceEntry* named = slot.fiber & kTraceNamed && s < end ? s++ : nullptr;
      uint64_t at = last + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(slot.time - static_cast<uint32_t>(last))));
      if (kind == TraceKind::Time) at = more;
      burst = kind == TraceKind::Born && at == last ? burst + 1 : 0;
      last = at;
      if (kind == TraceKind::Makes) maker_ = slot.fiber;
      if (kind == TraceKind::Began) began = more;
      else if (kind != TraceKind::Time && (!ended_ || at <= ended_))
        record(kind, slot, at, kind == TraceKind::Born ? burst : more, began, named);
      if (kind <= TraceKind::GoesOn) began = at;
      if (out_.room() < kLongestRecord) write();
    }
  }

  void record(TraceKind kind, const TraceEntry& slot, uint64_t cycles, uint64_t more, uint64_t began, const TraceEntry* named) {
    const uint32_t fiber = slot.fiber & ~kTraceNamed, waits = slot.rest >> 10 & 63, waited = slot.rest >> 4 & 63;
    const uint64_t number = slot.rest >> 16;
    uint64_t at = ns(cycles);
    auto object = reinterpret_cast<const void*>(number);
    switch (kind) {
      case TraceKind::Park:
      case TraceKind::Yield:
      case TraceKind::Preempt:
      case TraceKind::Done:
      case TraceKind::GoesOn: {
        uint64_t from = ns(began < cycles ? began : cycles);
        if (waited) {
          life("e", from, fiber);
          word(waited) << "\"}";
        }
        event("X", from) << ",\"dur\":";
        out_.thousandths(at - from) << ",\"cat\":\"run\",\"name\":\"";
        name(fiber, named);
        out_ << "\",\"args\":{\"fiber\":" << uint64_t{fiber} << ",\"then\":\"";
        switch (kind) {
          case TraceKind::Park:
            out_ << "parks: ";
            word(waits) << "\"}}";
            life("b", at, fiber);
            word(waits) << "\",\"args\":{\"object\":\"" << object << "\"}}";
            break;
          case TraceKind::Preempt:
            out_ << "is preempted\"}}";
            mark("preempt", at) << uint64_t{fiber} << "}}";
            break;
          case TraceKind::Done:
            out_ << "ends\"}}";
            life("e", at, fiber) << life_of(fiber) << "\",\"args\":{\"name\":\"";
            name(fiber, named);
            out_ << "\"}}";
            break;
          default: out_ << (kind == TraceKind::Yield ? "yields\"}}" : "goes on\"}}"); break;
        }
        return;
      }
      case TraceKind::Born:
        at += more;
        life("b", at, fiber) << life_of(fiber) << "\",\"args\":{\"fiber\":" << uint64_t{fiber} << ",\"made by\":" << uint64_t{maker_}
                             << ",\"start\":\"" << object << "\"}}";
        mark("spawn", at) << uint64_t{fiber} << "}}";
        return;
      case TraceKind::Stolen: mark("steal", at) << uint64_t{fiber} << ",\"from slot\":" << number << "}}"; return;
      case TraceKind::HandedOver: mark("hand-over", at) << uint64_t{fiber} << ",\"worker\":" << number << "}}"; return;
      case TraceKind::Blocked: {
        uint64_t from = ns(more < cycles ? more : cycles);
        event("X", from) << ",\"dur\":";
        out_.thousandths(at - from) << ",\"cat\":\"blocked\",\"name\":\"blocked in the kernel\",\"args\":{\"fiber\":" << uint64_t{fiber}
                                    << "}}";
        return;
      }
      case TraceKind::Lives:
        if (waited) {
          life("e", at, fiber);
          word(waited) << "\"}";
        }
        life("e", at, fiber) << life_of(fiber) << "\",\"args\":{\"then\":\"goes on\"}}";
        return;
      case TraceKind::Makes:
      case TraceKind::Began:
      case TraceKind::Time: return;
    }
  }

  const char* in_;
  uint64_t size_;
  const TraceHead& head_;
  Text out_;
  int file_;
  uint64_t scale_, ended_, bytes_ = 0;
  long error_ = 0;
  bool too_large_ = false, is_file_ = false;
  uint32_t maker_ = 0;
  char place_[48];  // "pid" and "tid" of a track's events
  size_t place_size_ = 0;
};

}  // namespace fiberthread
