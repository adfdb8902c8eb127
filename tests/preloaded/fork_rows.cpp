// SPDX-License-Identifier: MIT
// The child of a fork must forget what belongs to its parent. The parent gives each part of the library something to forget: waiters,
// connections, descriptors, signals, counts. Then it forks, and the child uses the same things.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "children.h"

namespace {

constexpr int kRight = 7;

// Forks in main and in a thread.
template <class F>
void forks(const char* what, F body) {
  printf("%s: %#x", what, status_of_fork(body));
  int in_thread = 0;
  std::thread([&] { in_thread = status_of_fork(body); }).join();
  printf(", %#x in a thread\n", in_thread);
}

int threads_work() {
  std::atomic<int> n{0};
  std::vector<std::thread> t;
  for (int i = 0; i < 5; i++) t.emplace_back([&] { n++; });
  for (auto& x : t) x.join();
  return n == 5 ? kRight : 1;
}

// ---- waiters ----

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
sem_t sem;
int waiting, go;
std::atomic<int> woken;

void begins_to_wait() {
  pthread_mutex_lock(&mutex);
  waiting++;
  pthread_mutex_unlock(&mutex);
}
void wakes_up_in(pid_t parent) {
  if (getpid() != parent) _exit(1);
  woken++;
}

// Threads of the parent that wait for something stay in the parent, even if the child ends what they wait for.
int waiters() {
  enum { kWaiters = 5 };
  sem_init(&sem, 0, 0);
  pid_t parent = getpid();
  std::vector<std::thread> t;
  for (int i = 0; i < kWaiters; i++) {
    t.emplace_back([&] {
      pthread_mutex_lock(&mutex);
      waiting++;
      while (!go) pthread_cond_wait(&cond, &mutex);
      pthread_mutex_unlock(&mutex);
      wakes_up_in(parent);
    });
    t.emplace_back([&] {
      begins_to_wait();
      while (sem_wait(&sem) != 0) {
      }
      wakes_up_in(parent);
    });
    t.emplace_back([&] {
      begins_to_wait();
      usleep(30'000);
      wakes_up_in(parent);
    });
  }
  for (bool all = false; !all;) {
    pthread_mutex_lock(&mutex);
    all = waiting == 3 * kWaiters;
    pthread_mutex_unlock(&mutex);
    usleep(1000);
  }
  forks("waiters", [] {
    if (threads_work() != kRight) return 2;
    pthread_mutex_lock(&mutex);
    go = 1;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < 3; i++) sem_post(&sem);
    usleep(50'000);
    int before = woken;
    if (threads_work() != kRight) return 3;
    // The semaphore keeps the permits that no thread has taken.
    int n = 0;
    while (sem_trywait(&sem) == 0) n++;
    return woken == before && n == 3 ? kRight : 4;
  });
  pthread_mutex_lock(&mutex);
  go = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&mutex);
  for (int i = 0; i < kWaiters; i++) sem_post(&sem);
  for (auto& x : t) x.join();
  printf("woken in the parent: %d\n", woken.load());
  return 0;
}

// ---- runnable threads, timers, workers, the poller ----

int runnable() {
  enum { kThreads = 30 };
  std::atomic<int> stop = 0, over = 0;
  pid_t parent = getpid();
  std::vector<std::thread> t;
  for (int i = 0; i < kThreads; i++)
    t.emplace_back([&, i] {
      while (!stop) {
        if (getpid() != parent) _exit(1);
        if (i % 3 == 0) sched_yield();
        else usleep(i * 10);
      }
      over++;
    });
  int right = 0;
  for (int i = 0; i < 20; i++) {
    int s = status_of_fork([&] {
      if (threads_work() != kRight) return 2;
      usleep(2000);
      return threads_work() == kRight && over == 0 ? kRight : 3;
    });
    right += s == kRight << 8;
  }
  stop = 1;
  for (auto& x : t) x.join();
  printf("while others can run: %d right\n", right);
  return 0;
}

// A thread of the child waits for a descriptor that one of the parent waits for.
int polled() {
  int to[2], back[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, to) || pipe(back)) return 1;
  char c = 0;
  std::thread reader([&] {
    char in;
    while (read(to[0], &in, 1) == 1 && in != 'e')
      if (write(back[1], &in, 1) != 1) break;
  });
  auto in_child = [&] {
    char got[3] = "";
    std::thread t([&] {
      pollfd p = {back[0], POLLIN};
      if (poll(&p, 1, 5000) == 1 && read(back[0], got, 1) == 1) got[1] = '1';
    });
    if (write(to[1], "x", 1) != 1) return 1;  // the parent's thread answers
    t.join();
    return got[0] == 'x' && got[1] == '1' ? kRight : 2;
  };
  forks("a descriptor that another waits for", in_child);
  if (write(to[1], "e", 1) != 1) c = 1;
  reader.join();
  for (int fd : {to[0], to[1], back[0], back[1]}) close(fd);
  return c;
}

