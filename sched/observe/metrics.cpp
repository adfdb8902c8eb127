// SPDX-License-Identifier: MIT
// The form is version 0.0.4 of https://prometheus.io/docs/instrumenting/exposition_formats/. One request is answered at a time, by sysmon, which
// never waits for a client: what cannot be read or written at once goes on at its next look. All state but `where`, the descriptors and what
// writing_lock guards is sysmon's own.
#include "sched/observe/metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/observe/cycles.h"
#include "sched/observe/observe.h"
#include "sched/observe/stall.h"
#include "sched/observe/text.h"
#include "sched/observe/trace_text.h"
#include "sched/own_descriptors.h"
#include "sched/poller.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint64_t kPatience = 2'000'000'000;  // ns that a client may take for its request and for the answer
constexpr uint64_t kRest = 100'000'000;
constexpr size_t kMostPath = 1024;

const char* where = nullptr;
uint64_t period = 10'000'000'000;
enum class Kind { None, File, Inet, Unix };
std::atomic<Kind> kind{Kind::None};                 // stored last by metrics_start(), while sysmon runs
char path[kMostPath], path_of_new[kMostPath + 32];  // of the file or socket; beside the file
bool of_child = false;

std::atomic<int> listening{-1}, connection{-1};
FIBERTHREAD_LARGE char request[2048], answer[32 * 1024];
size_t request_size = 0, answer_size = 0, answered = 0;
uint64_t give_up_at = 0, write_at = 0;
uint64_t rest_until = 0;  // after an accept() that the kernel has refused, for lack of descriptors for example; 0: none

SpinLock writing_lock;  // of the file: sysmon writes it, and the thread that ends the process
bool ended = false;

// Returns false.
bool refuse(const char* what, long error) {
  kind.store(Kind::None, std::memory_order_relaxed);
  if (of_child) return false;  // the parent has said so, or serves what the child would
  Line line;
  line << "metrics: " << where << ": " << what;
  if (error) line << " (error " << static_cast<uint64_t>(-error) << ")";
  return false;
}

// ---- the text ----

// A number of nanoseconds as seconds.
void put_seconds(Text& out, uint64_t ns) {
  out << ns / 1'000'000'000;
  uint64_t rest = ns % 1'000'000'000;
  if (!rest) return;
  out.put('.');
  for (uint64_t digit = 100'000'000; rest; rest %= digit, digit /= 10) out.put(static_cast<char>('0' + rest / digit));
}

Text& head(Text& out, const char* name, const char* type, const char* help) {
  return out << "# HELP fiberthread_" << name << " " << help << "\n# TYPE fiberthread_" << name << " " << type << "\n";
}

void put(Text& out, const char* name, const char* type, const char* help, uint64_t value) {
  head(out, name, type, help) << "fiberthread_" << name << " " << value << "\n";
}

void put_delays(Text& out) {
  uint64_t sum = 0, counts[kDelays] = {}, total = 0;
  collect_delays(counts, sum);
  constexpr const char* kName = "scheduling_delay_seconds";
  head(out, kName, "histogram", "Time from when a thread became runnable until it ran.");
  for (uint32_t i = 0; i < kDelays; i++) {
    total += counts[i];
    out << "fiberthread_" << kName << "_bucket{le=\"";
    if (i + 1 == kDelays) out << "+Inf";
    else put_seconds(out, delay_below(i));
    out << "\"} " << total << "\n";
  }
  out << "fiberthread_" << kName << "_sum ";
  put_seconds(out, sum);
  out << "\nfiberthread_" << kName << "_count " << total << "\n";
}

uint64_t kernel_threads() {
  struct statx s;
  return raw_syscall(SYS_statx, AT_FDCWD, arg("/proc/self/task"), 0, STATX_NLINK, arg(&s)) == 0 && s.stx_nlink > 2 ? s.stx_nlink - 2 : 0;
}

