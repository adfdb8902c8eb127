// SPDX-License-Identifier: MIT
// Sockets: receiving, sending, accepting.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "sched/syscall.h"
#include "shim/export.h"
#include "shim/fd_wait.h"
#include "shim/io.h"
#include "shim/real.h"
#include "shim/time.h"

namespace fiberthread {
namespace {

// With one of these flags a call never waits. The last two are answered at once even by a socket that blocks.
constexpr int kNoWait = MSG_DONTWAIT | MSG_ERRQUEUE | MSG_OOB;

PollNotes* notes_for(int fd, int flags) { return flags & kNoWait ? nullptr : notes_to_wait(fd); }

bool is_stream(int fd, PollNotes* notes) { return kind_of(fd, notes) & kStream; }

// Returns how much a receiving call for n bytes waits for. 0: for any number of bytes.
size_t wanted(int fd, PollNotes* notes, int flags, size_t n) {
  if (flags & MSG_WAITALL) return n && is_stream(fd, notes) ? n : 0;
  return low_water(fd, notes, n);
}

// A message without its first `done` bytes.
struct Rest {
  iovec pieces[kPieces];
  msghdr message;
  Rest(const msghdr& m, size_t done) {
    memset(&message, 0, sizeof message);
    message.msg_iov = pieces;
    message.msg_iovlen = remaining(m.msg_iov, m.msg_iovlen, done, pieces);
  }
};

// Returns true if descriptors have come with the message, or would have come if there had been room. The call ends behind them, whatever it
// waits for.
bool brought_descriptors(int fd, const msghdr& m) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, arg(&domain), arg(&size)) != 0 || domain != AF_UNIX) return false;
  if (m.msg_flags & MSG_CTRUNC) return true;
  auto& all = const_cast<msghdr&>(m);
  for (cmsghdr* c = CMSG_FIRSTHDR(&all); c; c = CMSG_NXTHDR(&all, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) return true;
  return false;
}

long receive_message(int fd, PollNotes* notes, msghdr* m, int flags) {
  msghdr copy;  // the kernel changes lengths in the original when it receives
  size_t want = 0;
  if (flags & MSG_WAITALL || low_water_used.load(std::memory_order_relaxed)) {
    copy = *m;
    want = wanted(fd, notes, flags, total_length(m->msg_iov, m->msg_iovlen));
  }
  // A later part gets the room for control data that no earlier part has used.
  auto call = [&](size_t done, auto made) -> long {
    if (!done) return made(m);
    Rest rest(copy, done);
    if (m->msg_controllen == 0) {
      rest.message.msg_control = copy.msg_control;
      rest.message.msg_controllen = copy.msg_controllen;
    }
    long r = made(&rest.message);
    if (r >= 0 && m->msg_controllen == 0) m->msg_controllen = rest.message.msg_controllen;
    if (r >= 0) m->msg_flags |= rest.message.msg_flags;
    return r;
  };
  return receive(
      fd, notes, want, flags & MSG_PEEK ? Taking::Peeks : Taking::Takes,
      [&](size_t done) { return call(done, [&](msghdr* what) { return raw_syscall(SYS_recvmsg, fd, arg(what), flags | MSG_DONTWAIT); }); },
      [&](size_t done) { return call(done, [&](msghdr* what) { return REAL(recvmsg)(fd, what, flags); }); },
      [&] { return brought_descriptors(fd, *m); });
}

Pipe pipe_of(int flags) { return flags & MSG_NOSIGNAL ? Pipe::Ignored : Pipe::Raised; }

// Sends the message, of which `sent` bytes have gone.
long send_message(int fd, PollNotes* notes, const msghdr* m, int flags, size_t sent = 0) {
  auto call = [&](size_t done, auto made) -> long {
    if (!done) return made(m);
    Rest rest(*m, done);
    return made(&rest.message);
  };
  return send_parts(
      fd, notes, sent, pipe_of(flags),
      [&](size_t done) {
        return call(done, [&](const msghdr* what) { return raw_syscall(SYS_sendmsg, fd, arg(what), flags | MSG_DONTWAIT | MSG_NOSIGNAL); });
      },
      [&](size_t done) { return call(done, [&](const msghdr* what) { return REAL(sendmsg)(fd, what, flags); }); },
      [&] { return total_length(m->msg_iov, m->msg_iovlen); });
}

