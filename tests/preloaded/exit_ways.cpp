// SPDX-License-Identifier: MIT
// How processes end while threads run, wait and hold locks, and what runs in which order.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace {

void tell(const char* s) { write(1, s, strlen(s)), write(1, "\n", 1); }

struct Local {
  const char* name = nullptr;
  ~Local() {
    if (name) tell(name);
  }
};
thread_local Local local;
struct Global {
  ~Global() { tell("static object"); }
};

std::atomic<int> ready;
// Set when main, or the thread that called exit(), has reached the place that sets it.
std::atomic<bool> in_handler;
void until_in_handler() {
  while (!in_handler) usleep(100);
  usleep(1000);
}

int libc_minor() { return atoi(strchr(gnu_get_libc_version(), '.') + 1); }

void others() {
  static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  static sem_t s;
  pthread_mutex_lock(&m);
  std::thread([] {
    ready++;
    for (;;) pause();
  }).detach();
  std::thread([] {
    ready++;
    for (;;) asm volatile("");
  }).detach();
  std::thread([] {
    ready++;
    pthread_mutex_lock(&m);
  }).detach();
  std::thread([] {
    ready++;
    sem_wait(&s);
  }).detach();
  std::thread([] {
    ready++;
    for (;;) free(malloc(100));
  }).detach();
  std::thread([] {
    static pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mine);
    ready++;
    for (;;) pthread_cond_wait(&c, &mine);
  }).detach();
  std::thread([] {
    int p[2];
    pipe(p);
    ready++;
    char b;
    read(p[0], &b, 1);
  }).detach();
  std::thread([] {
    local.name = "never";
    ready++;
    for (;;) usleep(100);
  }).detach();
  while (ready < 8) usleep(100);
}

void* as_thread(void (*f)()) {
  std::thread(f).join();
  return nullptr;
}