void put_all(Text& out, uint64_t now) {
  Counts c;
  collect_counts(c);
  uint64_t running = 0, workers = 0, queued = queued_count(), live = live_fibers();
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    if (!w->thread.initial && !w->thread.kernel_tid.load(std::memory_order_relaxed)) continue;
    workers++;
    running += w->run.running.load(std::memory_order_relaxed) != nullptr;
  }
  // These are counted one after the other, while threads go on.
  uint64_t parked = live > running + queued ? live - running - queued : 0;
  head(out, "threads", "gauge", "Threads of the program that have not ended, main included, by state.")
      << "fiberthread_threads{state=\"running\"} " << running << "\nfiberthread_threads{state=\"runnable\"} " << queued
      << "\nfiberthread_threads{state=\"parked\"} " << parked << "\n";
  put(out, "threads_spawned_total", "counter", "Threads made.", c.spawned);
  put(out, "switches_total", "counter", "Times that a worker switched to a thread.", c.switches);
  head(out, "parks_total", "counter", "Times that a thread waited, by what it waited for.");
  for (uint32_t i = 0; i < c.reasons; i++)
    (out << "fiberthread_parks_total{reason=\"").quoted(c.reason[i].what, 64) << "\"} " << c.reason[i].count << "\n";
  put(out, "steals_total", "counter", "Times that a worker took threads from another's queue.", c.steals);
  put(out, "preemptions_total", "counter", "Times that a thread was stopped because others waited.", c.preemptions);
  put(out, "handovers_total", "counter", "Slots that went to another worker because theirs slept in the kernel.", c.handovers);
  put(out, "polls_total", "counter", "Times that epoll was asked for events.", c.polls);
  put(out, "deadlocks_total", "counter", "Cycles of threads that wait for each other for ever, and deadlocks of all threads.", deadlocks());
  head(out, "stalls_total", "counter", "Times that threads were kept waiting for longer than FIBERTHREAD_STALL_MS, by how.");
  for (int i = 0; i < static_cast<int>(Stall::Count); i++)
    out << "fiberthread_stalls_total{kind=\"" << stall_name(static_cast<Stall>(i)) << "\"} " << stalls(static_cast<Stall>(i)) << "\n";
  put(out, "run_queue_length", "gauge", "Runnable threads that wait for a worker.", queued);
  put(out, "slots", "gauge", "How many workers may run threads at a time.", slots_wanted());
  put(out, "workers", "gauge", "Kernel threads that run the program's threads.", workers);
  put(out, "kernel_threads", "gauge", "Kernel threads of the process.", kernel_threads());
  put_delays(out);
  WatchFindings found = watch_findings();
  uint64_t longest = found.oldest_wait < now ? now - found.oldest_wait : 0;
  head(out, "longest_wait_seconds", "gauge", "How long the thread waits that has waited longest, as of some seconds ago.")
      << "fiberthread_longest_wait_seconds ";
  put_seconds(out, longest);
  out << "\n";
  put(out, "stack_reserved_bytes", "gauge", "Address space of the stacks of all threads, as of some seconds ago.", found.stack_bytes);
  put(out, "stack_resident_bytes", "gauge", "Memory that these stacks use, estimated from some of them, as of some seconds ago.",
      found.resident_bytes);
  put(out, "poller_descriptors", "gauge", "Descriptors that threads have waited for, and that epoll watches until they are closed.",
      poll_descriptors());
}

// ---- the file ----

void write_file(uint64_t now) {
  SpinGuard guard(writing_lock);
  if (ended || kind != Kind::File) return;
  Text out(answer, sizeof answer);
  put_all(out, now);
  if (!trace_text::within_file_limit(out.size())) return void(refuse("it cannot be written", -EFBIG));
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path_of_new), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0644);
  if (fd < 0) return void(refuse("it cannot be made", fd));
  long n = raw_syscall(SYS_write, fd, arg(out.data()), static_cast<long>(out.size()));
  raw_syscall(SYS_close, fd);
  if (n == static_cast<long>(out.size()) && (n = raw_syscall(SYS_renameat, AT_FDCWD, arg(path_of_new), AT_FDCWD, arg(path))) == 0) return;
  raw_syscall(SYS_unlinkat, AT_FDCWD, arg(path_of_new), 0);
  refuse("it cannot be written", n < 0 ? n : -ENOSPC);
}

