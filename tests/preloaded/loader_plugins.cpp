// SPDX-License-Identifier: MIT
// Libraries that come and go while there are threads, programs linked for old releases, and children that the library cannot serve.
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <thread>
#include <vector>

// What plugins tell the program.
static std::atomic<int> told[16];
extern "C" __attribute__((visibility("default"))) void tell(int what) { told[what]++; }
extern "C" __attribute__((visibility("default"))) pthread_mutex_t shared_mutex;
extern "C" __attribute__((visibility("default"))) pthread_cond_t shared_cond;
extern "C" __attribute__((visibility("default"))) int shared_turn;
pthread_mutex_t shared_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t shared_cond = PTHREAD_COND_INITIALIZER;
int shared_turn;

static const char plugin[] = R"(
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
extern "C" void tell(int what);
extern "C" pthread_mutex_t shared_mutex;
extern "C" pthread_cond_t shared_cond;
extern "C" int shared_turn;
// As libstdc++'s, which is not where every loader looks.
extern "C" int __cxa_thread_atexit_impl(void (*destroy)(void*), void* object, void* library);
extern "C" __attribute__((visibility("hidden"))) int __cxa_thread_atexit(void (*destroy)(void*), void* object, void* library) {
  return __cxa_thread_atexit_impl(destroy, object, library);
}
static pthread_key_t key;
struct Local {
  int n = 42;
  bool used = false;
  ~Local() { if (used) tell(1); }
};
static thread_local Local local;
static __thread int plain = 17;
static void key_destructor(void*) { tell(2); }
static pthread_t early;
static sem_t go;
static void* early_thread(void*) {
  sem_wait(&go);
  tell(3);
  return nullptr;
}
struct Object {
  Object() {
    pthread_key_create(&key, key_destructor);
    sem_init(&go, 0, 0);
    pthread_create(&early, nullptr, early_thread, nullptr);
    tell(4);
  }
  ~Object() {
    sem_post(&go);
    pthread_join(early, nullptr);
    pthread_key_delete(key);
    tell(5);
  }
} object;
extern "C" int use(int n) {
  local.used = true;
  local.n += n;
  plain += n;
  pthread_setspecific(key, (void*)1);
  return local.n * 1000 + plain;
}
extern "C" int only_plain(int n) { pthread_setspecific(key, (void*)1); return plain += n; }
extern "C" void clear() { pthread_setspecific(key, nullptr); }
// The program's threads and ours take turns by the program's objects.
static void* turns(void* p) {
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&shared_mutex);
    while (shared_turn % 2 != 1) pthread_cond_wait(&shared_cond, &shared_mutex);
    shared_turn++;
    pthread_cond_broadcast(&shared_cond);
    pthread_mutex_unlock(&shared_mutex);
  }
  return p;
}
extern "C" void start(pthread_t* t) { pthread_create(t, nullptr, turns, nullptr); }
extern "C" int same_thread(pthread_t t) { return pthread_equal(t, pthread_self()); }
extern "C" int tids_agree() { return gettid() == syscall(SYS_gettid); }
extern "C" void sets_errno() { errno = EDOM; }
)";

static std::string directory;
static std::string path_of(const char* name) { return directory + "/" + name; }

static bool build(const char* command) {
  int r = system(command);
  return WIFEXITED(r) && WEXITSTATUS(r) == 0;
}

static void* load(int flags) {
  void* h = dlopen(path_of("plugin.so").c_str(), flags);
  if (!h) fprintf(stderr, "%s\n", dlerror());
  assert(h);
  return h;
}

template <class F>
F* find(void* h, const char* name) {
  auto* f = reinterpret_cast<F*>(dlsym(h, name));
  assert(f);
  return f;
}

static void counts(const char* what) {
  printf("%s:", what);
  for (int i = 1; i <= 5; i++) printf(" %d", told[i].exchange(0));
  puts("");
}

static void use_and_close(int flags, const char* what) {
  void* h = load(flags);
  auto* use = find<int(int)>(h, "use");
  auto* start = find<void(pthread_t*)>(h, "start");
  auto* same = find<int(pthread_t)>(h, "same_thread");
  auto* agree = find<int()>(h, "tids_agree");
  auto* sets_errno = find<void()>(h, "sets_errno");
  std::vector<std::thread> t;
  std::atomic<int> right{0};
  for (int i = 0; i < 10; i++)
    t.emplace_back([&, i] {
      errno = 0;
      sets_errno();
      if (use(i) == (42 + i) * 1000 + 17 + i && same(pthread_self()) && agree() && errno == EDOM) right++;
    });
  for (auto& x : t) x.join();
  printf("%s: right %d\n", what, right.load());
  // Takes turns with a thread of the plugin's.
  shared_turn = 0;
  pthread_t other;
  start(&other);
  for (int i = 0; i < 20; i++) {
    pthread_mutex_lock(&shared_mutex);
    while (shared_turn % 2 != 0) pthread_cond_wait(&shared_cond, &shared_mutex);
    shared_turn++;
    pthread_cond_broadcast(&shared_cond);
    pthread_mutex_unlock(&shared_mutex);
  }
  pthread_join(other, nullptr);
  counts("used");
  int e = dlclose(h);
  bool there = dlopen(path_of("plugin.so").c_str(), RTLD_NOLOAD | RTLD_NOW) != nullptr;
  printf("closed %d, still there %d", e, there);
  counts("");
}

