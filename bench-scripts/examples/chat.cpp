// SPDX-License-Identifier: MIT
// A chat server, and a load generator for it. It shows two fibers for each connection that read and write as if they were alone, with a
// channel between them. It also shows a room that needs no locks, since it lives in a cord, whose callbacks run one after the other.
//
//   build/examples/chat [PORT]                          serves (0, the default: a free port, which it prints); try telnet
//   build/examples/chat --load PORT CLIENTS MESSAGES    each client says MESSAGES lines, and waits for the lines of all clients
//
// The protocol is lines. A client's first line is its name. The server answers "+name", or "-taken" and closes the connection. Then each
// line goes to all other clients, as "name: line". "/who" is answered by "+names", and "/quit" ends the connection. A client that does not
// read for too long is disconnected.
#include <arpa/inet.h>
#include <fiberthread/channel.h>
#include <fiberthread/cord.h>
#include <fiberthread/nursery.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

using fiberthread::Channel;
using fiberthread::Cord;
using fiberthread::Nursery;
using fiberthread::Receiver;
using fiberthread::Sender;

using Line = std::shared_ptr<const std::string>;  // one copy for all receivers

constexpr size_t kRoom = 1024;  // lines that may wait for a client that does not read
constexpr size_t kLongest = 4096;

// Reads a socket by lines.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}
  bool next(std::string& line) {
    for (;;) {
      size_t end = text_.find('\n', at_);
      if (end != text_.npos) {
        line.assign(text_, at_, end - at_);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        at_ = end + 1;
        return true;
      }
      text_.erase(0, at_);
      at_ = 0;
      if (text_.size() > kLongest) return false;
      char buffer[4096];
      ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      text_.append(buffer, static_cast<size_t>(n));
    }
  }

 private:
  int fd_;
  std::string text_;
  size_t at_ = 0;
};

static bool send_all(int fd, const char* text, size_t size) {
  while (size) {
    ssize_t n = send(fd, text, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}
static bool send_all(int fd, const std::string& text) { return send_all(fd, text.data(), text.size()); }

// ---- the server ----

// All members run in the room's cord, and no other fiber touches the room.
struct Room {
  struct Member {
    Sender<Line> lines;
    int fd;
  };
  std::map<std::string, Member> members;

  void tell(Member& m, const Line& line) {
    if (m.lines.try_send(line) == EAGAIN) shutdown(m.fd, SHUT_RDWR);  // then the client's reader ends, and the client leaves
  }
  void say(const std::string& from, const std::string& text) {
    auto line = std::make_shared<const std::string>(from + ": " + text + "\n");
    for (auto& [name, m] : members)
      if (name != from) tell(m, line);
  }
  void who(const std::string& from) {
    std::string all = "+";
    for (auto& [name, m] : members) all += (all.size() > 1 ? " " : "") + name;
    tell(members.at(from), std::make_shared<const std::string>(all + "\n"));
  }
};

static void write_lines(int fd, const Receiver<Line>& lines) {
  bool alive = true;
  while (auto first = lines.receive()) {
    // Lines that have come meanwhile are sent together with the first one.
    std::string text = **first;
    for (std::optional<Line> more; text.size() < 65536 && (more = lines.try_receive());) text += **more;
    if (alive && !send_all(fd, text)) {
      alive = false;  // the reader sees it too
      shutdown(fd, SHUT_RDWR);
    }
  }
}

static void serve(int fd, Cord& cord, Room& room) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Lines in(fd);
  std::string name, line;
  if (in.next(name) && !name.empty()) {
    auto [tx, rx] = Channel<Line>::make(kRoom);
    auto [tx_answer, answer] = Channel<bool>::make(1);
    cord.call([&room, name, fd, tx = std::move(tx), answer = std::move(tx_answer)]() mutable {
      bool fresh = room.members.try_emplace(name, Room::Member{std::move(tx), fd}).second;
      if (fresh) room.tell(room.members.at(name), std::make_shared<const std::string>("+" + name + "\n"));
      answer.try_send(fresh);
    });
    bool admitted = false;
    answer.receive(admitted);
    if (!admitted) {
      send_all(fd, "-taken\n");
    } else {
      Nursery writer;
      writer.spawn([fd, rx = std::move(rx)] { write_lines(fd, rx); });
      while (in.next(line) && line != "/quit") {
        if (line == "/who") cord.call([&room, name] { room.who(name); });
        else cord.call([&room, name, line] { room.say(name, line); });
      }
      cord.call([&room, name] { room.members.erase(name); });  // this destroys its Sender, and so the writer ends
    }
  }
  close(fd);
}

static int run_server(int port) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 1024) ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size)) {
    std::perror("chat");
    return 1;
  }
  std::printf("listening on port %d\n", ntohs(address.sin_port));
  std::fflush(stdout);

  Room room;
  Cord cord("room");
  if (cord.error()) {
    std::fprintf(stderr, "chat: no room: %s\n", std::strerror(cord.error()));
    return 1;
  }
  Nursery clients;
  for (;;) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) usleep(10000);
      continue;
    }
    if (clients.spawn([fd, &cord, &room] { serve(fd, cord, room); })) close(fd);
  }
}

