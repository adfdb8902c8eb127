// SPDX-License-Identifier: MIT
// Calls that wait for descriptors, with arguments that are wrong or that leave nothing to wait for.
#include "waiting.h"

#define SAY(call) \
  do { \
    errno = 0; \
    long r_ = (call); \
    at += sprintf(at, " %s", r_ < 0 ? error_name(errno) : r_ == 0 ? "0" : r_ == 1 ? "1" : "more"); \
  } while (0)

static int file = -1;
static const int closed = 1000;  // far from the descriptors that other cases open
static const struct timespec wrong = {0, 1000000000}, negative = {-1, 0}, none = {0, 0};
static void* volatile nowhere = (void*)8;  // volatile, since compilers warn of an address that they can see
static volatile int less = -1, many = 1 << 30;

static int readable_pipe(int fd[2]) {
  assert(pipe2(fd, O_CLOEXEC) == 0 && write(fd[1], "x", 1) == 1);
  return fd[0];
}

static void bad_poll(const struct item* i, char* out) {
  char* at = out;
  struct pollfd p = {-1, POLLIN, 77};
  SAY(poll(&p, 1, 1));
  at += sprintf(at, " %d", p.revents);
  p.fd = closed;
  SAY(poll(&p, 1, -1));
  at += sprintf(at, " %d", p.revents);
  SAY(poll(nowhere, 1, -1));
  SAY(poll(NULL, 0, 3));
  SAY(poll(&p, many, 0));
  SAY(ppoll(&p, 1, &wrong, NULL));
  SAY(ppoll(&p, 1, &negative, NULL));
  SAY(ppoll(NULL, 0, &none, NULL));
}

static void bad_select(const struct item* i, char* out) {
  char* at = out;
  int fd[2], in = readable_pipe(fd);
  struct timeval wrong_tv = {0, -1}, much_tv = {0, 1500000}, none_tv = {0, 0};
  fd_set set;
  FD_ZERO(&set);
  SAY(select(-1, &set, NULL, NULL, &none_tv));
  SAY(select(0, NULL, NULL, NULL, &none_tv));
  SAY(select(0, NULL, NULL, NULL, &wrong_tv));
  FD_SET(closed, &set);
  SAY(select(closed + 1, &set, NULL, NULL, NULL));
  at += sprintf(at, " %d", FD_ISSET(closed, &set) != 0);
  FD_ZERO(&set);
  FD_SET(in, &set);
  SAY(select(in, &set, NULL, NULL, &none_tv));
  FD_SET(in, &set);
  SAY(select(in + 1, &set, NULL, NULL, &much_tv));
  at += sprintf(at, " %d", FD_ISSET(in, &set) != 0);
  SAY(select(in + 1, nowhere, NULL, NULL, &none_tv));
  SAY(pselect(0, NULL, NULL, NULL, &wrong, NULL));
  SAY(pselect(0, NULL, NULL, NULL, &negative, NULL));
  SAY(pselect(0, NULL, NULL, NULL, &none, NULL));
  close(fd[0]), close(fd[1]);
}

static void bad_epoll(const struct item* i, char* out) {
  char* at = out;
  int fd[2], in = readable_pipe(fd), ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event ev = {.events = EPOLLIN};
  SAY(epoll_wait(ep, &ev, 0, 0));
  SAY(epoll_wait(ep, &ev, less, -1));
  SAY(epoll_wait(ep, &ev, many, -1));
  SAY(epoll_wait(closed, &ev, 1, -1));
  SAY(epoll_wait(-1, &ev, 1, -1));
  SAY(epoll_wait(in, &ev, 1, -1));
  SAY(epoll_wait(ep, &ev, 1, 0));
  SAY(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &ev));
  SAY(epoll_ctl(ep, EPOLL_CTL_ADD, file, &ev));
  SAY(epoll_ctl(ep, EPOLL_CTL_ADD, in, &ev));
  SAY(epoll_wait(ep, nowhere, 1, -1));
  SAY(epoll_wait(ep, &ev, 1, -5));
  SAY(epoll_pwait2(ep, &ev, 1, &wrong, NULL));
  SAY(epoll_pwait2(ep, &ev, 1, &negative, NULL));
  SAY(epoll_pwait2(ep, &ev, 1, (void*)8, NULL));
  close(ep), close(fd[0]), close(fd[1]);
}

int main(int argc, char** argv) {
  char name[] = "fileXXXXXX";
  begin(argc, argv);
  close(dup2(0, closed));  // without this, select() would ignore numbers that the table of descriptors never had
  file = mkostemp(name, O_CLOEXEC);
  unlink(name);
  add_item(bad_poll, "what is wrong", "poll", "");
  add_item(bad_select, "what is wrong", "select", "");
  add_item(bad_epoll, "what is wrong", "epoll", "");
  return run_items();
}
