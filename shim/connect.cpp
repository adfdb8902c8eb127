// SPDX-License-Identifier: MIT
// connect(). Of a socket's calls it is the only one that waits unless O_NONBLOCK is set, and that flag belongs to the program and to all
// processes that share the descriptor. But io_uring asks a socket for just that. It begins the connection with O_NONBLOCK for this one
// call, and would then wait by poll(). We cancel that wait at once, which leaves the connection alone, and wait in the poller. When the
// poller reports an event, we make the plain call. It does not begin anew, and returns the result.
//
// Where there is no io_uring, the call waits in the kernel. So does a call to a Unix socket whose backlog is full. Nothing tells the caller
// that there is room again: neither poll() nor io_uring, which tries 128 times and then takes a kernel thread.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "sched/life/fork.h"
#include "sched/own_descriptors.h"
#include "sched/syscall.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/io.h"
#include "shim/real.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

// A ring belongs to no worker. A thread that connects takes a free one for the time of a system call, and has it alone.
struct Ring {
  std::atomic<uint32_t> taken{0};
  std::atomic<int> fd{-1};
  // Shared with the kernel. Null until the ring is made.
  std::atomic<uint32_t>*sq_head = nullptr, *sq_tail = nullptr, *cq_head = nullptr, *cq_tail = nullptr;
  uint32_t *sq_array = nullptr, sq_mask = 0, cq_mask = 0;
  io_uring_sqe* entries = nullptr;
  io_uring_cqe* results = nullptr;
};
constexpr int kRings = 4;
Ring rings[kRings];
std::atomic<bool> refused{false};  // by the kernel, for good

bool make_ring(Ring& r) {
  io_uring_params p{};
  long fd = raw_syscall(SYS_io_uring_setup, 4, arg(&p));
  if (fd < 0) {
    if (fd != -EMFILE && fd != -ENFILE && fd != -ENOMEM) refused.store(true, std::memory_order_relaxed);
    return false;
  }
  auto map = [&](size_t size, uint64_t at) {
    long m = raw_syscall(SYS_mmap, 0, static_cast<long>(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                         static_cast<long>(at));
    if (m < 0 && m > -4096) return static_cast<char*>(nullptr);
    raw_syscall(SYS_madvise, m, static_cast<long>(size), MADV_DONTFORK);
    return reinterpret_cast<char*>(m);
  };
  // Without the first feature, results are elsewhere. Without the second, the kernel would wait on a thread of its own.
  bool fits = p.features & IORING_FEAT_SINGLE_MMAP && p.features & IORING_FEAT_FAST_POLL;
  if (!fits) refused.store(true, std::memory_order_relaxed);
  size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t), cq = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe),
         size = sq > cq ? sq : cq;
  char* ring = fits ? map(size, IORING_OFF_SQ_RING) : nullptr;
  char* entries = ring ? map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES) : nullptr;
  if (!entries) {
    if (ring) raw_syscall(SYS_munmap, arg(ring), static_cast<long>(size));
    raw_syscall(SYS_close, fd);
    return false;
  }
  auto word = [&](uint32_t at) { return reinterpret_cast<std::atomic<uint32_t>*>(ring + at); };
  r.sq_head = word(p.sq_off.head);
  r.sq_tail = word(p.sq_off.tail);
  r.cq_head = word(p.cq_off.head);
  r.cq_tail = word(p.cq_off.tail);
  r.sq_mask = p.sq_entries - 1;
  r.cq_mask = p.cq_entries - 1;
  r.sq_array = reinterpret_cast<uint32_t*>(ring + p.sq_off.array);
  r.entries = reinterpret_cast<io_uring_sqe*>(entries);
  r.results = reinterpret_cast<io_uring_cqe*>(ring + p.cq_off.cqes);
  own_fd_take(fd, r.fd);
  return true;
}

constexpr uint64_t kConnect = 1, kCancel = 2;

void submit(Ring& r, uint8_t operation, uint64_t name, int fd, const void* address, uint64_t offset) {
  uint32_t tail = r.sq_tail->load(std::memory_order_relaxed), k = tail & r.sq_mask;
  io_uring_sqe& e = r.entries[k] = {};
  e.opcode = operation;
  e.fd = fd;
  e.addr = reinterpret_cast<uint64_t>(address);
  e.off = offset;
  e.user_data = name;
  r.sq_array[k] = k;
  r.sq_tail->store(tail + 1, std::memory_order_release);
}