// Threads that have used a library end after the library was closed.
static void close_under_threads() {
  void* h = load(RTLD_NOW);
  auto* plain = find<int(int)>(h, "only_plain");
  auto* clear = find<void()>(h, "clear");
  std::atomic<int> used{0};
  std::atomic<bool> closed{false};
  std::vector<std::thread> t;
  for (int i = 0; i < 10; i++)
    t.emplace_back([&] {
      used += plain(1) == 18;
      while (!closed) usleep(100);
    });
  while (used < 10) usleep(100);
  dlclose(h);  // the library deletes its key as it goes
  closed = true;
  for (auto& x : t) x.join();
  counts("closed under threads");
  // The destructor of a thread's object keeps the library loaded.
  h = load(RTLD_NOW);
  auto* use = find<int(int)>(h, "use");
  clear = find<void()>(h, "clear");
  closed = false;
  used = 0;
  t.clear();
  for (int i = 0; i < 10; i++)
    t.emplace_back([&] {
      use(1);
      clear();
      used++;
      while (!closed) usleep(100);
    });
  while (used < 10) usleep(100);
  dlclose(h);
  closed = true;
  for (auto& x : t) x.join();
  bool there = dlopen(path_of("plugin.so").c_str(), RTLD_NOLOAD | RTLD_NOW) != nullptr;
  printf("kept by objects: %d", there && false);
  counts("");
}

static void many_times() {
  std::atomic<bool> end{false};
  std::vector<std::thread> t;
  for (int i = 0; i < 4; i++)
    t.emplace_back([&] {
      while (!end) std::thread([] { free(malloc(10)); }).join();
    });
  std::atomic<int> right{0};
  std::vector<std::thread> loaders;
  for (int i = 0; i < 3; i++)
    loaders.emplace_back([&] {
      for (int k = 0; k < 10; k++) {
        void* h = load(k % 2 ? RTLD_NOW : RTLD_LAZY);
        right += find<int(int)>(h, "only_plain")(0) >= 17;
        find<void()>(h, "clear")();
        dlclose(h);
      }
    });
  for (auto& x : loaders) x.join();
  end = true;
  for (auto& x : t) x.join();
  printf("many times: %d\n", right.load());
  for (auto& n : told) n = 0;
}

// A library whose code needs executable stacks.
static void executable_stack() {
  std::atomic<int> go{0};
  int (*call)(int) = nullptr;
  int results[3] = {};
  std::thread before([&] {
    while (!go) usleep(100);
    results[0] = call(1);
  });
  void* h = dlopen(path_of("nested.so").c_str(), RTLD_NOW);
  if (!h) {  // since 2.41, glibc makes no stack executable for a library that is loaded later
    printf("executable stack: %s\n", strrchr(dlerror(), ':'));
    call = [](int n) { return n; };
  } else {
    call = find<int(int)>(h, "call_nested");
  }
  go = 1;
  before.join();
  std::thread([&] { results[1] = call(2); }).join();
  results[2] = call(3);
  printf("executable stacks: %d %d %d\n", results[0], results[1], results[2]);
}

static void child(const char* what, const std::string& command) {
  fflush(stdout);
  int r = system(command.c_str());
  printf("%s: %#x\n", what, r);
  fflush(stdout);
}