// The timeout is looked at only after something was received, as in the kernel.
long receive_messages(int fd, PollNotes* notes, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  uint64_t end = kNever;
  if (timeout) {
    if (!valid(*timeout) || timeout->tv_sec < 0) return -EINVAL;
    if (timeout->tv_sec < 4'000'000'000) end = now_ns() + static_cast<uint64_t>(timeout->tv_sec * kNsPerSec + timeout->tv_nsec);
  }
  bool one_by_one = (flags & MSG_WAITALL || low_water_used.load(std::memory_order_relaxed)) && is_stream(fd, notes);
  GoesOn whole(fd, notes);
  unsigned done = 0;
  long r;
  do {
    if (one_by_one) {
      r = receive_message(fd, notes, &v[done].msg_hdr, flags & ~MSG_WAITFORONE);
      if (r >= 0) {
        v[done].msg_len = static_cast<unsigned>(r);
        r = 1;
      }
    } else {
      r = wait_for_part(
          fd, notes, EPOLLIN, done ? kCancels : kCancels | kRestarts,
          [&]() -> long {
            return done && has_error(fd)
                       ? 0
                       : raw_syscall(SYS_recvmmsg, fd, arg(v + done), static_cast<long>(n - done), flags | MSG_DONTWAIT, 0);
          },
          [&]() -> long { return REAL(recvmmsg)(fd, v + done, 1, flags, nullptr); });
    }
    if (r <= 0) break;
    done += static_cast<unsigned>(r);
    if (flags & MSG_WAITFORONE) break;
  } while (done < n && (end == kNever || now_ns() < end));
  if (timeout && r >= 0 && end != kNever) {
    uint64_t now = now_ns(), left = end > now ? end - now : 0;
    *timeout = {static_cast<time_t>(left / kNsPerSec), static_cast<long>(left % kNsPerSec)};
  }
  return done ? static_cast<long>(done) : r;
}

long send_messages(int fd, PollNotes* notes, mmsghdr* v, unsigned n, int flags) {
  GoesOn whole(fd, notes);
  unsigned done = 0;
  while (done < n) {
    bool tried = false;
    long r = wait_for_part(
        fd, notes, EPOLLOUT, done ? kCancels : kCancels | kRestarts,
        [&]() -> long {
          if (done && has_error(fd)) return 0;
          tried = true;
          return raw_syscall(SYS_sendmmsg, fd, arg(v + done), static_cast<long>(n - done), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
        },
        [&] {
          tried = false;
          return REAL(sendmmsg)(fd, v + done, 1, flags);
        });
    if (r <= 0) return done ? static_cast<long>(done) : tried && !(flags & MSG_NOSIGNAL) ? raise_if_broken(notes, r) : r;
    done += static_cast<unsigned>(r);
    // Only a part of the last message may have gone.
    mmsghdr& last = v[done - 1];
    if (last.msg_len < total_length(last.msg_hdr.msg_iov, last.msg_hdr.msg_iovlen) && is_stream(fd, notes)) {
      r = send_message(fd, notes, &last.msg_hdr, flags, last.msg_len);
      if (r > 0) last.msg_len = static_cast<unsigned>(r);
      if (last.msg_len < total_length(last.msg_hdr.msg_iov, last.msg_hdr.msg_iovlen)) return static_cast<long>(done);
    }
  }
  return static_cast<long>(done);
}

// Notes of a new socket what is known of the listening one, which saves the calls that would find it out. Which options a socket takes
// over depends on its family. But where they are not set, the new one does not have them either.
void note_accepted(const PollNotes* from, int fd, int flags) {
  uint32_t kind = from->kind.load(std::memory_order_relaxed) & (kKindMask | kSocket | kStream);
  PollNotes* notes = poll_notes(fd);
  if (!notes || !(kind & kSocket)) return;
  uint32_t version = from->version.load(std::memory_order_acquire);
  bool unset = !from->receive.load(std::memory_order_relaxed) && !from->send.load(std::memory_order_relaxed) &&
               !from->low_water.load(std::memory_order_relaxed);
  if (unset) {
    notes->receive.store(0, std::memory_order_relaxed);
    notes->send.store(0, std::memory_order_relaxed);
    notes->low_water.store(0, std::memory_order_relaxed);
    notes->version.store(version, std::memory_order_release);
  }
  notes->kind.store(kind | (flags & SOCK_NONBLOCK ? uint32_t{kNonblocking} : 0), std::memory_order_relaxed);
}

template <class Plain>
long accept_here(int& fd, PollNotes* notes, int flags, Plain plain) {
  long r = wait_for(
      fd, notes, EPOLLIN, kCancels | kRestarts | kAsks, [&]() -> long { return is_ready(fd, EPOLLIN) ? kInKernel : -EAGAIN; }, plain);
  if (r >= 0) note_accepted(notes, static_cast<int>(r), flags);
  return r;
}

}  // namespace

void socket_init() {
  (void)REAL(recv);
  (void)REAL(recvfrom);
  (void)REAL(recvmsg);
  (void)REAL(send);
  (void)REAL(sendto);
  (void)REAL(sendmsg);
  (void)REAL(accept);
  (void)REAL(accept4);
  (void)REAL(connect);
  (void)REAL(setsockopt);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* from, socklen_t* size) {
  take_turns();
  PollNotes* notes = notes_for(fd, flags);
  if (!notes) return despite_others([&] { return REAL(recvfrom)(fd, buf, n, flags, from, size); });
  if (flags & MSG_WAITALL && !(flags & MSG_PEEK) && !from && n && is_stream(fd, notes)) {  // only recvmsg() tells of descriptors on the way
    iovec v{buf, n};
    msghdr m{};
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    alignas(cmsghdr) char credentials[CMSG_SPACE(sizeof(ucred))];  // credentials come first, if they were asked for
    m.msg_control = credentials;
    m.msg_controllen = sizeof credentials;
    return with_errno(receive_message(fd, notes, &m, flags));
  }
  auto at = [&](size_t done) { return static_cast<char*>(buf) + done; };
  return with_errno(receive(
      fd, notes, wanted(fd, notes, flags, n), flags & MSG_PEEK ? Taking::Peeks : Taking::Takes,
      [&](size_t done) {
        return raw_syscall(SYS_recvfrom, fd, arg(at(done)), static_cast<long>(n - done), flags | MSG_DONTWAIT, done ? 0 : arg(from),
                           done ? 0 : arg(size));
      },
      [&](size_t done) { return REAL(recvfrom)(fd, at(done), n - done, flags, done ? nullptr : from, done ? nullptr : size); }));
}

FIBERTHREAD_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  if (!notes_for(fd, flags)) {
    take_turns();
    if (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL) || !n)
      return despite_others([&] { return REAL(recv)(fd, buf, n, flags); });  // those flags look elsewhere
    return read_at_once(fd, [&] { return REAL(recv)(fd, buf, n, flags); });
  }
  return recvfrom(fd, buf, n, flags, nullptr, nullptr);
}
extern "C" ssize_t __recv_chk(int fd, void* buf, size_t n, size_t size, int flags);
FIBERTHREAD_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t n, size_t size, int flags) {
  return n > size ? REAL(__recv_chk)(fd, buf, n, size, flags) : recv(fd, buf, n, flags);
}
extern "C" ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags, sockaddr* from, socklen_t* size);
FIBERTHREAD_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags, sockaddr* from, socklen_t* size) {
  return n > room ? REAL(__recvfrom_chk)(fd, buf, n, room, flags, from, size) : recvfrom(fd, buf, n, flags, from, size);
}

