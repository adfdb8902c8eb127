// fork, exec and children from threads, while others run, hold locks and allocate.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

extern char** environ;

namespace {

std::atomic<bool> stop;

int status_of(pid_t pid) {
  int status = -1;
  pid_t r;
  do r = waitpid(pid, &status, 0);
  while (r < 0 && errno == EINTR);
  return r == pid ? status : -2;
}

int in_child(int (*f)()) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(f());
  }
  return status_of(pid);
}

// Runs f in a thread.
template <class F>
void in_thread(F f) {
  std::thread(f).join();
}

void spawn(const char* command, int* status) {
  const char* argv[] = {"sh", "-c", command, nullptr};
  pid_t pid;
  int e = posix_spawn(&pid, "/bin/sh", nullptr, nullptr, (char**)argv, environ);
  *status = e ? -e : status_of(pid);
}

// ---- what goes on meanwhile ----

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
      case 7: for (volatile int i = 0; i < 2000;) i = i + 1;
        break;
    }
  }
}

// What a child must be able to do, whatever its parent's other threads were at.
int child_works() {
  // Locks that nobody but the forking thread held are free or belong to threads that are gone: new ones work.
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
  pthread_atfork([] { order += "p3 "; }, nullptr, [] {
    order += "c3 ";
    // Handlers may use threads' things.
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

// A lock that the forking thread holds is the child's.
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

// What belongs to a thread stays its own in the child.
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
             (long)pthread_getspecific(key), sigismember(&now, SIGUSR2), pthread_equal(self, pthread_self()), inside,
             gettid() == getpid(), name, e == EDOM);
      fflush(stdout);
      _exit(0);
    }
    status_of(pid);
  });
  return 0;
}

// The forking thread ends in the child by its own ways.
int ends_of_child() {
  in_thread([] {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      atexit([] { printf("child: atexit\n"); });
      pthread_exit(nullptr);  // the last thread
    }
    printf("pthread_exit in a child: %#x\n", status_of(pid));
    fflush(stdout);
    // NPTL from 2.43 on hangs there: it joins by a word that the kernel clears when a thread ends, but fork has the kernel clear another.
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
  // It returns from its start routine, in a child.
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
  // And for any child, together.
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
  // Others run while many wait for children that wait for them.
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

// vfork's child shares the memory; its parent thread waits, the others go on.
[[gnu::noinline]] int vfork_exec(const char* command) {
  pid_t pid = vfork();
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", command, (char*)nullptr);
    _exit(127);
  }
  return status_of(pid);
}
volatile int shared_by_vfork;
[[gnu::noinline]] int vfork_exit() {
  shared_by_vfork = 0;
  pid_t pid = vfork();
  if (pid == 0) {
    shared_by_vfork = 5;
    // These must neither reach nor disturb the parent.
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    signal(SIGUSR1, SIG_DFL);
    setpgid(0, 0);
    close(open("/dev/null", O_RDONLY));
    dup2(2, 900);
    _exit(6);
  }
  return status_of(pid);
}
[[gnu::noinline]] int vfork_calls() {
  // Calls that would wait, yield or be recorded in a fiber.
  pid_t pid = vfork();
  if (pid == 0) {
    int bad = 0;
    if (getpid() != gettid()) bad = 1;
    sched_yield();
    usleep(1000);
    timespec t = {0, 1000};
    nanosleep(&t, nullptr);
    if (syscall(SYS_gettid) != getpid()) bad = 2;
    struct sigaction sa;
    sigaction(SIGUSR1, nullptr, &sa);
    if (sa.sa_handler != SIG_IGN) bad = 3;
    setpriority(PRIO_PROCESS, 0, 5);
    if (getpriority(PRIO_PROCESS, 0) != 5) bad = 4;
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) bad = 5;
    if (setuid(getuid()) != 0 || setgid(getgid()) != 0) bad = 6;
    if (prctl(PR_SET_NAME, "child") != 0) bad = 7;
    kill(getpid(), 0);
    pthread_sigmask(SIG_SETMASK, nullptr, nullptr);
    raise(0);
    _exit(bad);
  }
  return status_of(pid);
}
[[gnu::noinline]] int vfork_killed() {
  pid_t pid = vfork();
  if (pid == 0) {
    signal(SIGUSR1, SIG_DFL);
    raise(SIGUSR1);
    _exit(1);
  }
  return status_of(pid);
}
[[gnu::noinline]] int vfork_nested() {
  pid_t pid = vfork();
  if (pid == 0) {
    pid_t inner = vfork();
    if (inner == 0) _exit(3);
    int status;
    waitpid(inner, &status, 0);
    _exit(WEXITSTATUS(status) + 1);
  }
  return status_of(pid);
}