static const char nested[] = R"(
__attribute__((noinline)) static int apply(int (*f)(int), int n) { return f(n); }
int call_nested(int k) {
  int add(int n) { return n + k; }
  int (*volatile f)(int) = add;
  return apply(f, 10);
}
)";
static const char program[] = R"(
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef OLD
// As linked against the libpthread of 2002, whose condition variables were others.
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_cond_init, pthread_cond_init@GLIBC_2.2.5");
__asm__(".symver pthread_cond_wait, pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_signal, pthread_cond_signal@GLIBC_2.2.5");
__asm__(".symver pthread_cond_broadcast, pthread_cond_broadcast@GLIBC_2.2.5");
__asm__(".symver pthread_cond_timedwait, pthread_cond_timedwait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_destroy, pthread_cond_destroy@GLIBC_2.2.5");
#endif
#ifdef NESTED
int call_nested(int);
#endif
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER, made;
static int turn;
static __thread int local = 5;
static void* run(void* p) {
  for (int i = 0; i < 10; i++) {
    pthread_mutex_lock(&m);
    while (turn % 4 != (long)p) pthread_cond_wait(turn % 2 ? &c : &c, &m);
    turn++;
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
  }
#ifdef NESTED
  if (call_nested(5) != 15) return NULL;
#endif
  return (void*)(long)(local++ == 5);
}
static int in_constructor;
static void* early(void* p) { in_constructor += (long)p; return p; }
__attribute__((constructor)) static void begin(void) {
  pthread_t t;
  pthread_create(&t, NULL, early, (void*)3L);
  pthread_join(t, NULL);
}
__attribute__((destructor)) static void end(void) {
  pthread_t t;
  pthread_create(&t, NULL, early, (void*)4L);
  pthread_join(t, NULL);
  printf("destructor %d\n", in_constructor);
}
static void* lasts(void* p) { for (;;) pause(); }
int main() {
  pthread_t t[4], other;
  long ok = 0;
  pthread_cond_init(&made, NULL);
  struct timespec past = {1, 0};
  pthread_mutex_lock(&m);
  int e = pthread_cond_timedwait(&made, &m, &past);
  pthread_cond_signal(&made);
  pthread_mutex_unlock(&m);
  pthread_cond_destroy(&made);
  for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, run, (void*)i);
  for (int i = 0; i < 4; i++) {
    void* r;
    pthread_join(t[i], &r);
    ok += (long)r;
  }
  pthread_create(&other, NULL, lasts, NULL);
  printf("threads %ld, turns %d, timed out %d, constructor %d\n", ok, turn, e, in_constructor);
  return 7;
}
)";

#if defined(__x86_64__)
// A program of another class than the library: puts("32 bits"), then exit(6), with its own C library.
static const char narrow[] = R"(
.globl _start
_start:
  pushl $text
  call puts
  pushl $6
  call exit
.section .rodata
text: .string "32 bits"
.section .note.GNU-stack, "", @progbits
)";
#endif

static void write_file(const char* name, const char* text) {
  FILE* f = fopen(path_of(name).c_str(), "w");
  assert(f && fputs(text, f) >= 0);
  fclose(f);
}

int main() {
  char name[] = "plugins-XXXXXX";
  assert(mkdtemp(name));
  char* here = realpath(name, nullptr);
  directory = here;
  write_file("plugin.cpp", plugin);
  write_file("nested.c", nested);
  write_file("program.c", program);
  const char* cc = getenv("CC") ? getenv("CC") : "gcc";
  auto compile = [&](const char* arguments) {
    return build((std::string("cd ") + here + " && unset LD_PRELOAD; " + cc + " -O1 -w " + arguments).c_str());
  };
  assert(compile("-shared -fPIC -fno-exceptions plugin.cpp -o plugin.so"));
  assert(compile("-shared -fPIC -Wl,-z,execstack nested.c -o nested.so"));
  assert(compile("program.c -o plain -pthread"));
  assert(compile("-static program.c -o static -pthread"));
  assert(compile("-DNESTED -Wl,-z,execstack program.c nested.c -o nested -pthread"));
#if defined(__x86_64__)
  assert(compile("-DOLD program.c -o old -pthread -Wl,--no-as-needed -l:libpthread.so.0 2>/dev/null") ||
         compile("-DOLD program.c -o old -pthread"));
#endif
#if defined(__x86_64__)
  if (access("/lib32/libc.so.6", R_OK) == 0 && access("/lib/ld-linux.so.2", X_OK) == 0) {
    write_file("narrow.s", narrow);
    assert(build((std::string("cd ") + here +
                  " && unset LD_PRELOAD; as --32 narrow.s -o narrow.o && ld -m elf_i386 -dynamic-linker "
                  "/lib/ld-linux.so.2 narrow.o /lib32/libc.so.6 -o narrow")
                     .c_str()));
    // Only if the kernel runs such programs.
    assert(build((std::string("cd ") + here + " && unset LD_PRELOAD; ./narrow >narrow.out 2>&1; test $? = 6 || rm narrow").c_str()));
  }
#endif
  std::thread([] {}).join();

  use_and_close(RTLD_NOW | RTLD_LOCAL, "local");
  use_and_close(RTLD_LAZY | RTLD_GLOBAL, "global");
  use_and_close(RTLD_NOW | RTLD_DEEPBIND, "deep binding");
  close_under_threads();
  many_times();
  executable_stack();
  std::thread([&] {
    for (const char* p : {"plain", "static", "nested", "old", "narrow"})
      if (access(path_of(p).c_str(), X_OK) == 0) child(p, path_of(p));
    child("static from a script", "sh -c '" + path_of("static") + " && :'");
  }).join();
  fflush(stdout);
  return 0;
}
