// SPDX-License-Identifier: MIT
// Preemption: code that keeps every register busy must not notice that it is preempted.
#include "sched/preempt.h"

#include "tests/test.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sched/fiber.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "tests/registers.h"

namespace {

uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

std::atomic<uint64_t> rounds_done, bad, times_preempted;
std::atomic<const char*> what_differed;
uint64_t deadline;
uint32_t most_level = ~0u;
std::atomic<uint64_t> next_seed{0x9e3779b97f4a7c15};

void* stress(void*) {
  Random random{next_seed.fetch_add(0x632be59bd9b4e019)};
  auto *in = new Registers, *out = new Registers;
  while (now_ms() < deadline) {
    uint32_t level = any_level(random);
    if (level > most_level) level = most_level;
    fill(*in, random, static_cast<Parts>(random() % 3));
    preempt_stress(in, out, 1'000'000 + random() % 4'000'000, level);
    if (const char* what = difference(*in, *out, level)) {
      bad++;
      what_differed = what;
    }
    rounds_done++;
  }
  delete in;
  delete out;
  if (auto* f = fiberthread::tls_current) times_preempted += f->turns.preempted;
  return nullptr;
}

void run(int threads, uint64_t ms) {
  deadline = now_ms() + ms;
  pthread_t t[64];
  for (int i = 0; i < threads; i++) cr_assert_eq(pthread_create(&t[i], nullptr, stress, nullptr), 0);
  for (int i = 0; i < threads; i++) pthread_join(t[i], nullptr);
}

// Returns a number of threads far above the number of slots. A few fibers that only compute would get a slot each, and would not be
// preempted.
int many() { return 16 * static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) > 64 ? 64 : 16 * sysconf(_SC_NPROCESSORS_ONLN); }

// Returns how long to run. FIBERTHREAD_TEST_SECONDS sets it for soak tests.
uint64_t duration_ms() {
  const char* s = getenv("FIBERTHREAD_TEST_SECONDS");
  return s ? strtoull(s, nullptr, 10) * 1000 : 2000;
}

Test(preempt, no_register_changes) {
  for (int i = 0; i < 5 && times_preempted <= 20; i++) run(many(), duration_ms());
  fprintf(stderr, "%lu rounds, %lu preemptions\n", rounds_done.load(), times_preempted.load());
  cr_assert_eq(bad.load(), 0u, "%s", what_differed.load());
  cr_assert(rounds_done > 0);
  cr_assert(times_preempted > 20, "preempted %lu times", times_preempted.load());
}

// Tests the test itself. It must notice if preemption forgets one component. A crash counts as noticing, because vector registers carry
// data of all code.
void forget(uint32_t component, uint32_t level) {
  if (best_level() < level) return;
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    run(1, 1);  // starts the scheduler
    forget_component(component);
    for (int i = 0; i < 10 && !bad; i++) run(many(), 1000);
    _exit(bad ? 1 : 0);
  }
  int status;
  waitpid(child, &status, 0);
  bool crashed = WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
  cr_assert(crashed || (WIFEXITED(status) && WEXITSTATUS(status) == 1), "component %#x: status %#x", component, status);
}

#if defined(__x86_64__)
void saved_by(uint32_t how, uint32_t level) {
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    run(1, 1);  // starts the scheduler
    save_by(how);
    most_level = level;
    times_preempted = 0;
    for (int i = 0; i < 10 && times_preempted <= 20; i++) run(many(), 1000);
    if (bad) fprintf(stderr, "%s\n", what_differed.load());
    _exit(bad ? 1 : times_preempted <= 20 ? 2 : 0);
  }
  int status;
  waitpid(child, &status, 0);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
}
Test(preempt, no_register_changes_without_xsavec) { saved_by(1, best_level()); }
Test(preempt, no_register_changes_without_xsave) { saved_by(2, kSse); }

Test(preempt, forgetting_x87_is_noticed) { forget(0x1, kSse); }
Test(preempt, forgetting_sse_is_noticed) { forget(0x2, kSse); }
Test(preempt, forgetting_avx_is_noticed) { forget(0x4, kAvx); }
Test(preempt, forgetting_k_is_noticed) { forget(0x20, kAvx512); }
Test(preempt, forgetting_upper_halves_of_zmm_is_noticed) { forget(0x40, kAvx512); }
Test(preempt, forgetting_zmm_16_to_31_is_noticed) { forget(0x80, kAvx512); }
#else
Test(preempt, forgetting_general_registers_is_noticed) { forget(kGeneral, kNeon); }
Test(preempt, forgetting_flags_is_noticed) { forget(kCondition, kNeon); }
Test(preempt, forgetting_fpcr_is_noticed) { forget(kControl, kNeon); }
Test(preempt, forgetting_fpsr_is_noticed) { forget(kStatus, kNeon); }
Test(preempt, forgetting_vectors_is_noticed) { forget(kVectors, kNeon); }
Test(preempt, forgetting_upper_parts_of_vectors_is_noticed) { forget(kUpper, kSve); }
Test(preempt, forgetting_predicates_is_noticed) { forget(kPredicates, kSve); }
Test(preempt, forgetting_ffr_is_noticed) { forget(kFfr, kSve); }
Test(preempt, forgetting_za_is_noticed) { forget(kZa, kSme); }
#endif

