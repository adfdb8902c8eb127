// SPDX-License-Identifier: MIT
// fiberthread: runs a program with libfiberthread.so preloaded, or one of the subcommands. The options come from the table of variables
// (options.def), and each sets its variable.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "preload/launcher/launcher.h"
#include "preload/options.h"

using namespace fiberthread;

namespace {

struct Own {
  const char* name;
  char letter;
  const char* values;
  const char* help;
};
constexpr Own kOwn[] = {
    {"malloc", 0, "jemalloc|mimalloc|tcmalloc|libc", "the allocator of the program"},
    {"help", 'h', nullptr, "this text"},
    {"version", 0, nullptr, "the version"},
    {"table", 0, nullptr, "all options and variables, for scripts: fields divided by tabs"},
};
struct Command {
  const char* name;
  int (*run)(int, char**);
  const char* arguments;
  const char* help;
};
const Command kCommands[] = {
    {"doctor", main_doctor, "[PROGRAM]", "can this machine, and this program, run on fibers?"},
    {"compare", main_compare, "[-r RUNS] [--] PROGRAM [ARGUMENT…]", "run it on libc's threads and on fibers, and compare"},
    {"top", main_top, "[options] PID", "a live view of a process"},
    {"dump", main_dump, "[options] PID|CORE", "all fibers of a process, with their stacks"},
    {"record", main_record, "[-o FILE] PID|CORE", "what the workers of a process did last, as a trace"},
    {"explore", main_explore, "[options] [--] PROGRAM [ARGUMENT…]", "run it under ever new schedules until one fails"},
    {"replay", main_replay, "[options] FILE", "run a program under the schedule of a failure that explore has found"},
    {"enable", main_enable, "[--write] SERVICE [NAME=VALUE…]", "the systemd drop-in by which a service runs on fibers"},
    {"disable", main_disable, "[--write] SERVICE", "takes it back"},
    {"trace", main_trace, "FILE", "the trace of a process that was killed, or ended by _exit() or exec()"},
};
constexpr int kOwnBase = 256, kRowBase = 512;  // getopt_long() returns these plus an index of kOwn or kOptions

bool optional_value(const OptionRow& row) { return row.form.kind == Form::Choice && row.form.values[0] == '0'; }
bool has_value(const OptionRow& row) { return row.form.kind != Form::Flag; }
bool is_negative(const OptionRow& row) { return row.option && !strncmp(row.option, "no-", 3); }

std::string option_text(const char* name, char letter, const char* values, bool optional) {
  std::string text = letter ? std::string("-") + letter + ", --" + name : std::string("    --") + name;
  if (values && optional) text += std::string("[=") + (strncmp(values, "0|1|", 4) ? values : values + 4) + "]";
  else if (values) text += std::string(values[strcspn(values, "|")] ? "=" : " ") + values;
  return text;
}

void usage(FILE* to) {
  constexpr int kColumn = 36;
  fputs("usage: fiberthread [options] [--] program [argument…]\n", to);
  for (auto& c : kCommands) fprintf(to, "       fiberthread %s %s\n", c.name, c.arguments);
  fputs("Runs the program with its POSIX threads as fibers.\n\noptions:\n", to);
  auto line = [&](const std::string& text, const std::string& help) {
    if (text.size() < kColumn) fprintf(to, "  %-*s %s\n", kColumn, text.c_str(), help.c_str());
    else fprintf(to, "  %s\n  %*s %s\n", text.c_str(), kColumn, "", help.c_str());
  };
  for (size_t i = 0; i < kOptionCount; i++) {
    const OptionRow& row = kOptions[i];
    if (!row.option) continue;
    line(option_text(row.option, row.letter, has_value(row) ? row.form.values : nullptr, optional_value(row)),
         is_negative(row) ? std::string("do not ") + row.help
                          : std::string(row.help) + (has_value(row) ? std::string(" (") + row.fallback + ")" : ""));
  }
  for (auto& own : kOwn) line(option_text(own.name, own.letter, own.values, false), own.help);
  fputs("\nsubcommands (\"fiberthread -- doctor\" runs a program of that name):\n", to);
  for (auto& c : kCommands) line(std::string(c.name) + " " + c.arguments, c.help);
  fputs("\nEach option sets a variable, which the library reads. These variables have no option, or an option of another form:\n", to);
  for (size_t i = 0; i < kOptionCount; i++) {
    const OptionRow& row = kOptions[i];
    if (row.option && !is_negative(row)) continue;
    line(std::string(kPrefix) + row.name + "=" + row.form.values, std::string(row.help) + " (" + row.fallback + ")");
  }
  fputs("\nEach subcommand has a --help of its own. See fiberthread(1) and fiberthread(7).\n", to);
}

// Prints a line for each variable: variable, option, letter, values, default, help. The launcher's own options follow, without a variable,
// and then the subcommands, without a variable or an option.
void table() {
  for (size_t i = 0; i < kOptionCount; i++) {
    const OptionRow& row = kOptions[i];
    printf("%s%s\t%s\t%c\t%s\t%s\t%s%s\n", kPrefix, row.name, row.option ? row.option : "-", row.letter ? row.letter : '-',
           row.option && !has_value(row) ? "-" : row.form.values, row.fallback, is_negative(row) ? "do not " : "", row.help);
  }
  for (auto& own : kOwn) printf("-\t%s\t%c\t%s\t-\t%s\n", own.name, own.letter ? own.letter : '-', own.values ? own.values : "-", own.help);
  for (auto& c : kCommands) printf("-\t-\t-\t%s\t-\t%s\n", c.name, c.help);
}

[[noreturn]] void wrong(const std::string& what) {
  fprintf(stderr, "fiberthread: %s\n", what.c_str());
  exit(kWrongUsage);
}

// Ends with a message on an unknown option, and names the options that the user may have meant.
[[noreturn]] void unknown_option(const char* given) {
  if (strncmp(given, "--", 2)) wrong(std::string("there is no option ") + given + "; see fiberthread --help");
  given += 2;
  size_t length = strcspn(given, "="), least = SIZE_MAX, begin_so = 0;
  const char* nearest = "help";
  std::string several;
  auto look = [&](const char* name) {
    if (!strncmp(name, given, length)) several += (begin_so++ ? ", --" : "--") + std::string(name);
    if (size_t d = distance(given, length, name, strlen(name)); d < least) {
      least = d;
      nearest = name;
    }
  };
  for (size_t i = 0; i < kOptionCount; i++)
    if (kOptions[i].option) look(kOptions[i].option);
  for (auto& own : kOwn) look(own.name);
  if (begin_so > 1) wrong("--" + std::string(given, length) + " is short for more than one: " + several);
  wrong("there is no option --" + std::string(given, length) + " (nearest: --" + nearest + "); see fiberthread --help");
}

void set_variable(const OptionRow& row, const char* value) {
  std::string text;
  if (row.form.kind == Form::Flag) text = row.form.high ? "0" : "1";
  else text = value ? value : "1";
  uint64_t n;
  if (!understand(row.form, text.c_str(), n)) {
    char memory[512];
    Text why(memory, sizeof memory);
    explain(why, row.form, text.c_str());
    wrong(std::string("--") + row.option + ": " + (text.empty() ? "\"\"" : text) + std::string(why.data(), why.size()));
  }
  // The file is made with the first thread, and the program may change its directory before that.
  if ((!strcmp(row.name, "TRACE") || !strcmp(row.name, "RECORD")) && text[0] != '/') {
    char here[PATH_MAX];
    if (getcwd(here, sizeof here)) text = std::string(here) + "/" + text;
  }
  setenv((std::string(kPrefix) + row.name).c_str(), text.c_str(), 1);
}

// Allocators as distributions install them. A number follows the file's name: that of its interface.
constexpr struct Allocator {
  const char* name;
  const char* file;
  const char* package;  // of Debian
} kAllocators[] = {{"jemalloc", "libjemalloc.so.", "libjemalloc2"},
                   {"mimalloc", "libmimalloc.so.", "libmimalloc2.0 or libmimalloc3"},
                   {"tcmalloc", "libtcmalloc_minimal.so.", "libtcmalloc-minimal4"}};

// Returns the path of the allocator's library, of the highest number that is installed, or "" for libc's. Ends with a message if there is none.
std::string find_allocator(const std::string& name) {
  if (name == "libc") return "";
  for (auto& a : kAllocators) {
    if (name != a.name) continue;
    for (const char* folder : {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
      std::string best;
      DIR* d = opendir(folder);
      while (dirent* e = d ? readdir(d) : nullptr)
        if (size_t n = strlen(a.file); !strncmp(e->d_name, a.file, n) && e->d_name[n] &&
                                       !e->d_name[n + strspn(e->d_name + n, "0123456789")] &&
                                       (best.empty() || strverscmp(e->d_name, best.c_str()) > 0))
          best = e->d_name;
      if (d) closedir(d);
      if (std::string path = std::string(folder) + "/" + best; !best.empty() && access(path.c_str(), R_OK) == 0) return path;
    }
    wrong("--malloc=" + name + ": there is no " + a.file + "* (Debian's package is " + a.package + ")");
  }
  wrong("--malloc: " + name + " is none of jemalloc, mimalloc, tcmalloc, libc");
}

// Runs for `doctor`: does a thread of this process run as a fiber? Fibers' ids are above those of the kernel. Returns 0 if it does.
int self_check() {
  pthread_t thread;
  void* result = nullptr;
  if (pthread_create(
          &thread, nullptr, [](void*) -> void* { return reinterpret_cast<void*>(long{gettid() >= 1 << 22}); }, nullptr) ||
      pthread_join(thread, &result))
    return 1;
  return result ? 0 : 3;
}

}  // namespace

// In a build tree the library stands beside the launcher. Installed, it is in a lib directory beside the launcher's, where the soname comes first.
// Distributions have the name for linking in another package, which may be missing, or be removed.
std::string find_library() {
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return SONAME;
  std::string dir(self, static_cast<size_t>(n));
  dir.erase(dir.rfind('/') + 1);
  if (std::string path = dir + "libfiberthread.so"; access(path.c_str(), R_OK) == 0) return path;
  dir.erase(dir.size() > 1 ? dir.rfind('/', dir.size() - 2) + 1 : 1);
  for (const char* place : {"lib/" SONAME, "lib/" MULTIARCH "/" SONAME, "lib64/" SONAME})
    if (std::string path = dir + place; access(path.c_str(), R_OK) == 0) return path;
  return SONAME;
}

std::string find_explore(const char* name) {
  std::string library = find_library(), dir = library.substr(0, library.rfind('/') + 1);
  std::string beside = dir + name, installed = dir + "fiberthread-explore/" + name;
  return dir.empty() || access(beside.c_str(), R_OK) == 0 ? beside : installed;
}

std::string find_program(const std::string& name, std::string* why_not) {
  int error = ENOENT;
  auto runs = [&](const std::string& path) {
    struct stat s;
    if (stat(path.c_str(), &s) != 0) return false;
    if (S_ISREG(s.st_mode) && access(path.c_str(), X_OK) == 0) return true;
    error = S_ISDIR(s.st_mode) ? EISDIR : EACCES;
    return false;
  };
  std::string found;
  if (name.find('/') != std::string::npos) {
    if (runs(name)) found = name;
  } else {
    const char* path = getenv("PATH");
    std::string dirs = path ? path : "/bin:/usr/bin";
    for (size_t at = 0; at <= dirs.size() && found.empty() && !name.empty();) {
      size_t end = dirs.find(':', at);
      if (end == std::string::npos) end = dirs.size();
      std::string dir = dirs.substr(at, end - at), file = (dir.empty() ? "." : dir) + "/" + name;
      if (runs(file)) found = file;
      at = end + 1;
    }
  }
  if (found.empty() && error != ENOENT && why_not) *why_not = strerror(error);
  return found;
}

ProgramSettings::ProgramSettings(const std::string& path, const std::string& interpreter) : called(path), file(path) {
  char real[PATH_MAX];
  if (realpath((interpreter.empty() ? path : interpreter).c_str(), real)) file = real;
  names = {file.c_str(), called.c_str()};
  settings.read_files(environ, names);
  for (char** e = environ; *e; e++)
    if (const char* eq = strchr(*e, '='); eq && !strncmp(*e, kPrefix, sizeof kPrefix - 1)) {
      const char* name = *e + sizeof kPrefix - 1;
      settings.take(name, static_cast<size_t>(eq - name), eq + 1);
    }
}

std::string why_not_run(const std::string& name, int e) {
  std::string path = find_program(name), why;
  if (path.empty()) find_program(name, &why);
  else if (e == ENOENT) why = "its interpreter or loader is not there";  // of a script, of another architecture
  return why.empty() ? strerror(e) : why;
}

Result run(const std::vector<std::string>& command, const std::vector<std::string>& environment, bool watch) {
  Result r;
  std::vector<char*> argv, env;
  for (auto& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  for (auto& e : environment) env.push_back(const_cast<char*>(e.c_str()));
  static char everywhere[] = "FIBERTHREAD_ONLY=", nowhere[] = "FIBERTHREAD_NOT=";  // whatever the files of settings say
  env.insert(env.end(), {everywhere, nowhere});
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) && strncmp(*e, kPrefix, sizeof kPrefix - 1)) env.push_back(*e);
  argv.push_back(nullptr);
  env.push_back(nullptr);
  std::string program = find_program(command[0]);
  FILE* out = tmpfile();
  FILE* err = tmpfile();
  int failed[2];  // the child's errno, if it cannot exec
  if (program.empty() || !out || !err || pipe2(failed, O_CLOEXEC) != 0) return r;
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  pid_t pid = fork();
  if (pid < 0) return r;
  if (pid == 0) {
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    execvpe(program.c_str(), argv.data(), env.data());  // not execve(): like a shell, it has sh run a script without #!
    int e = errno;
    if (write(failed[1], &e, sizeof e) < 0) _exit(kNotFound);
    _exit(kCannotRun);
  }
  close(failed[1]);
  r.started = read(failed[0], &r.error, sizeof r.error) == 0;  // returns after the exec: until then, the child has our memory
  close(failed[0]);
  rusage usage{};
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/status", static_cast<int>(pid));
  while (wait4(pid, &r.status, watch ? WNOHANG : 0, &usage) == 0) {
    if (FILE* f = fopen(name, "r")) {
      char line[256];
      long n;
      while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmHWM: %ld", &n) == 1 && n > r.peak_kb) r.peak_kb = n;
        if (sscanf(line, "Threads: %ld", &n) == 1 && n > r.most_threads) r.most_threads = static_cast<int>(n);
      }
      fclose(f);
    }
    poll(nullptr, 0, 1);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  r.seconds = static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e9;
  // The kernel's own figure is exact, but never below the launcher's own peak, which the child has inherited by the fork.
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  if (usage.ru_maxrss > own.ru_maxrss || !r.peak_kb) r.peak_kb = usage.ru_maxrss;
  for (auto [file, text] : {std::pair{out, &r.out}, std::pair{err, &r.err}}) {
    char part[65536];
    rewind(file);
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) text->append(part, n);
    fclose(file);
  }
  return r;
}