// Begins the connection. Returns the call's result, or -ECANCELED if the connection goes on. kInKernel: there is no ring.
long begin_in(Ring& r, int fd, const sockaddr* to, socklen_t size) {
  submit(r, IORING_OP_CONNECT, kConnect, fd, to, size);
  uint32_t left = 1;  // results to come
  long result = 0;
  bool done = false;
  while (!done || left) {
    if (!done && left < 2) {  // once more if something ended the wait, but not the connecting
      submit(r, IORING_OP_ASYNC_CANCEL, kCancel, -1, reinterpret_cast<void*>(kConnect), 0);
      left++;
    }
    uint32_t unseen = r.sq_tail->load(std::memory_order_relaxed) - r.sq_head->load(std::memory_order_acquire);
    long n = raw_syscall(SYS_io_uring_enter, r.fd.load(std::memory_order_relaxed), static_cast<long>(unseen), 1, IORING_ENTER_GETEVENTS, 0,
                         0);
    uint32_t head = r.cq_head->load(std::memory_order_relaxed);
    for (; head != r.cq_tail->load(std::memory_order_acquire); head++, left--) {
      io_uring_cqe& e = r.results[head & r.cq_mask];
      if (e.user_data != kConnect) continue;
      result = e.res;
      done = true;
    }
    r.cq_head->store(head, std::memory_order_release);
    if (n >= 0 || n == -EINTR || n == -EAGAIN || n == -EBUSY) continue;
    // The program has closed its number. The ring is not used again.
    bool begun = done || r.sq_head->load(std::memory_order_acquire) != r.sq_tail->load(std::memory_order_relaxed) - unseen;
    r.fd.store(-1, std::memory_order_relaxed);
    r.entries = nullptr;
    return done ? result : begun ? -ECANCELED : kInKernel;
  }
  return result;
}

long begin(int fd, const sockaddr* to, socklen_t size) {
  if (refused.load(std::memory_order_relaxed) || filtered.load(std::memory_order_relaxed)) return kInKernel;
  Busy busy;  // on this kernel thread, since a cancelled request ends on the thread that made it
  // A filter may kill a process that makes calls which the filter does not know. And a filter does not see what a ring does.
  if (raw_syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) != 0) return kInKernel;
  for (Ring& r : rings) {
    if (r.taken.load(std::memory_order_relaxed) || r.taken.exchange(1, std::memory_order_acquire)) continue;
    long result = r.entries || make_ring(r) ? begin_in(r, fd, to, size) : kInKernel;
    r.taken.store(0, std::memory_order_release);
    return result;
  }
  return kInKernel;
}

// Returns true for sockets whose plain call says how a connection that was begun has ended.
bool is_tcp(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  constexpr int kMultipath = 262;
  return raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, arg(&protocol), arg(&size)) == 0 &&
         (protocol == IPPROTO_TCP || protocol == kMultipath);
}

bool is_loopback(const sockaddr_storage& to) {
  auto& v4 = reinterpret_cast<const sockaddr_in&>(to);
  auto& v6 = reinterpret_cast<const sockaddr_in6&>(to);
  return to.ss_family == AF_INET ? ntohl(v4.sin_addr.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

}  // namespace

// The rings are the parent's, and are not mapped here.
FIBERTHREAD_IN_FORK_CHILD(EmbeddersThreads, connect, [](FiberRecord*) {
  for (Ring& r : rings) {
    own_fd_close(r.fd);
    r.entries = nullptr;
    r.taken.store(0, std::memory_order_relaxed);
  }
})

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int connect(int fd, const sockaddr* to, socklen_t size) {
  PollNotes* notes = notes_to_wait(fd);
  sockaddr_storage copy{};
  if (!notes || size < sizeof(sockaddr_in) || size > sizeof copy || fiberthread_user_copy(&copy, to, size) != 0 ||
      (copy.ss_family != AF_INET && copy.ss_family != AF_INET6) || !is_tcp(fd) || raw_syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK)
    return REAL(connect)(fd, to, size);
  bool tried = false, begun_before = false, in_kernel = false;
  auto attempt = [&]() -> long {
    if (tried) return is_ready(fd, EPOLLOUT) ? kInKernel : -EAGAIN;
    tried = true;
    long r = begin(fd, reinterpret_cast<sockaddr*>(&copy), size);
    begun_before = r == -EALREADY;
    return r == -ECANCELED || r == -EINPROGRESS || r == -EALREADY ? -EAGAIN : r;
  };
  auto plain = [&] {
    in_kernel = true;
    Blocking blocking(!is_loopback(copy) && !is_ready(fd, EPOLLOUT));
    return REAL(connect)(fd, to, size);
  };
  long r = wait_for(fd, notes, EPOLLOUT, kCancels | kRestarts | kAsks | kKeepsError, attempt, plain);
  if (r == -EAGAIN && !in_kernel) r = begun_before ? -EALREADY : -EINPROGRESS;  // SO_SNDTIMEO
  return static_cast<int>(with_errno(r));
}
FIBERTHREAD_ALIAS(__connect, connect);
