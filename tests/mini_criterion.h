// SPDX-License-Identifier: MIT
// The part of Criterion that our unit tests use. Each test runs in a process of its own. The results are TAP on stdout.
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mini {

struct Options {  // in Criterion's order
  void (*init)() = nullptr;
  void (*fini)() = nullptr;
  int signal = 0;  // the signal by which the test shall end
  int exit_code = 0;
  bool disabled = false;
  const char* description = nullptr;
  double timeout = 120;  // seconds
};

struct Test {
  const char* suite;
  const char* name;
  void (*body)();
  Options options;
  Test* next = nullptr;
  static inline Test* first = nullptr;
  static inline Test** last = &first;
  Test(const char* s, const char* n, void (*b)(), Options o) : suite(s), name(n), body(b), options(o) {
    *last = this;
    last = &next;
  }
};

template <class... Args>
[[noreturn]] void failed(const char* file, int line, const char* what, Args... args) {
  fprintf(stderr, "%s:%d: %s", file, line, what);
  if constexpr (sizeof...(args) > 0) {
    fprintf(stderr, ": ");
    fprintf(stderr, args...);
  }
  fprintf(stderr, "\n");
  _exit(1);
}

constexpr int kSkipped = 77;

template <class... Args>
[[noreturn]] void skip(Args... args) {
  fprintf(stderr, args...);
  fprintf(stderr, "\n");
  _exit(kSkipped);
}

inline bool passes(const Test& t, bool* skipped) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(static_cast<unsigned>(t.options.timeout) + 1);
    if (t.options.init) t.options.init();
    t.body();
    if (t.options.fini) t.options.fini();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (t.options.signal) return WIFSIGNALED(status) && WTERMSIG(status) == t.options.signal;
  if (WIFSIGNALED(status)) fprintf(stderr, "%s::%s: ended by signal %d\n", t.suite, t.name, WTERMSIG(status));
  *skipped = WIFEXITED(status) && WEXITSTATUS(status) == kSkipped;
  return *skipped || (WIFEXITED(status) && WEXITSTATUS(status) == t.options.exit_code);
}

}  // namespace mini

#define Test(suite, test, ...) \
  static void mini_##suite##_##test(); \
  static mini::Test mini_test_##suite##_##test(#suite, #test, mini_##suite##_##test, mini::Options{__VA_ARGS__}); \
  static void mini_##suite##_##test()

#define cr_assert(condition, ...) ((condition) ? void() : mini::failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__))
#define cr_assert_not(condition, ...) cr_assert(!(condition)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_lt(a, b, ...) cr_assert((a) < (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_leq(a, b, ...) cr_assert((a) <= (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_null(a, ...) cr_assert((a) == nullptr __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_not_null(a, ...) cr_assert((a) != nullptr __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp(a, b) == 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) cr_assert(strcmp(a, b) != 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...) cr_assert(memcmp(a, b, size) == 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_fail(...) cr_assert(!"reached" __VA_OPT__(, ) __VA_ARGS__)
#define cr_fail cr_assert_fail
#define cr_skip(...) mini::skip(__VA_ARGS__)
#define cr_skip_test cr_skip

// Runs the tests whose names contain the argument, or all tests.
int main(int argc, char** argv) {
  int n = 0, bad = 0;
  for (mini::Test* t = mini::Test::first; t; t = t->next) {
    if (argc > 1 && !strstr(t->name, argv[1])) continue;
    bool skipped = t->options.disabled, ok = skipped || mini::passes(*t, &skipped);
    bad += !ok;
    printf("%s %d - %s::%s%s\n", ok ? "ok" : "not ok", ++n, t->suite, t->name, skipped ? " # SKIP" : "");
    fflush(stdout);
  }
  printf("1..%d\n", n);
  return bad != 0;
}
