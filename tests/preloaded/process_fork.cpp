// SPDX-License-Identifier: MIT
// fork from threads, while others run, hold locks and allocate.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nptl.h"
#include "children.h"

namespace {

std::atomic<bool> stop;

// ---- what other threads do meanwhile ----

std::mutex locks[8];
std::condition_variable changed;

void noise(int n) {
  unsigned random = n;
  while (!stop) {
    random = random * 1664525 + 1013904223;
    switch (random >> 24 & 7) {
      case 0: free(malloc(random >> 12 & 65535)); break;
      case 1: {
        std::lock_guard l(locks[n % 8]);
        std::map<int, std::string> m;
        for (int i = 0; i < 20; i++) m[i] = std::string(i, 'x');
        break;
      }
      case 2: {
        std::unique_lock l(locks[n % 8]);
        changed.wait_for(l, std::chrono::microseconds(100));
        break;
      }
      case 3: sched_yield(); break;
      case 4: {
        std::lock_guard l(locks[n % 8]);
        usleep(50);
        break;
      }
      case 5: std::thread([] {}).join(); break;
      case 6: {
        FILE* f = fopen("/dev/null", "w");
        if (f) fprintf(f, "%d", n), fclose(f);
        break;
      }
      case 7:
        for (volatile int i = 0; i < 2000;) i = i + 1;
        break;
    }
  }
}

// Does what a child must be able to do, whatever its parent's other threads were doing.
int child_works() {
  // A lock that another thread held may stay locked for ever, so this uses new locks.
  std::mutex m;
  std::condition_variable c;
  int n = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++)
    threads.emplace_back([&] {
      void* p = malloc(1000);
      std::lock_guard l(m);
      n++;
      c.notify_all();
      free(p);
    });
  {
    std::unique_lock l(m);
    c.wait(l, [&] { return n == 8; });
  }
  for (auto& t : threads) t.join();
  auto f = std::async(std::launch::async, [] { return 5; });
  if (f.get() != 5) return 1;
  FILE* p = popen("echo hello", "r");
  char line[16] = "";
  if (!p || !fgets(line, sizeof line, p) || strcmp(line, "hello\n") != 0 || pclose(p) != 0) return 2;
  if (WEXITSTATUS(system("exit 3")) != 3) return 3;
  pid_t pid = fork();
  if (pid == 0) {
    int r = 1;
    std::thread([&] { r = 7; }).join();
    _exit(r);
  }
  if (WEXITSTATUS(status_of(pid)) != 7) return 4;
  if (getpid() != gettid()) return 5;
  timer_t t;
  struct sigevent e = {};
  e.sigev_notify = SIGEV_NONE;
  if (timer_create(CLOCK_MONOTONIC, &e, &t) != 0) return 6;
  return 0;
}

// ---- atfork ----

std::string order;
int fork_order() {
  order.clear();
  pthread_atfork([] { order += "p1 "; }, [] { order += "P1 "; }, [] { order += "c1 "; });
  pthread_atfork([] { order += "p2 "; }, [] { order += "P2 "; }, [] { order += "c2 "; });
  pthread_atfork(nullptr, nullptr, nullptr);
  pthread_atfork([] { order += "p3 "; }, nullptr,
                 [] {
                   order += "c3 ";
                   // Handlers may use mutexes and the like.
                   pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
                   pthread_mutex_lock(&m);
                   pthread_mutex_unlock(&m);
                 });
  in_thread([] {
    int p[2];
    pipe(p);
    pid_t pid = fork();
    if (pid == 0) {
      write(p[1], order.data(), order.size());
      _exit(0);
    }
    status_of(pid);
    char text[128] = "";
    read(p[0], text, sizeof text - 1);
    printf("atfork: parent %s, child %s\n", order.c_str(), text);
  });
  return 0;
}