int main(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "--self-check")) return self_check();
  if (argc > 1)
    for (auto& c : kCommands) {
      if (strcmp(argv[1], c.name)) continue;
      std::string name = std::string("fiberthread ") + c.name;
      argv[1] = name.data();
      return c.run(argc - 1, argv + 1);
    }
  std::vector<option> options;
  std::string letters = "+";  // stop at the first word that is no option: the rest is the program's
  for (size_t i = 0; i < kOptionCount; i++) {
    const OptionRow& row = kOptions[i];
    if (!row.option) continue;
    int value = !has_value(row) ? no_argument : optional_value(row) ? optional_argument : required_argument;
    options.push_back({row.option, value, nullptr, kRowBase + static_cast<int>(i)});
    if (row.letter) letters += std::string(1, row.letter) + (value == required_argument ? ":" : "");
  }
  for (size_t i = 0; i < sizeof kOwn / sizeof *kOwn; i++) {
    options.push_back({kOwn[i].name, kOwn[i].values ? required_argument : no_argument, nullptr, kOwnBase + static_cast<int>(i)});
    if (kOwn[i].letter) letters += kOwn[i].letter;
  }
  options.push_back({});
  std::string allocator;
  opterr = 0;
  for (int c, at = 1; (c = getopt_long(argc, argv, letters.c_str(), options.data(), nullptr)) != -1; at = optind) {
    if (c == '?') {
      for (auto& o : options)
        if (o.name && optopt == o.val)
          wrong(std::string("--") + o.name + (o.has_arg == required_argument ? " needs a value" : " takes no value"));
      if (optopt && strchr(letters.c_str(), optopt)) wrong(std::string("-") + static_cast<char>(optopt) + " needs a value");
      unknown_option(argv[at]);
    }
    if (c < kOwnBase) {
      for (size_t i = 0; i < kOptionCount; i++)
        if (kOptions[i].letter == c) c = kRowBase + static_cast<int>(i);
      for (size_t i = 0; i < sizeof kOwn / sizeof *kOwn; i++)
        if (kOwn[i].letter == c) c = kOwnBase + static_cast<int>(i);
    }
    if (c >= kRowBase) {
      set_variable(kOptions[c - kRowBase], optarg);
      continue;
    }
    switch (c - kOwnBase) {
      case 0: allocator = find_allocator(optarg); break;
      case 1: usage(stdout); return 0;
      case 2: printf("fiberthread %s\n", VERSION); return 0;
      case 3: table(); return 0;
    }
  }
  if (optind >= argc) {
    fputs("fiberthread: there is no program to run; see fiberthread --help\n", stderr);
    return kWrongUsage;
  }
  std::string preload = find_library();
  if (!allocator.empty()) preload += ":" + allocator;
  if (const char* others = getenv("LD_PRELOAD"); others && *others) preload += std::string(":") + others;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  // If the loader does not load the library, only the launcher can say so.
  if (const char* verbose = getenv("FIBERTHREAD_VERBOSE"); verbose && !strcmp(verbose, "1"))
    if (std::string path = find_program(argv[optind]), why = path.empty() ? "" : why_nothing_is_preloaded(path); !why.empty())
      fprintf(stderr, "fiberthread: %s: no fibers: %s\n", argv[optind], why.c_str());
  // Who asks for fibers by name gets them, even if a file of settings has an "only" for programs that are merely preloaded.
  setenv("FIBERTHREAD_ONLY", "", 0);
  if (std::string path = find_program(argv[optind]); !path.empty()) {
    ProgramSettings found(path);
    if (const char* why = found.settings.why_nptl(found.names); why && !found.settings.get("NPTL").number && !*found.settings.broken)
      fprintf(stderr, "fiberthread: %s: no fibers: %s\n", argv[optind], why);
  }
  execvp(argv[optind], argv + optind);
  int e = errno;
  std::string hint;
  for (auto& c : kCommands)
    if (e == ENOENT && distance(argv[optind], strlen(argv[optind]), c.name, strlen(c.name)) * 3 <= strlen(c.name))
      hint = optind == 1 ? std::string(" (nearest subcommand: ") + c.name + ")"
                         : std::string(" (the subcommand ") + c.name + " has to be the first word)";
  fprintf(stderr, "fiberthread: %s: %s%s\n", argv[optind], why_not_run(argv[optind], e).c_str(), hint.c_str());
  return e == ENOENT ? kNotFound : kCannotRun;
}