// ---- the load ----

static int run_load(int port, int clients, int messages) {
  struct Client {
    int fd = -1;
    long heard = 0;
  };
  auto all = std::make_unique<Client[]>(static_cast<size_t>(clients));
  // All clients must be in the room before the first one says something.
  auto [entered, enter] = Channel<int>::make(static_cast<size_t>(clients));
  auto [may_go, go] = Channel<int>::make(0);
  long expected = static_cast<long>(clients - 1) * messages;
  Nursery nursery;
  for (int i = 0; i < clients; i++)
    nursery.spawn([&, i, entered = entered, go = go]() -> int {
      Client& c = all[static_cast<size_t>(i)];
      c.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (c.fd < 0 || connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) return errno;
      Lines in(c.fd);
      std::string line, name = "client" + std::to_string(i);
      if (!send_all(c.fd, name + "\n") || !in.next(line) || line != "+" + name) return EPROTO;
      entered.send(1);
      go.receive();  // returns when the channel is closed
      Nursery both;
      both.spawn([&c, messages]() -> int {
        for (int m = 0; m < messages; m++)
          if (!send_all(c.fd, "message " + std::to_string(m) + "\n")) return errno;
        return 0;
      });
      std::map<std::string, int> next;  // the next message expected from each client
      for (; c.heard < expected && in.next(line); c.heard++) {
        size_t colon = line.find(": message ");
        if (colon == line.npos || std::atoi(line.c_str() + colon + 10) != next[line.substr(0, colon)]++) both.cancel(EPROTO);
        if (both.cancelled()) break;
      }
      if (c.heard < expected) both.cancel(ECONNRESET);
      return both.wait();
    });
  for (int i = 0, one; i < clients && !nursery.cancelled();) i += enter.receive_for(one, 100'000'000) == 0;
  uint64_t start = fiberthread::deadline_after(0);
  may_go.close();
  int error = nursery.wait();
  double seconds = static_cast<double>(fiberthread::deadline_after(0) - start) / 1e9;
  long heard = 0;
  for (int i = 0; i < clients; i++) {
    heard += all[static_cast<size_t>(i)].heard;
    if (all[static_cast<size_t>(i)].fd >= 0) close(all[static_cast<size_t>(i)].fd);
  }
  std::printf("%ld of %ld lines heard%s%s\n", heard, expected * clients, error ? ": " : "", error ? std::strerror(error) : "");
  std::fprintf(stderr, "%.0f lines a second\n", static_cast<double>(heard) / seconds);
  return error != 0;
}

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 5 && !std::strcmp(argv[1], "--load")) return run_load(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  if (argc <= 2 && (argc == 1 || argv[1][0] != '-')) return run_server(argc == 2 ? std::atoi(argv[1]) : 0);
  std::fprintf(stderr, "usage: %s [PORT]\n       %s --load PORT CLIENTS MESSAGES\n", argv[0], argv[0]);
  return 2;
}
