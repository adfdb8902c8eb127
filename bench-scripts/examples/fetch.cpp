// SPDX-License-Identifier: MIT
// A concurrent web fetcher: plain blocking sockets, a fiber for each page. It shows structured concurrency: a nursery ends when all its
// fibers have ended, at the first error, or at a time limit, which also end reads that wait. It shows a semaphore that limits how many
// pages are fetched at once, and code that reads as if it were serial.
//
//   build/examples/fetch [--at-once N] [--limit MS] [--strict] http://HOST[:PORT]/PATH…
//   build/examples/fetch [the same] [--pages N] [--delay MS]     from a server of its own, which takes MS for each page
//
// Prints a line for each page in the order of the arguments: status, bytes, checksum. --strict: the first page that fails ends all.
#include <arpa/inet.h>
#include <fiberthread/fiber.h>
#include <fiberthread/nursery.h>
#include <fiberthread/semaphore.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using fiberthread::Fiber;
using fiberthread::Nursery;

// A descriptor that is closed when its owner goes out of scope.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& o) : fd_(o.fd_) { o.fd_ = -1; }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

static bool send_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    ssize_t n = send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

// ---- fetching ----

struct Page {
  std::string url;
  int error = -1;  // an errno value; -1: not fetched
  int status = 0;
  size_t bytes = 0;
  uint32_t checksum = 2166136261;  // FNV-1a (Fowler, Noll, Vo)
};

static int connect_to(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return errno = EHOSTUNREACH, -1;
  int fd = -1, error = 0;
  for (addrinfo* a = found; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
      error = errno;
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  errno = error;
  return fd;
}

// Returns 0 or an errno value. If the fiber is cancelled, connect and recv fail with ECANCELED.
static int fetch(Page& page) {
  const std::string scheme = "http://";
  if (page.url.compare(0, scheme.size(), scheme) != 0) return EPROTONOSUPPORT;
  std::string rest = page.url.substr(scheme.size()), path = "/";
  if (size_t slash = rest.find('/'); slash != rest.npos) path = rest.substr(slash), rest.resize(slash);
  std::string host = rest, port = "80";
  if (size_t colon = rest.rfind(':'); colon != rest.npos) port = rest.substr(colon + 1), host.resize(colon);

  Socket s(connect_to(host, port));
  if (s.fd() < 0) return errno;
  if (!send_all(s.fd(), "GET " + path + " HTTP/1.0\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")) return errno;
  std::string head;
  bool in_body = false;
  char buffer[16384];
  for (;;) {
    ssize_t n = recv(s.fd(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) break;
    const char* body = buffer;
    if (!in_body) {
      head.append(buffer, static_cast<size_t>(n));
      size_t end = head.find("\r\n\r\n");
      if (end == head.npos) continue;
      in_body = true;
      size_t rest_of_it = head.size() - end - 4;
      body = buffer + n - rest_of_it;
      n = static_cast<ssize_t>(rest_of_it);
    }
    page.bytes += static_cast<size_t>(n);
    for (ssize_t i = 0; i < n; i++) page.checksum = (page.checksum ^ static_cast<uint8_t>(body[i])) * 16777619;
  }
  if (std::sscanf(head.c_str(), "HTTP/%*s %d", &page.status) != 1) return EPROTO;
  return page.status == 200 ? 0 : EREMOTEIO;
}

// ---- the fetcher's own server ----

static void serve_page(Socket s, int delay_ms) {
  std::string request;
  char buffer[4096];
  while (request.find("\r\n\r\n") == request.npos) {
    ssize_t n = recv(s.fd(), buffer, sizeof buffer, 0);
    if (n <= 0) return;
    request.append(buffer, static_cast<size_t>(n));
  }
  int number = -1;
  std::sscanf(request.c_str(), "GET /%d", &number);
  Fiber::sleep(static_cast<uint64_t>(delay_ms) * 1'000'000);
  if (number < 0) {
    send_all(s.fd(), "HTTP/1.0 404 Not Found\r\n\r\n");
    return;
  }
  std::string body;
  for (int i = 0; i <= number; i++) body += "page " + std::to_string(number) + ", line " + std::to_string(i) + "\n";
  send_all(s.fd(), "HTTP/1.0 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

int main(int argc, char** argv) {
  int at_once = 100, limit_ms = 60000, pages = 200, delay_ms = 20;
  bool strict = false;
  std::vector<Page> all;
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    int* number = a == "--at-once" ? &at_once : a == "--limit" ? &limit_ms : a == "--pages" ? &pages : a == "--delay" ? &delay_ms : nullptr;
    if (number && i + 1 < argc) {
      *number = std::atoi(argv[++i]);
    } else if (a == "--strict") {
      strict = true;
    } else if (a[0] != '-') {
      all.emplace_back().url = a;
    } else {
      std::fprintf(stderr, "usage: %s [--at-once N] [--limit MS] [--strict] [--pages N] [--delay MS] [URL…]\n", argv[0]);
      return 2;
    }
  }
  if (at_once < 1) at_once = 1;

  Nursery server;
  if (all.empty()) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 1024) ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size)) {
      std::perror("the server's socket");
      return 1;
    }
    for (int i = 0; i < pages; i++)
      all.emplace_back().url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/" + std::to_string(i);
    // A fiber of the nursery that spawns further ones. When it is cancelled, its accept ends.
    server.spawn([&server, delay_ms, l = Socket(listener)] {
      for (;;) {
        int fd = accept(l.fd(), nullptr, nullptr);
        if (fd < 0) return fiberthread_cancelled() ? ECANCELED : errno;
        server.spawn([s = Socket(fd), delay_ms]() mutable { serve_page(std::move(s), delay_ms); });
      }
    });
  }

  uint64_t start = fiberthread::deadline_after(0);
  fiberthread::Semaphore room(at_once);
  Nursery nursery;
  Fiber alarm = Fiber::spawn([&] {
    if (Fiber::sleep(static_cast<uint64_t>(limit_ms) * 1'000'000) == 0) nursery.cancel(ETIMEDOUT);
  });
  for (Page& page : all)
    nursery.spawn([&page, &room, strict] {
      if (int e = room.acquire()) return e;
      page.error = fetch(page);
      room.release();
      return strict ? page.error : 0;
    });
  int error = nursery.wait();
  double seconds = static_cast<double>(fiberthread::deadline_after(0) - start) / 1e9;
  alarm.cancel();
  alarm.join();
  server.cancel();
  server.wait();

  size_t fetched = 0, bytes = 0;
  for (const Page& page : all) {
    if (page.error == 0) std::printf("%s: %d, %zu bytes, %08x\n", page.url.c_str(), page.status, page.bytes, page.checksum);
    else std::printf("%s: %s\n", page.url.c_str(), page.error == -1 ? "not fetched" : std::strerror(page.error));
    fetched += page.error == 0;
    bytes += page.bytes;
  }
  std::printf("%zu of %zu pages, %zu bytes%s%s\n", fetched, all.size(), bytes, error ? ": " : "", error ? std::strerror(error) : "");
  std::fprintf(stderr, "%.3f s\n", seconds);
  return error || fetched != all.size();
}
