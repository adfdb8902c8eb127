// SPDX-License-Identifier: MIT
// Fibers preempted about every 100 µs, in the middle of whatever they do: their results must be the same, in libc, with its
// locks held, in callbacks of libc that wait themselves, in unwinding, in signal handlers, with odd states of the floating
// point unit, on small stacks too. Arguments: [case [milliseconds]], for soaking one alone.
// Above 500 lines, because its last case runs all others at once in one process.
#include <atomic>
#include <cerrno>
#include <cfenv>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <exception>
#include <initializer_list>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

#if defined(__clang__)
#pragma STDC FENV_ACCESS ON  // else it computes by the default rounding, where it can before the program runs
#endif

#define CHECK(ok, ...) ((ok) ? (void)0 : failed(__LINE__, #ok __VA_OPT__(, ) __VA_ARGS__))
[[noreturn]] static void failed(int line, const char* what, long a = 0, long b = 0) {
  char text[256];
  int n = snprintf(text, sizeof text, "preempt_stress.cpp:%d: %s (%ld, %ld)\n", line, what, a, b);
  if (write(2, text, n)) {
  }
  if (getenv("STRESS_ABORT")) abort();
  _exit(1);
}

static uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

struct Random {
  uint64_t x;
  uint32_t operator()() {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x >> 16;
  }
};

static std::atomic<bool> enough;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long under_mutex;  // twice as many as times locked

static void lock_a_while(bool yields) {
  pthread_mutex_lock(&mutex);
  long before = under_mutex++;
  if (yields) sched_yield();
  for (int i = 0; i < 300; i++) asm volatile("" ::: "memory");
  CHECK(under_mutex == before + 1, under_mutex, before);
  under_mutex++;
  pthread_mutex_unlock(&mutex);
}

// ---- floating point ----

// Each some hundred microseconds, long enough to be preempted in; the results depend on the rounding mode.
constexpr int kTerms = 20000;
[[gnu::noinline]] static double sum_double(int terms) {
  double s = 0;
  for (int k = 1; k <= terms; k++) s += 1.0 / k;
  return s;
}
// On the x87 stack; elsewhere in software, which follows the rounding mode as well.
[[gnu::noinline]] static long double sum_long(int terms) {
  long double s = 0;
  for (int k = 1; k <= terms; k++) s += 1.0L / k;
  return s;
}
// All ymm registers, or zmm, or AArch64's, in use.
template <class V>
[[gnu::always_inline]] inline double sum_vector_of(int terms) {
  constexpr int kLanes = sizeof(V) / sizeof(double);
  V s[12], x[2];
  for (auto& v : s) v = V{};
  for (int i = 0; i < kLanes; i++) x[0][i] = 1 + i, x[1][i] = 0.1;
  for (int k = 0; k < terms; k++) {
    x[0] += x[1];
    for (int i = 0; i < 12; i++) s[i] += x[1] / x[0] * (double)i;
  }
  double sum = 0;
  for (auto& v : s)
    for (int i = 0; i < kLanes; i++) sum += v[i];
  return sum;
}
typedef double V2 __attribute__((vector_size(16)));
[[gnu::noinline]] static double sum_two(int terms) { return sum_vector_of<V2>(terms); }
static double (*sum_vector)(int) = sum_two;
#if defined(__x86_64__)
typedef double V4 __attribute__((vector_size(32)));
typedef double V8 __attribute__((vector_size(64)));
__attribute__((noinline, target("avx2"))) static double sum_avx(int terms) { return sum_vector_of<V4>(terms); }
__attribute__((noinline, target("avx512f"))) static double sum_avx512(int terms) { return sum_vector_of<V8>(terms); }