// A lock that the forking thread holds belongs to the child.
int fork_with_lock() {
  static std::mutex m;
  static std::recursive_mutex r;
  static pthread_mutex_t checked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
  in_thread([] {
    m.lock();
    r.lock();
    pthread_mutex_lock(&checked);
    pid_t pid = fork();
    if (pid == 0) {
      int e = pthread_mutex_unlock(&checked);
      bool again = false;
      std::thread([&] { again = m.try_lock(); }).join();
      bool other_recursive = true;
      std::thread([&] { other_recursive = r.try_lock(); }).join();
      m.unlock();
      bool free = false;
      std::thread([&] { free = m.try_lock(); }).join();
      printf("locks in the child: unlock %d, another %d %d, free %d\n", e, again, other_recursive, free);
      fflush(stdout);
      _exit(0);
    }
    status_of(pid);
    m.unlock();
    r.unlock();
    printf("locks in the parent: unlock %d\n", pthread_mutex_unlock(&checked));
  });
  return 0;
}

// What belongs to the forking thread stays its own in the child.
thread_local int local = 1;
int fork_keeps() {
  static pthread_key_t key;
  pthread_key_create(&key, [](void*) {});
  in_thread([] {
    local = 42;
    pthread_setspecific(key, (void*)77);
    pthread_setname_np(pthread_self(), "named");
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    pthread_t self = pthread_self();
    errno = EDOM;
    pid_t pid = fork();
    if (pid == 0) {
      int e = errno;
      sigset_t now;
      pthread_sigmask(SIG_BLOCK, nullptr, &now);
      pthread_attr_t a;
      void* low;
      size_t size;
      pthread_getattr_np(pthread_self(), &a);
      pthread_attr_getstack(&a, &low, &size);
      char here;
      bool inside = &here >= (char*)low && &here < (char*)low + size;
      int inner = 0;
      std::thread([&] { inner = local; }).join();
      char name[16] = "";
      pthread_getname_np(pthread_self(), name, sizeof name);
      printf("kept: local %d, inner %d, key %ld, mask %d, self %d, stack %d, tid %d, name %s, errno %d\n", local, inner,
             (long)pthread_getspecific(key), sigismember(&now, SIGUSR2), pthread_equal(self, pthread_self()), inside, gettid() == getpid(),
             name, e == EDOM);
      fflush(stdout);
      _exit(0);
    }
    status_of(pid);
  });
  return 0;
}

// The forking thread ends the child in its usual ways.
int ends_of_child() {
  in_thread([] {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      atexit([] { printf("child: atexit\n"); });
      pthread_exit(nullptr);  // the child's last thread
    }
    printf("pthread_exit in a child: %#x\n", status_of(pid));
    fflush(stdout);
    // NPTL hangs there from 2.43 on. It joins by a word that the kernel clears when a thread ends, but fork makes the kernel clear another
    // word.
    bool joins = nptl_release() < 43;
    pid = fork();
    if (pid == 0) {
      static pthread_t self;
      self = pthread_self();
      std::thread([joins] {
        if (joins) pthread_join(self, nullptr);
        printf("child: joined the one that forked\n");
      }).detach();
      pthread_exit(nullptr);
    }
    printf("joined in a child: %#x\n", status_of(pid));
  });
  // The forking thread returns from its start routine in a child.
  fflush(stdout);
  pid_t parent = getpid();
  static pid_t made;
  std::thread([] { made = fork(); }).join();
  if (getpid() != parent) {
    printf("unreachable\n");
    _exit(1);
  }
  printf("returns in a child: %#x\n", status_of(made));
  return 0;
}

// Pending signals, timers and cancellation requests are not inherited.
int nothing_pending() {
  static sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  in_thread([] {
    pthread_kill(pthread_self(), SIGUSR1);
    kill(getpid(), SIGUSR1);
    pid_t pid = fork();
    if (pid == 0) {
      sigset_t p;
      sigpending(&p);
      _exit(sigismember(&p, SIGUSR1));
    }
    printf("pending in the child: %#x\n", status_of(pid));
    int sig;
    sigwait(&set, &sig);
    timespec zero = {0, 0};
    printf("pending here: %d, then %d\n", sig, sigtimedwait(&set, nullptr, &zero));
  });
  return 0;
}