FIBERTHREAD_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  take_turns();
  PollNotes* notes = notes_for(fd, flags);
  return notes ? with_errno(receive_message(fd, notes, m, flags)) : despite_others([&] { return REAL(recvmsg)(fd, m, flags); });
}

FIBERTHREAD_EXPORT int recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  PollNotes* notes = n ? notes_for(fd, flags) : nullptr;
  if (!notes) return REAL(recvmmsg)(fd, v, n, flags, timeout);
  return static_cast<int>(with_errno(receive_messages(fd, notes, v, n, flags, timeout)));
}

FIBERTHREAD_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* to, socklen_t size) {
  PollNotes* notes = notes_for(fd, flags & MSG_DONTWAIT);
  if (!notes) return despite_others([&] { return REAL(sendto)(fd, buf, n, flags, to, size); });
  auto at = [&](size_t done) { return static_cast<const char*>(buf) + done; };
  return with_errno(send_parts(
      fd, notes, 0, pipe_of(flags),
      [&](size_t done) {
        return raw_syscall(SYS_sendto, fd, arg(at(done)), static_cast<long>(n - done), flags | MSG_DONTWAIT | MSG_NOSIGNAL, arg(to), size);
      },
      [&](size_t done) { return REAL(sendto)(fd, at(done), n - done, flags, to, size); }, [&] { return n; }));
}