// ---- descriptors ----

// The child closes all descriptors that it does not know.
int closes_all() {
  int p[2];
  if (pipe(p)) return 1;
  std::thread([&] {
    char c;
    std::thread w([&] { usleep(1000), write(p[1], "1", 1); });
    if (read(p[0], &c, 1) != 1) puts("cannot");
    w.join();
  }).join();
  forks("closes what it does not know", [&] {
    auto wait_for_one = [&] {
      char c = 0;
      std::thread r([&] {
        if (read(p[0], &c, 1) != 1) c = 0;
      });
      usleep(5000);
      if (write(p[1], "1", 1) != 1) return false;
      r.join();
      return c == '1';
    };
    if (!wait_for_one()) return 2;
    std::thread([&] {
      for (int fd = 3; fd < 2000; fd++)
        if (fd != p[0] && fd != p[1]) close(fd);
    }).join();
    for (int i = 0; i < 3; i++)
      if (!wait_for_one()) return 3;
    return kRight;
  });
  close(p[0]), close(p[1]);
  return 0;
}

int open_descriptors() {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}

// Nothing that the library opened in a parent stays open in children of children. Some descriptors are opened only when they are needed.
int generations() {
  enum { kGenerations = 10, kLater = 6 };
  auto use = [] {
    int p[2];
    char c;
    if (pipe(p)) return;
    std::thread r([&] {
      if (read(p[0], &c, 1) != 1) puts("cannot");
    });
    usleep(2000);
    if (write(p[1], "1", 1) != 1) puts("cannot");
    r.join();
    close(p[0]), close(p[1]);
  };
  use();
  int first = open_descriptors(), status = 0;
  for (int i = 0; i < kGenerations; i++) {
    pid_t pid = fork();
    if (pid) {
      status = status_within_limit(pid);
      if (i) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
      printf("descriptors of children: %#x\n", status);
      return 0;
    }
    use();
    if (open_descriptors() > first + kLater) _exit(i + 10);
  }
  _exit(kRight);
}

// Threads wait for a descriptor whose number is closed and used again.
int numbers() {
  forks("numbers that are used again", [] {
    for (int i = 0; i < 20; i++) {
      int a[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, a)) return 2;
      char c = 0;
      std::thread r([&] {
        if (read(a[0], &c, 1) != 1) c = 0;
      });
      usleep(500);
      if (write(a[1], "1", 1) != 1) return 3;
      r.join();
      if (c != '1') return 4;
      close(a[0]), close(a[1]);
    }
    return kRight;
  });
  return 0;
}

bool connects(int listener, sockaddr_in at) {
  bool ok = false;
  std::thread([&] {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ok = connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    int other = accept(listener, nullptr, nullptr);
    ok = ok && other >= 0 && write(other, "1", 1) == 1;
    char c;
    ok = ok && read(fd, &c, 1) == 1;
    close(fd), close(other);
  }).join();
  return ok;
}

