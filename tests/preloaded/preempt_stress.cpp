// SPDX-License-Identifier: MIT
// Fibers that are preempted about every 100 µs, wherever they are: in libc, with its locks held, in callbacks of libc that wait, in
// unwinding, in signal handlers, with odd states of the floating point unit, and on small stacks. Their results must stay the same.
// Arguments: [case [milliseconds]], to run one case for longer.
#include <cerrno>
#include <cfenv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <malloc.h>
#include <semaphore.h>

#include "preempt_stress.h"
#include "preempt_stress_floating.h"
#include "preempt_stress_libc.h"

// ---- signal handlers ----

static std::atomic<int> handled;
static sem_t posted;
static pthread_t threads[kMostThreads];

static void on_signal(int, siginfo_t*, void*) {
  int error = errno;
  // A handler starts with the initial state, whatever the interrupted code has set. What the handler sets does not reach that code.
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

// The main thread gets the alarms, and so asks for each next one itself. A periodic timer could be faster than the handlers on a busy
// machine.
static timer_t timer;
static bool alarms;
static void next_alarm() {
  itimerspec once = {{0, 0}, {0, 1000000}};
  if (alarms) CHECK(timer_settime(timer, 0, &once, nullptr) == 0);
}

// Called before there are workers: each of them has a timer, and an emulator of AArch64 has few.
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
// The threads begin together. pthread_create() takes a lock of the loader, for which the main thread might wait long once others work.
static pthread_barrier_t all_made;

static void* start(void* p) {
  Start* s = static_cast<Start*>(p);
  pthread_barrier_wait(&all_made);
  s->body(s->id);
  return s;
}

// Runs the bodies in turn in `count` threads, every second round of them on the smallest stack. There are more threads than slots:
// a fiber that has a slot for itself is not preempted.
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
  // The main thread works too, so that it is preempted.
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
  mallopt(M_ARENA_MAX, 1);  // all threads wait for the same lock
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