// clang-format off: one line for each case
struct {
  const char* name;
  void (*f)();
} cases[] = {
    {"main returns", [] { atexit([] { tell("atexit"); }); local.name = "local of main"; others(); exit(1); }},
    {"exit in a thread",
     [] {
       atexit([] { tell("atexit"); });
       local.name = "local of main";
       others();
       as_thread([] { local.name = "local of the thread"; exit(2); });
     }},
    {"atexit from a thread",
     [] {
       as_thread([] { atexit([] { tell("from a thread"); }); });
       atexit([] { tell("from main"); });
       exit(3);
     }},
    {"exit in atexit's order",
     [] {
       atexit([] { tell("first"); });
       atexit([] { tell("second"); atexit([] { tell("made at exit"); }); });
       on_exit([](int s, void* p) { tell(s == 4 ? "on_exit 4" : "?"); }, nullptr);
       others();
       exit(4);
     }},
    {"quick_exit",
     [] {
       atexit([] { tell("never"); });
       at_quick_exit([] { tell("quick"); });
       local.name = "never";
       others();
       as_thread([] { quick_exit(5); });
     }},
    {"_exit", [] { atexit([] { tell("never"); }); others(); as_thread([] { _exit(6); }); }},
    {"abort", [] { atexit([] { tell("never"); }); others(); as_thread([] { abort(); }); }},
    {"abort handled", [] { signal(SIGABRT, [](int) { tell("handler"); _exit(7); }); others(); as_thread([] { abort(); }); }},
    {"abort handled, returns", [] { signal(SIGABRT, [](int) { tell("handler"); }); others(); as_thread([] { abort(); }); }},
    {"raise", [] { others(); as_thread([] { raise(SIGTERM); for (;;) pause(); }); }},
    {"kill", [] { others(); as_thread([] { kill(getpid(), SIGKILL); for (;;) pause(); }); }},
    {"fault", [] { others(); as_thread([] { int* volatile nowhere = (int*)8; *nowhere = 1; }); }},
    {"exit waits for threads in atexit",
     [] {
       static std::thread* t;
       static std::atomic<bool> stop;
       t = new std::thread([] { while (!stop) usleep(100); tell("thread ends"); });
       atexit([] { stop = true; t->join(); tell("joined"); });
       exit(8);
     }},
    {"threads made at exit", [] { atexit([] { std::thread([] { tell("thread at exit"); }).join(); }); exit(9); }},
    {"threads made at exit, none before", [] { atexit([] { std::thread([] { tell("thread at exit"); }).join(); }); _exit(0); }},
    {"exit twice",
     [] {
       // While one thread runs the handlers, another calls exit as well.
       atexit([] { tell("atexit"); usleep(20000); });
       std::thread([] { usleep(5000); pause(); }).detach();
       exit(10);
     }},
    {"last thread ends", [] { atexit([] { tell("atexit"); }); std::thread([] { usleep(5000); tell("last"); }).detach(); local.name = "?"; local.name = nullptr; pthread_exit(nullptr); }},
    {"cancelled main, last thread ends", [] { std::thread([] { usleep(5000); tell("last"); }).detach(); pthread_cancel(pthread_self()); pause(); }},
    {"detached threads at the end", [] { for (int i = 0; i < 200; i++) std::thread([] { usleep(rand() % 1000); }).detach(); exit(11); }},
    {"static objects", [] { static Global g; others(); exit(12); }},
    {"stdio is flushed", [] { printf("from a buffer\n"); others(); as_thread([] { printf("from a thread's\n"); exit(13); }); }},
    {"SYS_exit_group", [] { others(); as_thread([] { syscall(SYS_exit_group, 14); }); }},
    {"SYS_exit of a thread", [] { std::thread t([] { syscall(SYS_exit, 3); }); usleep(5000); tell("still here"); t.join(); tell("joined"); _exit(15); }},
    {"limit of CPU time", [] { rlimit l = {1, 2}; setrlimit(RLIMIT_CPU, &l); others(); for (;;) pause(); }},
    {"pthread_exit in main with others", [] { atexit([] { tell("never"); }); others(); std::thread([] { usleep(3000); _exit(16); }).detach(); pthread_exit(nullptr); }},
    {"exit in two threads",
     [] {
       // The second thread ends the process while the first still runs a handler. Since glibc 2.41 it waits for the first to end it.
       atexit([] { tell("atexit"); in_handler = true; while (libc_minor() < 41) pause(); usleep(20000); });
       others();
       std::thread([] { exit(18); }).detach();
       std::thread([] { until_in_handler(); exit(19); }).join();
     }},
    {"_exit beside exit", [] { atexit([] { tell("atexit"); in_handler = true; for (;;) pause(); }); std::thread([] { until_in_handler(); _exit(20); }).detach(); exit(21); }},
    {"exit in a handler of exit", [] { atexit([] { tell("first"); }); atexit([] { tell("second"); exit(22); }); as_thread([] { exit(23); }); }},
    {"exit while streams are locked",
     [] {
       // Since glibc 2.38, exit() waits for the streams.
       static auto hold = [] {
         ready++;
         until_in_handler();
         while (libc_minor() < 38) pause();
       };
       atexit([] { in_handler = true; });
       std::thread([] { flockfile(stderr), hold(), funlockfile(stderr); }).detach();
       std::thread([] { FILE* f = tmpfile(); fputs("x", f); flockfile(f); hold(); usleep(5000); funlockfile(f); }).detach();
       while (ready < 2) usleep(100);
       printf("buffered\n");
       exit(24);
     }},
    {"exit waits for a mutex and a condition",
     [] {
       static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
       static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
       static int state;
       std::thread([] {
         pthread_mutex_lock(&m);
         ready++;
         usleep(5000);
         pthread_mutex_unlock(&m);
         pthread_mutex_lock(&m);
         while (state != 1) pthread_cond_wait(&c, &m);
         state = 2;
         pthread_cond_broadcast(&c);
         pthread_mutex_unlock(&m);
       }).detach();
       while (ready < 1) usleep(100);
       atexit([] {
         pthread_mutex_lock(&m);
         state = 1;
         pthread_cond_broadcast(&c);
         while (state != 2) pthread_cond_wait(&c, &m);
         pthread_mutex_unlock(&m);
         tell("met");
       });
       exit(25);
     }},
    {"static object that threads use",
     [] {
       struct Pool {
         std::atomic<bool> stop{false};
         std::thread threads[4];
         Pool() { for (auto& t : threads) t = std::thread([this] { ready++; while (!stop) sched_yield(); ready--; }); }
         ~Pool() { stop = true; for (auto& t : threads) t.join(); tell(ready == 0 ? "pool ends" : "?"); }
       };
       static Pool pool;
       while (ready < 4) usleep(100);
       as_thread([] { exit(26); });
     }},
    {"exit in a signal handler", [] { atexit([] { tell("atexit"); }); signal(SIGUSR1, [](int) { exit(27); }); std::thread([] { raise(SIGUSR1); }).join(); }},
    {"exit in a handler of a parked main", [] { atexit([] { tell("atexit"); }); signal(SIGUSR1, [](int) { exit(28); }); std::thread([] { usleep(3000); kill(getpid(), SIGUSR1); for (;;) pause(); }).join(); }},
    {"exit in a key's destructor",
     [] {
       atexit([] { tell("atexit"); });
       as_thread([] { pthread_key_t k; pthread_key_create(&k, [](void*) { tell("destructor"); exit(29); }); pthread_setspecific(k, "x"); });
     }},
    {"exit in a thread_local's destructor", [] { struct Exits { int n = 0; ~Exits() { if (n) tell("destructor"), exit(n); } }; atexit([] { tell("atexit"); }); as_thread([] { static thread_local Exits e; e.n = 30; }); }},
    {"exit in a cleanup handler of the cancelled", [] { atexit([] { tell("atexit"); }); as_thread([] { pthread_cleanup_push([](void*) { exit(31); }, nullptr); pthread_cancel(pthread_self()); pause(); pthread_cleanup_pop(0); }); }},
    {"exit in pthread_once", [] { atexit([] { tell("atexit"); }); as_thread([] { static pthread_once_t once = PTHREAD_ONCE_INIT; pthread_once(&once, [] { exit(32); }); }); }},
    {"key's destructors at exit", [] { pthread_key_t k; pthread_key_create(&k, [](void*) { tell("never"); }); pthread_setspecific(k, "x"); exit(33); }},
    {"main's key's destructors at pthread_exit", [] { pthread_key_t k; pthread_key_create(&k, [](void*) { tell("destructor"); in_handler = true; }); pthread_setspecific(k, "x"); std::thread([] { until_in_handler(); tell("last"); }).detach(); pthread_exit(nullptr); }},
    {"exit after main has gone", [] { atexit([] { tell("atexit"); }); local.name = "local of main"; std::thread([] { usleep(300000); local.name = "local of the thread"; exit(34); }).detach(); pthread_exit(nullptr); }},
    {"fork at exit",
     [] {
       atexit([] {
         pid_t pid = fork();
         if (pid == 0) {
           std::thread([] { tell("thread of the child"); }).join();
           _exit(0);
         }
         int status;
         waitpid(pid, &status, 0);
         tell(status == 0 ? "child ended" : "child failed");
       });
       others();
       as_thread([] { exit(35); });
     }},
    {"cancellation at exit",
     [] {
       // A cancellation request acts on the thread that runs the handlers, as on any other.
       static pthread_t caller;
       atexit([] { tell("last handler"); });
       atexit([] { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr); pthread_cancel(caller); usleep(1000); tell("not cancelled"); });
       as_thread([] { caller = pthread_self(); exit(36); });
     }},
    {"pthread_exit in a handler of exit", [] { atexit([] { tell("last handler"); _exit(37); }); atexit([] { tell("ends"); pthread_exit(nullptr); }); as_thread([] { exit(39); }); }},
    {"quick_exit makes threads", [] { at_quick_exit([] { std::thread([] { tell("thread at quick_exit"); }).join(); }); quick_exit(40); }},
    {"streams are flushed beside writers",
     [] {
       for (int i = 0; i < 3; i++) std::thread([] { FILE* f = fopen("/dev/null", "w"); ready++; for (;;) fputs("text\n", f); }).detach();
       while (ready < 3) usleep(100);
       printf("from a buffer\n");
       exit(41);
     }},
    {"exit beside births", [] { for (int i = 0; i < 2; i++) std::thread([] { for (;;) std::thread([] {}).join(); }).detach(); usleep(5000); as_thread([] { exit(42); }); }},
    {"_exit beside a join", [] { std::thread t([] { usleep(3000); _exit(43); }); t.join(); }},
    {"SYS_exit of main, exit of another", [] { atexit([] { tell("atexit"); }); std::thread([] { usleep(5000); exit(44); }).detach(); syscall(SYS_exit, 45); }},
    {"SYS_exit of the last", [] { atexit([] { tell("never"); }); std::thread([] { usleep(300000); syscall(SYS_exit, 46); }).detach(); syscall(SYS_exit, 47); }},
    {"terminate in a thread", [] { as_thread([] { throw 1; }); }},
    {"exec while threads run", [] { others(); as_thread([] { execl("/bin/sh", "sh", "-c", "exit 48", nullptr); }); }},
    {"stdin at exit", [] { std::thread([] { fgetc(fdopen(dup(0), "r")); }).detach(); usleep(1000); exit(17); }},
};
// clang-format on

}  // namespace

int main(int argc, char** argv) {
  rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (auto& c : cases) {
    if (argc > 1 && strcmp(argv[1], c.name) != 0) continue;
    bool takes_a_second = strstr(c.name, "CPU");
    for (int child_of_thread = takes_a_second; child_of_thread < 2; child_of_thread++) {
      fflush(stdout);
      printf("%s:\n", c.name);
      fflush(stdout);
      int status = 0;
      auto run = [&] {
        pid_t pid = fork();
        if (pid == 0) {
          alarm(strstr(c.name, "CPU") ? 250 : 60);  // on a busy machine, some seconds of CPU time take minutes
          c.f();
          _exit(99);
        }
        while (waitpid(pid, &status, 0) != pid) {
        }
      };
      if (child_of_thread) std::thread(run).join();
      else run();
      printf("%#x\n", status);
      fflush(stdout);
    }
  }
  return 0;
}