int connections() {
  int l = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (bind(l, reinterpret_cast<sockaddr*>(&at), size) || listen(l, 10) || getsockname(l, reinterpret_cast<sockaddr*>(&at), &size)) return 1;
  printf("connects: %d\n", connects(l, at));
  forks("connects", [&] {
    for (int i = 0; i < 3; i++)
      if (!connects(l, at)) return 2;
    return kRight;
  });
  close(l);
  return 0;
}

// ---- signals ----

std::atomic<int> handled;
std::atomic<pid_t> handled_in;

int signals() {
  struct sigaction act = {};
  act.sa_handler = [](int) {
    handled++;
    handled_in = getpid();
  };
  sigaction(SIGUSR1, &act, nullptr);
  std::thread([] { kill(getpid(), SIGUSR1); }).join();
  while (!handled) usleep(100);
  forks("signals", [] {
    handled = 0;
    kill(getpid(), SIGUSR1);
    for (int i = 0; handled != 1 && i < 5000; i++) usleep(1000);
    if (handled != 1 || handled_in != getpid()) return 2;
    std::thread t([] {
      raise(SIGUSR1);
      while (handled != 2) usleep(100);
    });
    t.join();
    // Only a parked thread has the signal unblocked, so the library's listener takes it.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    sem_t wait;
    sem_init(&wait, 0, 0);
    sigset_t none;
    std::thread parked([&] {
      sigemptyset(&none);
      pthread_sigmask(SIG_SETMASK, &none, nullptr);
      while (handled != 3) sem_wait(&wait);
    });
    usleep(1000);
    kill(getpid(), SIGUSR1);
    for (int i = 0; handled != 3 && i < 5000; i++) usleep(1000);
    sem_post(&wait);
    parked.join();
    return handled == 3 ? kRight : 3;
  });
  signal(SIGUSR1, SIG_DFL);
  return 0;
}

void other_handler(int) { handled += 100; }

// The child sets an action before it has threads.
int new_action() {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  handled = 0;
  signal(SIGUSR1, other_handler);
  if (threads_work() != kRight) return 2;
  struct sigaction now;
  sigaction(SIGUSR1, nullptr, &now);
  if (now.sa_handler != other_handler) return 3;
  kill(getpid(), SIGUSR1);
  for (int i = 0; handled != 100 && i < 5000; i++) usleep(1000);
  return handled == 100 ? kRight : 4;
}

// A signal that is pending in the parent, for the thread that forks or for the process, is not pending in the child, before and after the
// child has threads.
int pending() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([&] {
    pthread_kill(pthread_self(), SIGUSR1);
    kill(getpid(), SIGUSR2);
    int s = status_of_fork([&] {
      if (threads_work() != kRight) return 2;
      sigset_t now;
      sigpending(&now);
      timespec none = {};
      return !sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2) && sigtimedwait(&set, nullptr, &none) < 0 ? kRight : 3;
    });
    printf("pending: %#x\n", s);
    int sig;
    for (int i = 0; i < 2; i++) sigwait(&set, &sig);
  }).join();
  forks("an action of the child", new_action);
  return 0;
}

// ---- ends ----

// The last thread to end ends the process, however many threads had ended in the parent.
int ends() {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    // Main ends here, then another thread forks.
    std::thread([] {
      usleep(10'000);
      pid_t child = fork();
      if (child == 0) {
        std::thread([] { usleep(5000); }).detach();
        pthread_exit(nullptr);
      }
      int s = status_within_limit(child);
      _exit(s == 0 ? kRight : 1);
    }).detach();
    for (int i = 0; i < 100; i++) std::thread([] {}).join();
    pthread_exit(nullptr);
  }
  printf("ends after main has: %#x\n", status_within_limit(pid));
  return 0;
}

const Part parts[] = {
    {"waiters", waiters}, {"runnable", runnable},       {"polled", polled},   {"closes", closes_all}, {"generations", generations},
    {"numbers", numbers}, {"connections", connections}, {"signals", signals}, {"pending", pending},   {"ends", ends},
};

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // so the lines before a hang are seen
  return run_parts(parts, argc > 1 ? argv[1] : nullptr);
}