// ---- the socket ----

long listen_at(int family, const void* address, size_t size) {
  long fd = raw_syscall(SYS_socket, family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fd;
  int on = 1;
  if (family != AF_UNIX) raw_syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, arg(&on), sizeof on);
  long r = raw_syscall(SYS_bind, fd, arg(address), static_cast<long>(size));
  if (r == 0) r = raw_syscall(SYS_listen, fd, 16);
  if (r == 0) return fd;
  raw_syscall(SYS_close, fd);
  return r;
}

// Returns true if no process listens on the socket any more.
bool is_left(const sockaddr_un& address) {
  long fd = raw_syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  long r = fd < 0 ? fd : raw_syscall(SYS_connect, fd, arg(&address), sizeof address);
  if (fd >= 0) raw_syscall(SYS_close, fd);
  return r == -ECONNREFUSED;
}

bool listen_unix() {
  sockaddr_un address{AF_UNIX, {}};
  if (strlen(path) >= sizeof address.sun_path) return refuse("the path is too long for a socket", 0);
  strcpy(address.sun_path, path);
  long fd = listen_at(AF_UNIX, &address, sizeof address);
  if (fd == -EADDRINUSE && is_left(address)) {
    raw_syscall(SYS_unlinkat, AT_FDCWD, arg(path), 0);
    fd = listen_at(AF_UNIX, &address, sizeof address);
  }
  if (fd < 0) return refuse("it cannot be listened on", fd);
  own_fd_take(fd, listening);
  return true;
}

// Names are not looked up: that would need libc, and time.
bool listen_inet() {
  const char* colon = strrchr(where, ':');
  char host[64] = {};
  size_t n = static_cast<size_t>(colon - where);
  uint32_t port = 0;
  for (const char* d = colon + 1; *d; d++) port = port * 10 + static_cast<uint32_t>(*d - '0');
  const char* from = where;
  if (n >= 2 && *from == '[' && from[n - 1] == ']') {
    from++;
    n -= 2;
  }
  if (port == 0 || port > 65535 || n >= sizeof host) return refuse("no such address", 0);
  memcpy(host, from, n);
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(static_cast<uint16_t>(port));
  if (!strcmp(host, "localhost")) strcpy(host, "127.0.0.1");
  long fd;
  if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) fd = listen_at(AF_INET, &v4, sizeof v4);
  else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) fd = listen_at(AF_INET6, &v6, sizeof v6);
  else return refuse("the host is neither a number nor localhost", 0);
  if (fd < 0) return refuse("it cannot be listened on", fd);
  own_fd_take(fd, listening);
  return true;
}

void hang_up() {
  own_fd_close(connection);
  request_size = answer_size = answered = 0;
}

void make_answer(uint64_t now) {
  bool found = !strncmp(request, "GET /metrics", 12) || !strncmp(request, "GET / ", 6);
  // The head comes last, because it has the size. So it gets room before the text.
  constexpr size_t kHead = 160;
  Text body(answer + kHead, sizeof answer - kHead);
  if (found) put_all(body, now);
  else body << "try /metrics\n";
  char memory[kHead];
  Text top(memory, sizeof memory);
  top << (found ? "HTTP/1.1 200 OK" : "HTTP/1.1 404 Not Found")
      << "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close\r\nContent-Length: " << uint64_t{body.size()}
      << "\r\n\r\n";
  memmove(answer + top.size(), answer + kHead, body.size());
  memcpy(answer, top.data(), top.size());
  answer_size = top.size() + body.size();
  answered = 0;
}

