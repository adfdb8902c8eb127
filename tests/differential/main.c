// SPDX-License-Identifier: MIT
// Runs programs, each in a process of its own.
//   differential [--text] FROM TO        a line for each seed: its number, how it ended, a hash of its text; --text: all of the text
//   differential --print SEED            the list of operations
//   differential --run FILE              runs a list, and prints its text
//   differential --here FILE             the same without a process of its own, for a debugger
// `compare` beside this file runs these and compares.
#include "differential.h"
#include <sys/prctl.h>

static struct text* texts;
static struct program program;
enum { kLongest = 120 };  // seconds for a program; a program takes milliseconds

static uint64_t hash_of(uint64_t h, const char* s, size_t n) {
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
  return h;
}

static void show_texts(void) {
  for (int i = 0; i < kThreads; i++) {
    unsigned n = texts[i].length;
    if (n) printf("thread %d:\n%.*s\n", i, (int)n, texts[i].text);
  }
}

// Waits until the program ends, at most for kLongest seconds.
static int wait_for(pid_t pid, bool* hung) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  int status;
  time_t end = time(NULL) + (getenv("DIFFERENTIAL_SECONDS") ? atoi(getenv("DIFFERENTIAL_SECONDS")) : kLongest);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (time(NULL) >= end && !*hung) {
      *hung = true;
      if (getenv("DIFFERENTIAL_STOP")) pause();  // the program's processes can be looked at
      kill(-pid, SIGKILL);
    }
    sigtimedwait(&child, NULL, &(struct timespec){1, 0});
  }
  kill(-pid, SIGKILL);
  return status;
}

// Runs the program in a child, and prints how it went.
static void run_once(const char* name, bool all) {
  fflush(stdout);
  for (int i = 0; i < kThreads; i++) texts[i].length = texts[i].operation = 0;
  bool hung = false;
  pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing stays behind when this run is ended
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    run_program(&program, texts);
  }
  int status = wait_for(pid, &hung);
  char end[100];
  if (hung) {
    int n = snprintf(end, sizeof end, "hung");
    for (int i = 0; i < kThreads; i++) n += snprintf(end + n, sizeof end - n, " %u", texts[i].operation);
  } else if (WIFSIGNALED(status)) {
    snprintf(end, sizeof end, "signal-%s", sigabbrev_np(WTERMSIG(status)));
  } else {
    snprintf(end, sizeof end, "exit-%d", WEXITSTATUS(status));
  }
  if (all) {
    show_texts();
    printf("%s %s\n", name, end);
  } else {
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < kThreads; i++) h = hash_of(h, texts[i].text, texts[i].length) + 1;
    printf("%s %s %016llx\n", name, end, (unsigned long long)h);
  }
}

static void read_program(const char* file) {
  FILE* f = fopen(file, "r");
  if (!f || !parse(&program, f)) {
    fprintf(stderr, "%s is no list of operations.\n", file);
    exit(2);
  }
  fclose(f);
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--exit") == 0) return atoi(argv[2]);  // what programs execute
  bool all = argc == 4 && strcmp(argv[1], "--text") == 0;
  texts = mmap(NULL, sizeof(struct text) * kThreads, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (argc == 3 && strcmp(argv[1], "--print") == 0) {
    generate(&program, strtoul(argv[2], NULL, 10));
    print(&program, stdout);
    return 0;
  }
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, NULL);
  if (argc == 3 && strcmp(argv[1], "--run") == 0) {
    read_program(argv[2]);
    run_once("program", true);
  } else if (argc == 3 && strcmp(argv[1], "--here") == 0) {
    read_program(argv[2]);
    run_program(&program, texts);
  } else if (argc == 3 || all) {
    unsigned to = strtoul(argv[argc - 1], NULL, 10);
    for (unsigned seed = strtoul(argv[argc - 2], NULL, 10); seed < to; seed++) {
      char name[16];
      snprintf(name, sizeof name, "%u", seed);
      generate(&program, seed);
      run_once(name, all);
    }
  } else {
    fprintf(stderr, "usage: differential [--text] FROM TO | --print SEED | --run FILE | --here FILE\n");
    return 2;
  }
  return 0;
}