// The child waits, yields and takes signals while other threads of the parent want to run: none of them may run in it.
pid_t runs_in;
volatile int handled_in_child;
[[gnu::noinline]] int vfork_waits() {
  int p[2], ready[2];
  pipe(p);
  pipe(ready);
  std::atomic<bool> end{false};
  std::atomic<int> strangers{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 4; i++)
    others.emplace_back([&] {
      while (!end) {
        if (getpid() != runs_in) strangers++;
        sched_yield();
      }
    });
  std::thread writer([&] {
    char c;
    read(ready[0], &c, 1);
    usleep(2000);
    write(p[1], "x", 1);
  });
  static sem_t sem;
  sem_init(&sem, 0, 0);
  std::thread poster([&] {
    usleep(5000);
    sem_post(&sem);
  });
  handled_in_child = 0;
  struct sigaction sa = {};
  sa.sa_handler = [](int) {
    if (getpid() != runs_in) handled_in_child = handled_in_child + 1;
  };
  sigaction(SIGUSR2, &sa, nullptr);
  pid_t pid = vfork();
  if (pid == 0) {
    for (int i = 0; i < 50; i++) sched_yield();
    write(ready[1], "r", 1);
    char c = 0;
    int bad = read(p[0], &c, 1) == 1 && c == 'x' ? 0 : 1;
    pollfd f = {p[0], POLLIN, 0};
    if (poll(&f, 1, 2) != 0) bad |= 2;
    kill(getpid(), SIGUSR2);
    if (handled_in_child != 1) bad |= 4;
    sem_wait(&sem);
    if (getpid() == runs_in) bad |= 8;
    _exit(bad);
  }
  int status = status_of(pid);
  end = true;
  for (auto& t : others) t.join();
  writer.join();
  poster.join();
  return status | strangers << 16;
}

int vforks() {
  runs_in = getpid();
  signal(SIGUSR1, SIG_IGN);
  std::vector<std::thread> t;
  std::atomic<int> wrong{0};
  std::atomic<unsigned long> ran{0};
  std::atomic<bool> end{false};
  std::thread other([&] { while (!end) ran++, sched_yield(); });
  for (int i = 0; i < 8; i++)
    t.emplace_back([&] {
      for (int k = 0; k < 5; k++) {
        if (vfork_exec("exit 5") != 5 << 8) wrong += 1;
        if (vfork_exec("kill -9 $$") != 9) wrong += 100;
      }
    });
  for (auto& x : t) x.join();
  end = true;
  other.join();
  in_thread([&] {
    printf("vfork: %d wrong, exit %#x", wrong.load(), vfork_exit());
    printf(", shared %d", shared_by_vfork);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    struct sigaction sa;
    sigaction(SIGUSR1, nullptr, &sa);
    printf(", mask %d, action %d", sigismember(&now, SIGTERM), sa.sa_handler == SIG_IGN);
    printf(", calls %#x", vfork_calls());
    printf(", priority %d", getpriority(PRIO_PROCESS, 0));
    printf(", killed %#x", vfork_killed());
    printf(", nested %#x\n", vfork_nested());
    for (int i = 0; i < 5; i++) printf("a child that waits: %#x\n", vfork_waits());
  });
  return 0;
}