// Many threads wait for their own children.
int own_children() {
  std::vector<std::thread> t;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 16; i++)
    t.emplace_back([&, i] {
      for (int k = 0; k < 5; k++) {
        pid_t pid = fork();
        if (pid == 0) {
          usleep(100 * (i * 7 % 5));
          _exit(i * 5 + k);
        }
        siginfo_t info = {};
        int how = (i + k) % 3;
        if (how == 0) {
          if (WEXITSTATUS(status_of(pid)) != i * 5 + k) wrong++;
        } else if (how == 1) {
          if (waitid(P_PID, pid, &info, WEXITED) != 0 || info.si_status != i * 5 + k) wrong++;
        } else {
          struct rusage u;
          int status;
          if (wait4(pid, &status, 0, &u) != pid || WEXITSTATUS(status) != i * 5 + k) wrong++;
        }
      }
    });
  for (auto& x : t) x.join();
  printf("own children: %d wrong\n", wrong.load());
  // Threads wait together for any child.
  for (int i = 0; i < 16; i++)
    if (fork() == 0) usleep(1000 * i), _exit(0);
  std::atomic<int> got{0}, none{0};
  t.clear();
  for (int i = 0; i < 20; i++)
    t.emplace_back([&] {
      if (wait(nullptr) > 0) got++;
      else if (errno == ECHILD) none++;
    });
  for (auto& x : t) x.join();
  printf("any children: %d, %d\n", got.load(), none.load());
  return 0;
}

int while_waiting() {
  // Other threads run while many wait for children, and these children wait for those other threads.
  int p[2];
  pipe(p);
  std::vector<std::thread> t;
  std::atomic<int> done{0};
  for (int i = 0; i < 20; i++)
    t.emplace_back([&] {
      pid_t pid = fork();
      if (pid == 0) {
        char c;
        _exit(read(p[0], &c, 1) == 1 ? 3 : 4);
      }
      if (WEXITSTATUS(status_of(pid)) == 3) done++;
    });
  std::thread writer([&] {
    for (int i = 0; i < 20; i++) write(p[1], "x", 1), usleep(100);
  });
  writer.join();
  for (auto& x : t) x.join();
  printf("while others wait: %d\n", done.load());
  return 0;
}

int forks_while_all_goes_on() {
  std::vector<std::thread> others;
  stop = false;
  for (int i = 0; i < 8; i++) others.emplace_back(noise, i);
  std::atomic<int> wrong{0};
  std::vector<std::thread> t;
  for (int i = 0; i < 4; i++)
    t.emplace_back([&] {
      for (int k = 0; k < 3; k++) {
        int s = in_child(child_works);
        if (s != 0) {
          wrong++;
          fprintf(stderr, "child: %#x\n", s);
        }
      }
    });
  for (auto& x : t) x.join();
  stop = true;
  for (auto& x : others) x.join();
  printf("forks while all goes on: %d wrong\n", wrong.load());
  return 0;
}

// Forks by _Fork() and by system calls.
int raw_forks() {
  in_thread([] {
    for (int how = 0; how < 3; how++) {
      fflush(stdout);
      long pid = how == 0   ? _Fork()
                 : how == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                            : syscall(SYS_clone, SIGCHLD | 0x01000000 /* CHILD_SETTID */, 0, 0, 0, 0);
      if (pid == 0) {
        int n = 0;
        std::thread([&] { n = 3; }).join();
        _exit(n + how);
      }
      printf("raw %d: %#x\n", how, status_of(pid));
    }
    // clone() with a stack of its own and a copy of the memory.
    static char stack[65536];
    int pid = clone(
        [](void*) -> int {
          int n = 0;
          std::thread([&] { n = 9; }).join();
          return n;
        },
        stack + sizeof stack, SIGCHLD, nullptr);
    printf("clone: %#x\n", status_of(pid));
  });
  return 0;
}

const Part parts[] = {
    {"atfork", fork_order},     {"locks", fork_with_lock},          {"keeps", fork_keeps},
    {"ends", ends_of_child},    {"pending", nothing_pending},       {"children", own_children},
    {"waiting", while_waiting}, {"noise", forks_while_all_goes_on}, {"raw", raw_forks},
};

}  // namespace

int main(int argc, char** argv) { return run_parts(parts, argc > 1 ? argv[1] : nullptr); }
