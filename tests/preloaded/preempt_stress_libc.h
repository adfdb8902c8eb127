// SPDX-License-Identifier: MIT
// libc and the C++ library for preempt_stress.cpp: malloc, callbacks that wait, exceptions, stdio and dlopen, each in threads that are
// preempted in the middle.
#pragma once
#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <link.h>
#include <stdexcept>
#include <string>

#include "preempt_stress.h"
#include "preempt_stress_floating.h"

// ---- malloc ----

struct Block {
  uint32_t size, seed;
  unsigned char bytes[];
};
constexpr uint32_t kSlots = 128;
static std::atomic<Block*> shared[kSlots];

static void fill(Block* b, uint32_t from) {
  for (uint32_t i = from; i < b->size; i++) b->bytes[i] = static_cast<unsigned char>(b->seed + i);
}
static void look(const Block* b, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) CHECK(b->bytes[i] == static_cast<unsigned char>(b->seed + i), i, b->size);
}

static void allocating(int id) {
  Random random{0x9e3779b97f4a7c15u * (id + 1)};
  while (!enough) {
    uint32_t r = random(), size = r % 8 == 0 ? random() % 100000 : r % 2 ? random() % 20000 : random() % 200;
    Block* b;
    void* p = nullptr;
    if (r % 16 == 1) {
      CHECK(posix_memalign(&p, 256, sizeof *b + size) == 0 && reinterpret_cast<uintptr_t>(p) % 256 == 0);
      b = static_cast<Block*>(p);
    } else if (r % 16 == 2) {
      b = static_cast<Block*>(calloc(1, sizeof *b + size));
      CHECK(b);
      for (uint32_t i = 0; i < size; i++) CHECK(b->bytes[i] == 0);
    } else {
      b = static_cast<Block*>(malloc(sizeof *b + size));
      CHECK(b);
    }
    b->size = size;
    b->seed = random();
    fill(b, 0);
    b = shared[random() % kSlots].exchange(b);  // so that another thread frees it
    if (!b) continue;
    look(b, b->size);
    if (r % 4 == 0) {
      uint32_t before = b->size, after = random() % 30000;
      b = static_cast<Block*>(realloc(b, sizeof *b + after));
      CHECK(b);
      look(b, before < after ? before : after);
      b->size = after;
      fill(b, before < after ? before : after);
      look(b, after);
    }
    free(b);
  }
}

static void free_shared() {
  for (auto& s : shared)
    if (Block* b = s.exchange(nullptr)) {
      look(b, b->size);
      free(b);
    }
}

// ---- callbacks of libc that wait ----

static int objects_at_start;

static int count_object(dl_phdr_info* info, size_t, void* data) {
  CHECK(info->dlpi_phnum > 0);
  int& n = *static_cast<int*>(data);
  if (n++ < 2) {
    lock_a_while(n == 1);
    rare_registers_in_use(n);
  }
  return 0;
}

static void iterating(int) {
  while (!enough) {
    int n = 0;
    dl_iterate_phdr(count_object, &n);
    CHECK(n >= objects_at_start, n, objects_at_start);
  }
}

// Holds the mutex for which the callbacks wait.
static void holding(int id) {
  for (int n = 0; !enough; n++) {
    lock_a_while(n % 4 == 0);
    floating_round(0, false, id + n);
  }
}

static int compare(const void* a, const void* b) {
  unsigned x = *static_cast<const unsigned*>(a), y = *static_cast<const unsigned*>(b);
  if (x % 16 == 0) lock_a_while(x % 256 == 0);
  return x < y ? -1 : x > y;
}

static void sorting(int id) {
  Random random{0x2545f4914f6cdd1du * (id + 1)};
  constexpr int kMany = 800;
  while (!enough) {
    unsigned values[kMany], sum = 0;
    for (auto& v : values) sum += v = random();
    qsort(values, kMany, sizeof *values, compare);
    for (int i = 0; i < kMany; i++) {
      sum -= values[i];
      CHECK(i == 0 || values[i - 1] <= values[i], i);
    }
    CHECK(sum == 0);
    unsigned key = values[kMany / 3];
    auto* found = static_cast<unsigned*>(bsearch(&key, values, kMany, sizeof *values, compare));
    CHECK(found && *found == key);
  }
}

// ---- exceptions ----

struct Alive {
  static thread_local int count;
  std::string text;
  explicit Alive(int n) : text(40, static_cast<char>('a' + n % 26)) { count++; }
  ~Alive() {
    count--;
    CHECK(std::uncaught_exceptions() <= 1, std::uncaught_exceptions());
    CHECK(text.size() == 40);
  }
};
thread_local int Alive::count = 0;

