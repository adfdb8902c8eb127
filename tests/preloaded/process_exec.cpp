// SPDX-License-Identifier: MIT
// vfork, posix_spawn and exec from threads, what their children have of them, and a process with other ids.
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
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "children.h"

namespace {

// vfork's child shares the memory. Its parent thread waits, and the others go on.
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
    // These must neither reach nor disturb the parent's threads.
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
  // Calls that would wait, yield, or be recorded for a fiber.
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

// The child waits, yields and takes signals while other threads of the parent are runnable. None of them may run in the child.
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
  std::thread other([&] {
    while (!end) ran++, sched_yield();
  });
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
    const char* argv[] = {
        "sh", "-c", "pwd; echo error >&2; grep -E 'SigBlk|SigIgn' /proc/self/status; [ $$ = $(ps -o pgid= $$) ] && echo group; exit 4",
        nullptr};
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
  // Their children have these ids, too.
  FILE* f = popen("id -u", "r");
  char line[16] = "";
  fgets(line, sizeof line, f);
  pclose(f);
  printf("child's id: %s", line);
  return 0;
}

int becomes_daemon() {
  // The daemon is a grandchild. It writes what it finds to a pipe.
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
      std::thread blocked([] {
        for (;;) pause();
      });
      std::thread busy([] {
        for (;;) asm volatile("");
      });
      auto exec = [] {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        const char* argv[] = {"sh", "-c", "echo exec in $0, $(ls /proc/$$/task | wc -l) threads; exit 12", kind % 2 ? "main" : "thread",
                              nullptr};
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

const Part parts[] = {
    {"vfork", vforks}, {"spawn", spawns}, {"masks", masks_of_children}, {"ids", set_ids}, {"daemon", becomes_daemon}, {"exec", execs},
};

}  // namespace

int main(int argc, char** argv) { return run_parts(parts, argc > 1 ? argv[1] : nullptr); }