void serve(uint64_t now) {
  if (connection < 0) {
    if (now < rest_until) return;
    long fd = raw_syscall(SYS_accept4, listening, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
    rest_until = fd >= 0 || fd == -EAGAIN || fd == -EINTR ? 0 : now + kRest;
    if (fd < 0) return;
    own_fd_take(fd, connection);
    give_up_at = now + kPatience;
  }
  if (answer_size == 0) {
    long n = raw_syscall(SYS_recvfrom, connection, arg(request + request_size), static_cast<long>(sizeof request - 1 - request_size), 0, 0,
                         0);
    if (n > 0) request_size += static_cast<size_t>(n);
    request[request_size] = 0;
    // A request that is too long is answered by its beginning.
    if (strstr(request, "\r\n\r\n") || strstr(request, "\n\n") || request_size == sizeof request - 1) make_answer(now);
    else if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR)) return hang_up();
  }
  if (answer_size) {
    long n = raw_syscall(SYS_sendto, connection, arg(answer + answered), static_cast<long>(answer_size - answered), MSG_NOSIGNAL, 0, 0);
    if (n > 0) answered += static_cast<size_t>(n);
    if (answered == answer_size || (n < 0 && n != -EAGAIN && n != -EINTR)) return hang_up();
  }
  if (now > give_up_at) hang_up();
}

// Puts the path into `path`, from the root, with the process's id for each %p. Returns false if it is too long.
bool set_path(const char* given) {
  Text out(path, sizeof path - 1);
  if (*given != '/') {
    char here[kMostPath];
    if (raw_syscall(SYS_getcwd, arg(here), sizeof here) > 0) out.put(here, strlen(here)).put('/');
  }
  for (; *given; given++) {
    if (given[0] != '%' || given[1] != 'p') {
      out.put(*given);
      continue;
    }
    out << static_cast<uint64_t>(raw_syscall(SYS_getpid));
    given++;
  }
  path[out.size()] = 0;
  Text beside(path_of_new, sizeof path_of_new - 1);
  beside.put(path, out.size()) << ".new." << static_cast<uint64_t>(raw_syscall(SYS_getpid));
  path_of_new[beside.size()] = 0;
  return out.room() > 0;
}

bool is_port(const char* s) {
  if (!s || !*++s) return false;
  for (; *s; s++)
    if (*s < '0' || *s > '9') return false;
  return true;
}

FIBERTHREAD_IN_FORK_CHILD(Observers, metrics, [](FiberRecord*) {
  own_fd_close(listening);
  own_fd_close(connection);
  writing_lock.reset();
  request_size = answer_size = answered = 0;
  kind.store(Kind::None);
  ended = false;
  of_child = true;
})

}  // namespace

void metrics_to(const char* to) {
  where = to;
  observing.fetch_or(kObserveStats | kObserveDelay, std::memory_order_relaxed);
}

void metrics_every(uint32_t seconds) { period = uint64_t{seconds} * 1'000'000'000; }

bool metrics_wanted() { return where != nullptr; }

void metrics_start() {
  if (!where) return;
  Kind k = !strncmp(where, "unix:", 5) ? Kind::Unix : !strchr(where, '/') && is_port(strrchr(where, ':')) ? Kind::Inet : Kind::File;
  bool ready = true;
  if (k == Kind::Inet) ready = listen_inet();
  else if (!set_path(k == Kind::Unix ? where + 5 : where)) ready = refuse("the path is too long", 0);
  else if (k == Kind::Unix) ready = listen_unix();
  if (!ready) return;
  write_at = now_ns() + period;
  kind.store(k, std::memory_order_release);
  sysmon_wake();
}

uint64_t metrics_look(uint64_t now) {
  Kind k = kind.load(std::memory_order_acquire);
  if (__builtin_expect(k == Kind::None, 1)) return kNever;
  if (k == Kind::File) {
    if (now < write_at) return write_at;
    write_at = now + period;
    write_file(now);
    return write_at;
  }
  serve(now);
  return connection >= 0 ? give_up_at + 1 : rest_until ? rest_until : kNever;
}

int metrics_descriptor(short& events) {
  if (listening < 0 || rest_until) return -1;
  events = connection >= 0 && answer_size ? POLLOUT : POLLIN;
  return connection >= 0 ? connection : listening;
}

void metrics_end() {
  if (kind == Kind::File) write_file(now_ns());
  SpinGuard guard(writing_lock);
  ended = true;
  if (kind == Kind::Unix && listening >= 0) raw_syscall(SYS_unlinkat, AT_FDCWD, arg(path), 0);
}

}  // namespace fiberthread