// posix_spawn's attributes and file actions.
int spawns() {
  in_thread([] {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    char path[] = "spawn-output";
    posix_spawn_file_actions_addopen(&fa, 1, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&fa, 1, 2);
    posix_spawn_file_actions_addchdir_np(&fa, "/");
    sigset_t mask, def;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigemptyset(&def);
    sigaddset(&def, SIGUSR1);
    posix_spawnattr_setsigmask(&at, &mask);
    posix_spawnattr_setsigdefault(&at, &def);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    signal(SIGUSR1, SIG_IGN);
    const char* argv[] = {"sh", "-c", "pwd; echo error >&2; grep -E 'SigBlk|SigIgn' /proc/self/status; [ $$ = $(ps -o pgid= $$) ] && echo group; exit 4", nullptr};
    pid_t pid;
    int e = posix_spawnp(&pid, "sh", &fa, &at, (char**)argv, environ);
    printf("spawn: %d %#x:", e, e ? 0 : status_of(pid));
    FILE* f = fopen(path, "r");
    char line[128];
    while (f && fgets(line, sizeof line, f)) line[strcspn(line, "\n")] = 0, printf(" %s", line);
    puts("");
    if (f) fclose(f);
    e = posix_spawn(&pid, "/nonexistent", nullptr, nullptr, (char**)argv, environ);
    printf("spawn of nothing: %s\n", strerror(e));
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    printf("mask after it: %d\n", sigismember(&now, SIGUSR2));
  });
  std::vector<std::thread> t;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 16; i++)
    t.emplace_back([&, i] {
      char command[32];
      snprintf(command, sizeof command, "exit %d", i);
      for (int k = 0; k < 3; k++) {
        int status;
        spawn(command, &status);
        if (WEXITSTATUS(status) != i) wrong++;
      }
    });
  for (auto& x : t) x.join();
  printf("spawns: %d wrong\n", wrong.load());
  return 0;
}

// A child has the mask of the thread that made it, and default actions.
int masks_of_children() {
  in_thread([] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR2, [](int) {});
    for (int how = 0; how < 4; how++) {
      const char* command = "grep -E 'SigBlk|SigIgn|SigCgt' /proc/self/status | tr '\\n\\t' '  '";
      const char* argv[] = {"sh", "-c", command, nullptr};
      FILE* f = nullptr;
      if (how == 0) {
        f = popen(command, "r");
      } else {
        int p[2];
        pipe(p);
        pid_t pid = 0;
        if (how == 1) {
          pid = fork();
          if (pid == 0) dup2(p[1], 1), execv("/bin/sh", (char**)argv), _exit(1);
        } else if (how == 2) {
          pid = vfork();
          if (pid == 0) dup2(p[1], 1), execv("/bin/sh", (char**)argv), _exit(1);
        } else {
          posix_spawn_file_actions_t fa;
          posix_spawn_file_actions_init(&fa);
          posix_spawn_file_actions_adddup2(&fa, p[1], 1);
          posix_spawn(&pid, "/bin/sh", &fa, nullptr, (char**)argv, environ);
        }
        close(p[1]);
        status_of(pid);
        f = fdopen(p[0], "r");
      }
      char line[256] = "";
      fgets(line, sizeof line, f);
      printf("child %d: %s\n", how, line);
      how == 0 ? pclose(f) : fclose(f);
    }
  });
  return 0;
}

int set_ids() {
  std::vector<std::thread> others;
  std::atomic<bool> end{false};
  for (int i = 0; i < 6; i++)
    others.emplace_back([&, i] {
      while (!end) i % 2 ? (void)usleep(100) : (void)sched_yield();
    });
  in_thread([] {
    int a = setgroups(0, nullptr), b = setresgid(1, 1, 1), c = setresuid(1, 1, 1);
    printf("ids: %d %d %d, %d %d\n", a, b, c, getuid(), getgid());
  });
  std::atomic<int> right{0};
  for (int i = 0; i < 20; i++) in_thread([&] { right += syscall(SYS_geteuid) == 1 && syscall(SYS_getegid) == 1; });
  end = true;
  for (auto& x : others) x.join();
  printf("threads with them: %d, again %d\n", right.load(), setuid(0) == -1 && errno == EPERM);
  // Their children, too.
  FILE* f = popen("id -u", "r");
  char line[16] = "";
  fgets(line, sizeof line, f);
  pclose(f);
  printf("child's id: %s", line);
  return 0;
}