// ---- more often than every tick ----

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// Returns the number of preemptions per millisecond of CPU time. A tick of 4 ms would give 0.25.
double preemption_rate() {
  double best = 0;
  for (int i = 0; i < 5 && best <= 1; i++) {
    times_preempted = 0;
    double before = cpu_ms();
    run(many(), 500);
    double rate = static_cast<double>(times_preempted) / (cpu_ms() - before);
    if (rate > best) best = rate;
  }
  return best;
}

bool mentioned(const char* file, const char* what) {
  FILE* f = fopen(file, "r");
  char line[512];
  bool found = false;
  while (f && fgets(line, sizeof line, f)) found |= strstr(line, what) != nullptr;
  if (f) fclose(f);
  return found;
}

bool has_descriptor_of(const char* what) {
  char path[32], to[256];
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n > 0 && (to[n] = 0, strstr(to, what))) return true;
  }
  return false;
}

constexpr int kRefused = 77;

// Returns the exit status of a child of fork, whose workers are all new. It covers that child's own child, which must have nothing of those
// workers.
int samples(bool has_child) {
  if (mentioned("/proc/self/maps", "perf_event")) return 2;
  if (fiberthread::preempt_sampled_workers() != 0) return 8;
  double rate = preemption_rate();
  if (fiberthread::preempt_sampled_workers() == 0) return kRefused;
  if (bad) return 3;
  if (rate <= 1) return 4;
  if (has_descriptor_of("perf_event")) return 5;
  if (!mentioned("/proc/self/maps", "perf_event")) return 6;
  if (!has_child) return 0;
  pid_t child = fork();
  if (child == 0) _exit(samples(false));
  int status;
  waitpid(child, &status, 0);
  return status ? 7 : 0;
}

// Runs in a child, since the process of the test has workers already.
Test(preempt, more_often_than_the_tick) {
  fiberthread::options.preempt_us = 100;
  pid_t child = fork();
  if (child == 0) _exit(samples(true));
  int status;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) cr_skip("the kernel refuses perf events here");
  cr_assert_eq(status, 0, "%#x", status);
}

Test(preempt, at_the_tick_where_perf_events_are_refused) {
  rlimit now, none;
  getrlimit(RLIMIT_NOFILE, &now);
  none = {0, now.rlim_max};
  int out[2];
  cr_assert_eq(pipe2(out, O_NONBLOCK), 0);
  int saved = dup(2);
  dup2(out[1], 2);
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  // This is set no earlier. The test's framework may begin a worker at any time, and the library reports only the first refusal.
  fiberthread::options.verbose = true;
  fiberthread::options.preempt_us = 100;
  fiberthread::sched_set_concurrency(6);  // more workers than the framework may have made before
  for (int i = 0; i < 5 && times_preempted <= 20; i++) run(many(), 1000);
  uint32_t sampled = fiberthread::preempt_sampled_workers();  // read now, since a spare worker may begin later
  setrlimit(RLIMIT_NOFILE, &now);
  dup2(saved, 2);
  cr_assert_eq(sampled, 0u);
  cr_assert(times_preempted > 20, "preempted %lu times", times_preempted.load());
  char said[1024] = {};
  ssize_t n = read(out[0], said, sizeof said - 1);
  const char* once = strstr(said, "FIBERTHREAD_PREEMPT_US: ");
  cr_assert(n > 0 && once && !strstr(once + 1, "FIBERTHREAD_PREEMPT_US: "), "%zd: %s", n, said);
}

// ---- a loop inside libc, where preemption is refused for some ticks only ----

std::atomic<bool> other_ran;
#if defined(__x86_64__)
constexpr int kSearches = 1000;
#else
constexpr int kSearches = 20;  // under an emulator
#endif

Test(preempt, loop_inside_libc_is_preempted_in_the_end) {
  static char big[1 << 20];
  pthread_t t[64];
  int n = many() / 2;
  deadline = now_ms() + 500;
  for (int i = 0; i < n; i++)
    pthread_create(
        &t[i], nullptr,
        +[](void*) -> void* {
          while (!other_ran && now_ms() < deadline + 20000)
            for (int j = 0; j < kSearches; j++) {
              asm volatile("" ::: "memory");
              cr_assert(memchr(big, 1, sizeof big) == nullptr);
            }
          return nullptr;
        },
        nullptr);
  pthread_t other;
  pthread_create(
      &other, nullptr,
      +[](void*) -> void* {
        while (now_ms() < deadline) {
        }
        other_ran = true;
        return nullptr;
      },
      nullptr);
  pthread_join(other, nullptr);
  for (int i = 0; i < n; i++) pthread_join(t[i], nullptr);
  cr_assert(now_ms() < deadline + 20000);
}

}  // namespace