static void choose_vectors() {
  sum_vector = __builtin_cpu_supports("avx512f") ? sum_avx512 : __builtin_cpu_supports("avx2") ? sum_avx : sum_two;
}
constexpr bool kLongInSoftware = false, kHandlersInherit = false;
constexpr uint64_t kFlush = 0x8040;
static uint64_t control() { return _mm_getcsr(); }
static void set_control(uint64_t v) { _mm_setcsr(static_cast<unsigned>(v)); }
#else
static void choose_vectors() {}
constexpr bool kLongInSoftware = true, kHandlersInherit = true;
constexpr uint64_t kFlush = 1 << 24;
static uint64_t control() {
  uint64_t v;
  asm volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
static void set_control(uint64_t v) { asm volatile("msr fpcr, %0" : : "r"(v)); }
#endif

constexpr int kLongTerms = kLongInSoftware ? kTerms / 10 : kTerms;
constexpr int kModes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
static struct Expected {
  double scalar, vector;
  long double wide;
} expected[4];

static void learn_expected() {
  choose_vectors();
  for (int m = 0; m < 4; m++) {
    fesetround(kModes[m]);
    expected[m] = {sum_double(kTerms), sum_vector(kTerms / 8), sum_long(kLongTerms)};
  }
  fesetround(FE_TONEAREST);
  CHECK(expected[1].scalar < expected[2].scalar && expected[1].wide < expected[2].wide && expected[1].vector < expected[2].vector);
}

// Values in registers that compilers seldom use while counting: seven on the x87 stack, or AArch64's last seven.
static void rare_registers_in_use(int seed) {
  double in[7], out[7];
  for (int i = 0; i < 7; i++) in[i] = seed * 16 + i + 0.5;
  long count = 200000;
#if defined(__x86_64__)
  asm volatile(
      "fldl 0(%1); fldl 8(%1); fldl 16(%1); fldl 24(%1); fldl 32(%1); fldl 40(%1); fldl 48(%1)\n"
      "1: dec %0; jnz 1b\n"
      "fstpl 48(%2); fstpl 40(%2); fstpl 32(%2); fstpl 24(%2); fstpl 16(%2); fstpl 8(%2); fstpl 0(%2)"
      : "+r"(count)
      : "r"(in), "r"(out)
      : "memory", "cc", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)");
#else
  asm volatile(
      "ldp d25, d26, [%1]; ldp d27, d28, [%1, #16]; ldp d29, d30, [%1, #32]; ldr d31, [%1, #48]\n"
      "1: sub %0, %0, #1; cbnz %0, 1b\n"
      "stp d25, d26, [%2]; stp d27, d28, [%2, #16]; stp d29, d30, [%2, #32]; str d31, [%2, #48]"
      : "+r"(count)
      : "r"(in), "r"(out)
      : "memory", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
  CHECK(memcmp(in, out, sizeof in) == 0);
}

static void floating_round(int mode, bool flush, int n) {
  switch (n % 5) {
    case 0: CHECK(sum_double(kTerms) == expected[mode].scalar); break;
    case 1: CHECK(sum_long(kLongTerms) == expected[mode].wide); break;
    case 2: CHECK(sum_vector(kTerms / 8) == expected[mode].vector); break;
    case 3: rare_registers_in_use(n); break;
    case 4: {
      // Sticky flags: none comes from others, and ours stays.
      feclearexcept(FE_ALL_EXCEPT);
      volatile double one = 1, zero = 0, tiny = 4e-320, infinite = 0;
      if (n & 1) infinite = one / zero;
      (void)infinite;
      errno = n;
      for (int i = 0; i < 100000; i++) asm volatile("" ::: "memory");
      CHECK(errno == n, errno, n);
      CHECK(fetestexcept(FE_ALL_EXCEPT) == (n & 1 ? FE_DIVBYZERO : 0), fetestexcept(FE_ALL_EXCEPT));
      volatile double product = tiny * one;
      CHECK((product == 0) == flush);
    }
  }
  CHECK(fegetround() == kModes[mode], fegetround(), mode);
}

static void floating(int id) {
  int mode = id % 4;
  bool flush = id & 4;
  fesetround(kModes[mode]);
  if (flush) set_control(control() | kFlush);
  for (int n = id; !enough; n++) {
    floating_round(mode, flush, n);
    CHECK(((control() & kFlush) != 0) == flush);
    if (n % 8 == 0) sched_yield();
  }
}

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
    b = shared[random() % kSlots].exchange(b);  // so others free it
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

// Holds the mutex that the callbacks want.
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

// Built by the first process; both are the same.
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

// ---- signal handlers ----

static std::atomic<int> handled;
static sem_t posted;
static pthread_t threads[kMostThreads];

static void on_signal(int, siginfo_t*, void*) {
  int error = errno;
  // Starts with the initial state, whatever the interrupted code has set, and leaves that alone whatever it does.
  if (kHandlersInherit) fesetround(FE_TONEAREST);
  CHECK(fegetround() == FE_TONEAREST, fegetround());
  CHECK(sum_double(kTerms) == expected[0].scalar);
  fesetround(FE_UPWARD);
  CHECK(sum_vector(kTerms / 8) == expected[2].vector);
  rare_registers_in_use(handled);
  sem_post(&posted);
  handled++;
  errno = error;
}

static void signalled(int id) {
  int mode = id % 4;
  fesetround(kModes[mode]);
  for (int n = id; !enough; n++) {
    if (n % 10 == 0) pthread_kill(pthread_self(), SIGUSR1);
    floating_round(mode, false, n);
  }
}

// The next alarm is asked for by main, which gets them: by themselves they could come faster than it is through with them when
// the machine is busy.
static timer_t timer;
static bool alarms;
static void next_alarm() {
  itimerspec once = {{0, 0}, {0, 1000000}};
  if (alarms) CHECK(timer_settime(timer, 0, &once, nullptr) == 0);
}

// Before there are workers: each has a timer, and an emulator of AArch64 has few.
static void make_timer() {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
}

static void start_signals() {
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGALRM, &action, nullptr);
  sem_init(&posted, 0, 0);
  handled = 0;
  alarms = true;
}

static void stop_signals() {
  alarms = false;
  itimerspec none = {};
  CHECK(timer_settime(timer, 0, &none, nullptr) == 0);
  usleep(1000);
  CHECK(handled > 0);
  int value;
  sem_getvalue(&posted, &value);
  CHECK(value == handled, value, handled);
}

// ---- running them ----

typedef void (*Body)(int id);
struct Start {
  Body body;
  int id;
};
static pthread_barrier_t all_made;  // making one takes a lock of the loader, which main may not get for long once others work

static void* start(void* p) {
  Start* s = static_cast<Start*>(p);
  pthread_barrier_wait(&all_made);
  s->body(s->id);
  return s;
}

// Every second one on the smallest stack that there is. So many that they do not get a slot each, which nobody takes from them.
static void run(std::initializer_list<Body> bodies, int count, int ms) {
  const char* workers = getenv("FIBERTHREAD_WORKERS");
  if (workers && 4 * atoi(workers) + 4 > count) count = 4 * atoi(workers) + 4;
  if (count > kMostThreads) count = kMostThreads;
  Start starts[kMostThreads];
  enough = false;
  pthread_barrier_init(&all_made, nullptr, count + 1);
  for (int i = 0; i < count; i++) {
    starts[i] = {bodies.begin()[i % bodies.size()], i};
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (i / bodies.size() % 2) CHECK(pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&threads[i], &attr, start, &starts[i]) == 0);
    pthread_attr_destroy(&attr);
  }
  pthread_barrier_wait(&all_made);
  // Main works too, so that it is preempted.
  for (uint64_t end = now_ms() + ms; now_ms() < end; next_alarm()) floating_round(0, false, static_cast<int>(end));
  enough = true;
  for (int i = 0; i < count; i++) {
    void* result;
    CHECK(pthread_join(threads[i], &result) == 0 && result == &starts[i]);
  }
  pthread_barrier_destroy(&all_made);
  CHECK(under_mutex % 2 == 0);
}