[[gnu::noinline]] static void descend(int depth, int n) {
  Alive alive(n + depth);
  if (depth == 0) {
    if (n % 3 == 0) throw n;
    if (n % 3 == 1) throw std::runtime_error(std::to_string(n) + " is the number of this exception");
    throw std::string("text ") + std::to_string(n);
  }
  try {
    descend(depth - 1, n);
  } catch (const std::string&) {
    CHECK(std::uncaught_exceptions() == 0);
    if (depth == 2) std::rethrow_exception(std::current_exception());
    throw;
  }
}

static void throwing(int id) {
  for (int n = id; !enough; n++) {
    int caught = -1;
    try {
      descend(6, n);
    } catch (int i) {
      caught = i;
    } catch (const std::exception& e) {
      caught = atoi(e.what());
    } catch (const std::string& s) {
      caught = atoi(s.c_str() + 5);
    }
    CHECK(caught == n, caught, n);
    CHECK(Alive::count == 0, Alive::count);
    CHECK(std::uncaught_exceptions() == 0 && !std::current_exception());
  }
}

// ---- stdio ----

static FILE* file;
constexpr int kMostThreads = 80, kMostLines = 2000;
static int lines_written[kMostThreads];

static void printing(int id) {
  Random random{0xda942042e4dd58b5u * (id + 1)};
  for (int n = 0; !enough; n++) {
    double x = ldexp(random(), static_cast<int>(random() % 200) - 100);
    char text[64], rest[16] = "";
    snprintf(text, sizeof text, "%.17g end", x);
    double back = 0;
    CHECK(sscanf(text, "%lf %15s", &back, rest) == 2 && back == x && strcmp(rest, "end") == 0);
    if (n >= kMostLines) continue;
    lines_written[id] = n + 1;
    if (n % 2) {
      CHECK(fprintf(file, "%d %d %.*s\n", id, n, n % 60, "............................................................") > 0);
    } else {
      flockfile(file);
      fprintf(file, "%d ", id);
      fputs_unlocked("", file);
      fprintf(file, "%d ", n);
      if (n % 64 == 0) sched_yield();
      for (int i = 0; i < n % 60; i++) putc_unlocked('.', file);
      putc('\n', file);
      funlockfile(file);
    }
    if (n % 100 == 0) fflush(file);
  }
}

static void read_back() {
  rewind(file);
  int next[kMostThreads] = {}, id, n;
  char line[128];
  while (fgets(line, sizeof line, file)) {
    int at = 0;
    CHECK(sscanf(line, "%d %d%n", &id, &n, &at) == 2 && line[at++] == ' ' && id >= 0 && id < kMostThreads);
    CHECK(n == next[id]++, n, next[id]);
    CHECK(static_cast<int>(strspn(line + at, ".")) == n % 60 && line[at + n % 60] == '\n', id, n);
  }
  for (int i = 0; i < kMostThreads; i++) {
    CHECK(next[i] == lines_written[i], next[i], lines_written[i]);
    lines_written[i] = 0;
  }
  fclose(file);
}

// ---- dlopen ----

// The process builds it before it executes itself anew. Both libraries are the same.
static const char kSource[] =
    "static __thread int value = 42; static int constructed; static __thread char zero[100];\n"
    "__attribute__((constructor)) static void begin(void) { constructed = 1000; }\n"
    "int look(int n) { int i; for (i = 0; i < 100; i++) if (zero[i]) return -1; value += n; n = value; value = 42; return n + constructed; "
    "}\n";
static char libraries[2][128];

static void build_libraries() {
  char directory[100], name[128], command[1024];
  snprintf(directory, sizeof directory, "%.60s/preempt_stress.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  CHECK(mkdtemp(directory));
  snprintf(name, sizeof name, "%s/a.c", directory);
  FILE* f = fopen(name, "w");
  CHECK(f && fputs(kSource, f) > 0 && fclose(f) == 0);
  snprintf(command, sizeof command, "cd %s && %s -shared -fPIC -O1 a.c -o a.so && rm a.c && cp a.so b.so", directory,
           getenv("CC") ? getenv("CC") : "gcc");
  CHECK(system(command) == 0);
  setenv("STRESS_LIBRARIES", directory, 1);
}

static void loading(int id) {
  for (int n = id; !enough; n++) {
    void* handle = dlopen(libraries[n % 2], n % 3 ? RTLD_NOW : RTLD_LAZY);
    CHECK(handle);
    auto* f = reinterpret_cast<int (*)(int)>(dlsym(handle, "look"));
    CHECK(f && f(n) == 1042 + n);
    CHECK(dlsym(handle, "no_such_name") == nullptr && dlerror() != nullptr);
    if (n % 4 == 0) sched_yield();
    CHECK(f(n) == 1042 + n);
    CHECK(dlclose(handle) == 0);
  }
}
