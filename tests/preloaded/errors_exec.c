// SPDX-License-Identifier: MIT
// Calls of execve() and its kin that fail, and leave all as it was.
#include "errors.h"

#include <sys/stat.h>

static char* too_long;  // for one argument
static char long_name[NAME_MAX + 2];

static void by_path(const char* what, const char* path) {
  char* argv[] = {"x", NULL};
  FAILS(what, execve, path, argv, environ);
  FAILS(what, execv, path, argv);
  FAILS(what, execl, path, "x", NULL);
  FAILS(what, execle, path, "x", NULL, environ);
  FAILS(what, execveat, AT_FDCWD, path, argv, environ, 0);
}
// These look in PATH for a name without a slash, and give a file that is no program to the shell.
static void by_name(const char* what, const char* name) {
  char* argv[] = {"x", NULL};
  FAILS(what, execvp, name, argv);
  FAILS(what, execvpe, name, argv, environ);
  FAILS(what, execlp, name, "x", NULL);
}
static void both(const char* what, const char* path) {
  by_path(what, path);
  by_name(what, path);
}

static void make_file(const char* name, mode_t mode) {
  int fd = open(name, O_CREAT | O_WRONLY, 0600);
  assert(write(fd, "\1\2\3\4", 4) == 4);
  close(fd);
  chmod(name, mode);
}

static void prepare(void) {
  static char directory[] = "exec-XXXXXX";
  if (too_long) return;
  assert(mkdtemp(directory) && chdir(directory) == 0);
  make_file("plain", 0600);
  make_file("garbage", 0700);
  assert(symlink("loop", "loop") == 0);
  memset(long_name, 'x', NAME_MAX + 1);
  too_long = malloc(200001);
  memset(too_long, 'x', 200000);
  too_long[200000] = 0;
}

static void cases(void) {
  prepare();
  char* argv[] = {"x", NULL};
  char* many[] = {"x", too_long, NULL};
  both("no file", "./nothing");
  both("under a file", "./plain/x");
  both("a name that is too long", long_name);
  both("a link to itself", "./loop");
  both("not executable", "./plain");
  both("a directory", ".");
  by_path("no program", "./garbage");
  by_path("a bad address", (const char*)8);
  by_name("in no directory", "no-such-program-anywhere");
  by_name("an empty name", "");
  FAILS("too long an argument", execve, "/bin/true", many, environ);
  FAILS("too long an argument", execv, "/bin/true", many);
  FAILS("too long an argument", execl, "/bin/true", "x", too_long, NULL);
  FAILS("too long an argument", execle, "/bin/true", "x", too_long, NULL, environ);
  FAILS("too long an argument", execveat, AT_FDCWD, "/bin/true", many, environ, 0);
  FAILS("too long an argument", execvp, "true", many);
  FAILS("too long an argument", execvpe, "true", many, environ);
  FAILS("too long an argument", execlp, "true", "x", too_long, NULL);
  FAILS("an unknown flag", execveat, AT_FDCWD, "/bin/true", argv, environ, 1);
  FAILS("a closed descriptor", execveat, 1000, "true", argv, environ, 0);
  FAILS("a closed descriptor", fexecve, 1000, argv, environ);
  FAILS("a negative descriptor", fexecve, -1, argv, environ);
  const char* files[] = {"./plain", "./garbage", "/bin/true"};
  const char* what[] = {"not executable", "no program", "too long an argument"};
  for (int i = 0; i < 3; i++) {
    int fd = open(files[i], O_RDONLY);
    FAILS(what[i], fexecve, fd, i == 2 ? many : argv, environ);
    close(fd);
  }
}
