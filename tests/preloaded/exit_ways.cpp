// How processes end while threads run, wait and hold locks; what runs in which order.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
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

void others() {
  static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  static sem_t s;
  pthread_mutex_lock(&m);
  std::thread([] { ready++; for (;;) pause(); }).detach();
  std::thread([] { ready++; for (;;) {} }).detach();
  std::thread([] { ready++; pthread_mutex_lock(&m); }).detach();
  std::thread([] { ready++; sem_wait(&s); }).detach();
  std::thread([] { ready++; for (;;) free(malloc(100)); }).detach();
  std::thread([] { static pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER; pthread_mutex_lock(&mine); ready++; for (;;) pthread_cond_wait(&c, &mine); }).detach();
  std::thread([] { int p[2]; pipe(p); ready++; char b; read(p[0], &b, 1); }).detach();
  std::thread([] { local.name = "never"; ready++; for (;;) usleep(100); }).detach();
  while (ready < 8) usleep(100);
}

void* as_thread(void (*f)()) {
  std::thread(f).join();
  return nullptr;
}

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
    {"fault", [] { others(); as_thread([] { *(volatile int*)8 = 1; }); }},
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
    {"stdin at exit", [] { std::thread([] { char c; fgetc(fdopen(dup(0), "r")); }).detach(); usleep(1000); exit(17); }},
};

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
          alarm(60);
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