FIBERTHREAD_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  if (!notes_for(fd, flags & MSG_DONTWAIT)) return REAL(send)(fd, buf, n, flags);
  return sendto(fd, buf, n, flags, nullptr, 0);
}
FIBERTHREAD_ALIAS(__send, send);

FIBERTHREAD_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  PollNotes* notes = notes_for(fd, flags & MSG_DONTWAIT);
  return notes ? with_errno(send_message(fd, notes, m, flags)) : despite_others([&] { return REAL(sendmsg)(fd, m, flags); });
}

FIBERTHREAD_EXPORT int sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  PollNotes* notes = n ? notes_for(fd, flags & MSG_DONTWAIT) : nullptr;
  return notes ? static_cast<int>(with_errno(send_messages(fd, notes, v, n, flags))) : REAL(sendmmsg)(fd, v, n, flags);
}

FIBERTHREAD_EXPORT int accept(int fd, sockaddr* from, socklen_t* size) {
  PollNotes* notes = notes_to_wait(fd);
  if (!notes) return despite_others([&] { return REAL(accept)(fd, from, size); });
  return static_cast<int>(with_errno(accept_here(fd, notes, 0, [&] { return REAL(accept)(fd, from, size); })));
}

FIBERTHREAD_EXPORT int accept4(int fd, sockaddr* from, socklen_t* size, int flags) {
  PollNotes* notes = notes_to_wait(fd);
  if (!notes) return despite_others([&] { return REAL(accept4)(fd, from, size, flags); });
  return static_cast<int>(with_errno(accept_here(fd, notes, flags, [&] { return REAL(accept4)(fd, from, size, flags); })));
}

FIBERTHREAD_EXPORT int setsockopt(int fd, int level, int option, const void* value, socklen_t size) noexcept {
  constexpr int kReceiveNew = 66, kSendNew = 67;  // names in 32-bit programs of the options with 64-bit times
  int r = REAL(setsockopt)(fd, level, option, value, size);
  if (level != SOL_SOCKET) return r;
  if (option == SO_RCVLOWAT || option == SO_RCVTIMEO || option == SO_SNDTIMEO || option == kReceiveNew || option == kSendNew) {
    if (option == SO_RCVLOWAT) low_water_used.store(true, std::memory_order_relaxed);
    socket_options_changed();
  }
  return r;
}

// Tells a thread that waits to write, since poll() shows nothing.
FIBERTHREAD_EXPORT int shutdown(int fd, int how) noexcept {
  int r = REAL(shutdown)(fd, how);
  poll_nudge(fd);
  return r;
}