int becomes_daemon() {
  // The daemon is a grandchild; it writes its story to a pipe.
  int p[2];
  pipe(p);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    in_thread([&] {
      if (daemon(1, 1) != 0) _exit(1);
      char text[64];
      int n = 0;
      std::thread([&] { n = 5; }).join();
      snprintf(text, sizeof text, "daemon: %d, session %d, thread %d\n", n, getsid(0) == getpid() || getsid(0) > 0, gettid() == getpid());
      write(p[1], text, strlen(text));
      _exit(0);
    });
  }
  close(p[1]);
  char text[64] = "";
  FILE* f = fdopen(p[0], "r");
  fgets(text, sizeof text, f);
  fclose(f);
  printf("%#x %s", status_of(pid), text);
  return 0;
}

int execs() {
  for (int how = 0; how < 4; how++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      static int kind;
      kind = how;
      std::thread blocked([] { for (;;) pause(); });
      std::thread busy([] { for (;;) asm volatile(""); });
      auto exec = [] {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        const char* argv[] = {"sh", "-c", "echo exec in $0, $(ls /proc/$$/task | wc -l) threads; exit 12", kind % 2 ? "main" : "thread", nullptr};
        if (kind < 2) execv("/bin/sh", (char**)argv);
        else execvp("sh", (char**)argv);
        _exit(1);
      };
      if (how % 2) exec();
      std::thread(exec).join();
    }
    printf("exec: %#x\n", status_of(pid));
  }
  in_thread([] {
    errno = 0;
    const char* argv[] = {"x", nullptr};
    int r = execv("/nonexistent", (char**)argv);
    printf("exec of nothing: %d %s\n", r, strerror(errno));
  });
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

// Raw forks.
int raw_forks() {
  in_thread([] {
    for (int how = 0; how < 3; how++) {
      fflush(stdout);
      long pid = how == 0 ? _Fork() : how == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : syscall(SYS_clone, SIGCHLD | 0x01000000 /* CHILD_SETTID */, 0, 0, 0, 0);
      if (pid == 0) {
        int n = 0;
        std::thread([&] { n = 3; }).join();
        _exit(n + how);
      }
      printf("raw %d: %#x\n", how, status_of(pid));
    }
    // clone() with a stack of its own and a copy of the memory.
    static char stack[65536];
    int pid = clone([](void*) -> int { int n = 0; std::thread([&] { n = 9; }).join(); return n; }, stack + sizeof stack, SIGCHLD, nullptr);
    printf("clone: %#x\n", status_of(pid));
  });
  return 0;
}

struct {
  const char* name;
  int (*run)();
} parts[] = {
    {"atfork", fork_order},       {"locks", fork_with_lock},  {"keeps", fork_keeps},      {"ends", ends_of_child},
    {"pending", nothing_pending}, {"children", own_children}, {"waiting", while_waiting}, {"vfork", vforks},
    {"spawn", spawns},            {"masks", masks_of_children}, {"ids", set_ids},         {"daemon", becomes_daemon},
    {"exec", execs},              {"noise", forks_while_all_goes_on}, {"raw", raw_forks},
};

}  // namespace

int main(int argc, char** argv) {
  setenv("LC_ALL", "C", 1);
  // Whoever started us may ignore libc's own two signals, and children see what libc made of that.
  for (int sig = 32; sig <= 33; sig++) {
    unsigned long default_action[4] = {};
    syscall(SYS_rt_sigaction, sig, default_action, nullptr, 8);
  }
  for (auto& part : parts) {
    if (argc > 1 && strcmp(argv[1], part.name) != 0) continue;
    printf("-- %s\n", part.name);
    fflush(stdout);
    // Each in a process of its own, in which threads have been made.
    pid_t pid = fork();
    if (pid == 0) {
      alarm(100);
      std::thread([] {}).join();
      part.run();
      fflush(stdout);
      _exit(0);
    }
    int s = status_of(pid);
    if (s) printf("%s: ended with %#x\n", part.name, s);
    fflush(stdout);
  }
  return 0;
}