int main(int argc, char** argv) {
  const char* only = argc > 1 ? argv[1] : "";
  int ms = argc > 2 ? atoi(argv[2]) : 120;
  if (!getenv("STRESS_LIBRARIES")) build_libraries();
  if (!getenv("FIBERTHREAD_PREEMPT_US")) {
    setenv("FIBERTHREAD_PREEMPT_US", "100", 0);
    execv("/proc/self/exe", argv);
    return 1;
  }
  const char* directory = getenv("STRESS_LIBRARIES");
  snprintf(libraries[0], sizeof *libraries, "%s/a.so", directory);
  snprintf(libraries[1], sizeof *libraries, "%s/b.so", directory);
  mallopt(M_ARENA_MAX, 1);  // so that all want the same lock
  learn_expected();
  dl_iterate_phdr([](dl_phdr_info*, size_t, void* n) { return ++*static_cast<int*>(n), 0; }, &objects_at_start);
  auto wanted = [&](const char* name) {
    if (*only && strcmp(only, name)) return false;
    puts(name);
    fflush(stdout);
    return true;
  };
  make_timer();
  if (wanted("floating")) run({floating}, 8, ms);
  if (wanted("malloc")) {
    run({allocating}, 6, ms);
    free_shared();
  }
  if (wanted("dl_iterate_phdr")) run({iterating, holding, loading}, 6, ms);
  if (wanted("qsort")) run({sorting, holding}, 6, ms);
  if (wanted("exceptions")) run({throwing}, 6, ms);
  if (wanted("stdio")) {
    CHECK(file = tmpfile());
    run({printing}, 6, ms);
    read_back();
  }
  if (wanted("dlopen")) run({loading}, 6, ms);
  if (wanted("signals")) {
    start_signals();
    run({signalled}, 6, ms);
    stop_signals();
  }
  if (wanted("all")) {
    CHECK(file = tmpfile());
    start_signals();
    run({floating, allocating, iterating, sorting, throwing, printing, loading, signalled}, 16, 2 * ms);
    stop_signals();
    free_shared();
    read_back();
  }
  for (auto& library : libraries) unlink(library);
  rmdir(directory);
  return 0;
}
