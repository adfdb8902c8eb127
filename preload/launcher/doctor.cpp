// SPDX-License-Identifier: MIT
// fiberthread doctor [program]: can this machine, and this program, run on fibers, and what will cost kernel threads?
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>
#include <set>

#include "preload/launcher/launcher.h"
#include "sched/arch/arch.h"
#include FIBERTHREAD_CPU(registers.h)

using namespace fiberthread;

namespace {

bool impossible = false;

void good(const std::string& what) { printf("  yes  %s\n", what.c_str()); }
void lacking(const std::string& what, const std::string& then) { printf("  -    %s: %s\n", what.c_str(), then.c_str()); }
void fatal(const std::string& what, const std::string& why) {
  printf("  NO   %s: %s\n", what.c_str(), why.c_str());
  impossible = true;
}

std::string first_line(const char* path, const char* start = "") {
  std::string found;
  if (FILE* f = fopen(path, "r")) {
    char line[512];
    while (found.empty() && fgets(line, sizeof line, f))
      if (!strncmp(line, start, strlen(start))) found = std::string(line + strlen(start), strcspn(line + strlen(start), "\n"));
    fclose(f);
  }
  return found;
}

// ---- the machine ----

#if defined(__x86_64__)
// Returns what a switch without FSGSBASE costs here for its system call, in ns. Some hypervisors make it 30 times as dear as others.
long switch_call_ns() {
  constexpr int kSetFs = 0x1002, kTimes = 100;  // ARCH_SET_FS, of asm/prctl.h
  void* tp;
  asm("mov %%fs:0, %0" : "=r"(tp));
  long best = -1;
  for (int round = 0; round < 10; round++) {
    timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < kTimes; i++)
      if (syscall(SYS_arch_prctl, kSetFs, tp) != 0) return -1;
    clock_gettime(CLOCK_MONOTONIC, &to);
    long ns = ((to.tv_sec - from.tv_sec) * 1'000'000'000 + to.tv_nsec - from.tv_nsec) / kTimes;
    if (best < 0 || ns < best) best = ns;
  }
  return best;
}
#endif

constexpr int kPopulateWrite = 23, kInstallGuard = 102;  // MADV_POPULATE_WRITE, MADV_GUARD_INSTALL
bool advice_works(int advice) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool works = page != MAP_FAILED && madvise(page, 4096, advice) == 0;
  if (page != MAP_FAILED) munmap(page, 4096);
  return works;
}

bool is_there(long r) { return r >= 0 || (errno != ENOSYS && errno != EPERM); }

bool waits_for_nanoseconds() {
  constexpr long kEpollPwait2 = 441;
  return is_there(syscall(kEpollPwait2, -1, nullptr, 0, nullptr, nullptr, 8));
}

bool reads_without_waiting() {
  constexpr int kNowait = 8;  // RWF_NOWAIT
  int ends[2];
  char byte;
  iovec v{&byte, 1};
  if (pipe2(ends, O_CLOEXEC) != 0) return true;
  bool works = preadv2(ends[0], &v, 1, -1, kNowait) < 0 && errno == EAGAIN;
  close(ends[0]);
  close(ends[1]);
  return works;
}

bool rings() {
  char parameters[120] = {};  // io_uring_params
  long fd = prctl(PR_GET_SECCOMP) == 0 ? syscall(SYS_io_uring_setup, 1, parameters) : -1;
  if (fd >= 0) close(static_cast<int>(fd));
  return fd >= 0;
}

bool notices_set_clock() {
  itimerspec far{};
  far.it_value.tv_sec = 0x7fffffff00;
  int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC);
  bool works = fd >= 0 && timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, nullptr) == 0;
  if (fd >= 0) close(fd);
  return works;
}

bool preemption_timers() {
  sigevent event{};
  event.sigev_notify = SIGEV_NONE;
  timer_t timer;
  if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) != 0) return false;
  timer_delete(timer);
  return true;
}

bool perf_events() {
  perf_event_attr attr{};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_TASK_CLOCK;
  attr.exclude_kernel = attr.exclude_hv = 1;
  long fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
  if (fd >= 0) close(static_cast<int>(fd));
  return fd >= 0;
}

void look_at_machine() {
  utsname u;
  uname(&u);
  cpu_set_t cpus;
  printf("machine: Linux %s, %s, %d CPUs for this process\n", u.release, u.machine,
         sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 0);

  int major = 0, minor = 0;
  sscanf(gnu_get_libc_version(), "%d.%d", &major, &minor);
  std::string version = std::string("glibc ") + gnu_get_libc_version();
  if (major > 2 || (major == 2 && minor >= 34)) good(version);
  else fatal(version, "2.34 or newer is needed; threads stay NPTL's");

  std::string library = find_library();
  Result check = run({"/proc/self/exe", "--self-check"}, {"LD_PRELOAD=" + library, "FIBERTHREAD_VERBOSE=1"});
  std::string said = check.err.substr(0, check.err.find('\n'));
  if (!check.started || !WIFEXITED(check.status)) fatal("self-check", "the test process did not end as it should; please report it");
  else if (WEXITSTATUS(check.status) == 0)
    good("self-check: libc's thread layout is understood, and a thread ran as a fiber (" + library + ")");
  else fatal("self-check", said.empty() ? "the library " + library + " was not loaded" : said);

#if defined(__x86_64__)
  constexpr unsigned long kFsgsbase = 2;
  if (getauxval(AT_HWCAP2) & kFsgsbase) good("FSGSBASE: a switch needs no system call");
  else if (long ns = switch_call_ns(); ns < 0) lacking("FSGSBASE", "a filter refuses the system call which a switch is then");
  else lacking("FSGSBASE", "each switch asks the kernel to set the thread pointer, which takes " + std::to_string(ns) + " ns here");
#endif
  if (preemption_timers()) good("timers of threads' CPU time: fibers that compute are preempted");
  else
    lacking("timers of threads' CPU time",
            "fibers that compute are not preempted: while others wait, they go on in kernel threads of their own");
  constexpr int kRegister = 1 << 4;
  if (syscall(SYS_membarrier, kRegister, 0, 0) == 0) good("membarrier");
  else lacking("membarrier", "entries to the scheduler pay for a barrier of their own");
  if (advice_works(kInstallGuard)) good("guard pages without mappings (Linux 6.13): any number of threads has them");
  else
    lacking("guard pages without mappings (Linux 6.13)", "guards are mappings, and threads beyond vm.max_map_count / 4 (" +
                                                             first_line("/proc/sys/vm/max_map_count") + " / 4) have none");
  if (!advice_works(kPopulateWrite)) lacking("MADV_POPULATE_WRITE (Linux 5.14)", "each thread of a burst pays for page faults of its own");
  if (!waits_for_nanoseconds()) lacking("epoll_pwait2 (Linux 5.11)", "a wait for descriptors and for a time takes two calls");
  if (!reads_without_waiting())
    lacking("RWF_NOWAIT for pipes (Linux 6.4)",
            "each read and write of a pipe asks poll() first, and reads of slow files take a kernel thread");
  if (!rings())
    lacking("io_uring", "it is not there, or not used because of a filter of system calls: a connect() that waits takes a kernel thread");
  if (!notices_set_clock())
    lacking("timers that are cancelled when the clock is set", "waits until a time of day notice it within a tenth of a second");
  if (!is_there(syscall(SYS_close_range, ~0u, ~0u, 0)))
    lacking("close_range", "closefrom() and reports of deadlocks close descriptors one by one");
  if (!perf_events()) lacking("perf events", "FIBERTHREAD_PREEMPT_US, a test aid, does not work");
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    lacking("address space", "limited to " + std::to_string(limit.rlim_cur >> 20) + " MB (ulimit -v), so are stacks of threads");
  if (first_line("/proc/sys/vm/overcommit_memory") == "2") lacking("overcommit", "off: stacks count in full, as those of NPTL do");
}

// ---- the program ----

struct Object {
  bool elf = false, right_machine = false, dynamic = false, go = false;
  std::string interpreter;
  std::set<std::string> imports, exports;
};

Object read_object(const std::string& path) {
  Object o;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat s;
  if (fd < 0) return o;
  void* map = fstat(fd, &s) == 0 && s.st_size > 0 ? mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0)
                                                  : MAP_FAILED;
  close(fd);
  if (map == MAP_FAILED) return o;
  auto* base = static_cast<const char*>(map);
  auto size = static_cast<size_t>(s.st_size);
  // Returns n objects of type T at offset `at`, or null if they are not inside the file, which may be damaged.
  auto get = [&]<class T>(T, size_t at, size_t n) -> const T* {
    return at <= size && n <= (size - at) / sizeof(T) && at % alignof(T) == 0 ? reinterpret_cast<const T*>(base + at) : nullptr;
  };
  auto text = [&](size_t at) { return at < size ? std::string(base + at, strnlen(base + at, size - at)) : std::string(); };
  auto* h = get(Elf64_Ehdr{}, 0, 1);
  o.elf = h && !memcmp(h->e_ident, ELFMAG, SELFMAG);
  o.right_machine = o.elf && h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_ident[EI_DATA] == ELFDATA2LSB &&
                    h->e_machine == fiberthread::kMachine;
  if (o.right_machine) {
    if (auto* ph = get(Elf64_Phdr{}, h->e_phoff, h->e_phnum))
      for (int i = 0; i < h->e_phnum; i++) {
        if (ph[i].p_type == PT_INTERP) o.interpreter = text(ph[i].p_offset);
        if (ph[i].p_type == PT_DYNAMIC) o.dynamic = true;
      }
    auto* sh = get(Elf64_Shdr{}, h->e_shoff, h->e_shnum);
    for (int i = 0; sh && i < h->e_shnum; i++) {
      if (h->e_shstrndx < h->e_shnum && text(sh[h->e_shstrndx].sh_offset + sh[i].sh_name) == ".go.buildinfo") o.go = true;
      if (sh[i].sh_type != SHT_DYNSYM || sh[i].sh_link >= h->e_shnum) continue;
      size_t n = sh[i].sh_size / sizeof(Elf64_Sym);
      auto* symbols = get(Elf64_Sym{}, sh[i].sh_offset, n);
      for (size_t k = 0; symbols && k < n; k++)
        (symbols[k].st_shndx == SHN_UNDEF ? o.imports : o.exports).insert(text(sh[sh[i].sh_link].sh_offset + symbols[k].st_name));
    }
  }
  munmap(map, size);
  return o;
}

bool is_privileged(const std::string& path) {
  struct stat s;
  return (stat(path.c_str(), &s) == 0 && (s.st_mode & (S_ISUID | S_ISGID))) ||
         getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

// Things that keep or cost kernel threads, by the names that a program imports for them.
const struct Use {
  const char* what;
  std::vector<const char*> names;
} kUses[] = {
    {"a thread with an affinity of its own gets a kernel thread of its own",
     {"pthread_setaffinity_np", "pthread_attr_setaffinity_np", "sched_setaffinity"}},
    {"a thread with a scheduling policy or nice value of its own gets a kernel thread of its own",
     {"pthread_setschedparam", "pthread_attr_setschedpolicy", "pthread_setschedprio", "sched_setscheduler", "setpriority", "nice"}},
    {"mutexes with priority inheritance or protection, and robust ones, are libc's: a thread that owns one has a kernel thread of its own",
     {"pthread_mutexattr_setprotocol", "pthread_mutexattr_setrobust"}},
    {"process-shared objects are libc's: waiting for one costs a kernel thread",
     {"pthread_mutexattr_setpshared", "pthread_condattr_setpshared", "pthread_rwlockattr_setpshared", "pthread_barrierattr_setpshared",
      "sem_open"}},
    {"timers: one on a thread's CPU time gives it a kernel thread of its own; threads of SIGEV_THREAD are libc's", {"timer_create"}},
    {"asynchronous I/O: its threads are libc's", {"aio_read", "aio_write", "lio_listio", "getaddrinfo_a"}},
    {"waits in the kernel, where the thread's worker is replaced by another: processes, name look-ups, locks of files",
     {"waitpid", "wait", "system", "getaddrinfo", "gethostbyname", "flock", "lockf"}},
};

// Returns the paths of the program and of all libraries that its loader would load.
std::vector<std::string> all_objects(const std::string& path, const Object& program) {
  std::vector<std::string> files{path};
  Result list = run({program.interpreter, "--list", path});
  for (size_t at = 0; at < list.out.size();) {
    size_t end = list.out.find('\n', at);
    if (end == std::string::npos) end = list.out.size();
    std::string line = list.out.substr(at, end - at);
    if (size_t from = line.find('/'), to = line.rfind(" ("); from != std::string::npos && to != std::string::npos && from < to)
      files.push_back(line.substr(from, to - from));
    at = end + 1;
  }
  return files;
}

bool is_libc(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  for (const char* own :
       {"libc.so", "ld-linux", "libpthread.so", "libm.so", "libdl.so", "librt.so", "libgcc_s.so", "libresolv.so", "libfiberthread.so"})
    if (!name.compare(0, strlen(own), own)) return true;
  return false;
}

// Returns whether the file has no zero bytes at its start. Such a file without #! is run by sh.
bool is_text(const std::string& path) {
  char part[512];
  FILE* f = fopen(path.c_str(), "r");
  size_t n = f ? fread(part, 1, sizeof part, f) : 0;
  if (f) fclose(f);
  return n && !memchr(part, 0, n);
}

// Tells which settings hold for the program, and where each comes from.
void look_at_settings(const std::string& path, const std::string& interpreter) {
  ProgramSettings found(path, interpreter);
  const Settings& settings = found.settings;
  bool any = false;
  for (size_t i = 0; i < kOptionCount; i++) {
    const Setting& s = settings.of[i];
    if (!s.value) continue;
    if (!any) puts("settings:");
    any = true;
    if (s.file) printf("  %s = %s, by %s:%u\n", kOptions[i].name, s.value, s.file, s.line);
    else printf("  %s = %s, by %s%s\n", kOptions[i].name, s.value, kPrefix, kOptions[i].name);
  }
  if (*settings.broken) fatal("settings", settings.broken);
  else if (const char* why = settings.why_nptl(found.names)) fatal("settings", why);
  else if (any) good("settings let this program run on fibers, where the library is preloaded");
}

int nothing_to_run = 0;  // the exit status, if the program or its interpreter cannot be run

// `script` is the path of the script whose interpreter this is.
void look_at_program(const std::string& name, int depth = 0, const std::string& script = "") {
  std::string why_not, path = find_program(name, &why_not);
  if (path.empty()) {
    printf("%s: %s\n", depth ? "interpreter" : "program", name.c_str());
    fatal(name, why_not.empty() ? "there is no such program" : why_not);
    nothing_to_run = why_not.empty() ? kNotFound : kCannotRun;
    return;
  }
  printf("%s: %s\n", depth ? "interpreter" : "program", path.c_str());
  Object program = read_object(path);
  if (!program.elf) {
    std::string first = first_line(path.c_str(), "#!");
    size_t from = first.find_first_not_of(" \t"), to = first.find_first_of(" \t", from);
    if (first.empty() && is_text(path) && depth == 0) {
      good("a script without #!, run by sh");
      return look_at_program("/bin/sh", depth + 1, path);
    }
    if (from == std::string::npos || depth > 3) return fatal("format", "it is neither an ELF file nor a script");
    std::string interpreter = first.substr(from, to == std::string::npos ? to : to - from);
    good("a script, run by its interpreter");
    bool env = interpreter.size() > 4 && !interpreter.compare(interpreter.size() - 4, 4, "/env");
    // The interpreter is the program that env starts. It stands after env's own options (-S) and variables.
    while (env && to != std::string::npos && (from = first.find_first_not_of(" \t", to)) != std::string::npos) {
      to = first.find_first_of(" \t", from);
      std::string word = first.substr(from, to == std::string::npos ? to : to - from);
      if (word.size() > 2 && !word.compare(0, 2, "-S")) word.erase(0, 2);            // attached
      if (word == "-u" || word == "-C" || word == "--unset" || word == "--chdir") {  // and its argument
        if (to != std::string::npos && (from = first.find_first_not_of(" \t", to)) != std::string::npos)
          to = first.find_first_of(" \t", from);
        continue;
      }
      if (word[0] == '-' || word.find('=') != std::string::npos) continue;
      interpreter = word;
      break;
    }
    return look_at_program(interpreter, depth + 1, env ? "" : script.empty() ? path : script);
  }
  if (std::string why = why_nothing_is_preloaded(path); !why.empty()) return fatal("preloading", why);
  good("linked dynamically, with " + program.interpreter);
  if (script.empty()) look_at_settings(path, "");
  else look_at_settings(script, path);
  if (is_privileged(path)) lacking("more rights than its caller", "for others than root, the loader preloads nothing into it");

  bool threads = false;
  std::set<std::string> said;
  struct Found {
    std::string names, files;
  } found[sizeof kUses / sizeof *kUses];
  for (auto& file : all_objects(path, program)) {
    Object o = read_object(file);
    std::string base = file.substr(file.rfind('/') + 1);
    auto has = [&](const char* symbol) { return o.imports.count(symbol) || o.exports.count(symbol); };
    if (has("__tsan_init") && said.insert("tsan").second)
      fatal("ThreadSanitizer (" + base + ")", "it keeps threads' state where fibers cannot have their own; threads stay NPTL's");
    if (has("__asan_init") && said.insert("asan").second)
      lacking("AddressSanitizer (" + base + ")", "runs on fibers; its reports name fibers as threads");
    if (o.go && said.insert("go").second) fatal("Go (" + base + ")", "its runtime makes system calls without libc; threads stay NPTL's");
    if (is_libc(file)) continue;
    threads |= o.imports.count("pthread_create") || o.imports.count("thrd_create");
    for (size_t i = 0; i < sizeof kUses / sizeof *kUses; i++)
      for (const char* symbol : kUses[i].names) {
        if (!o.imports.count(symbol)) continue;
        if (found[i].names.find(symbol) == std::string::npos) found[i].names += (found[i].names.empty() ? "" : ", ") + std::string(symbol);
        if (found[i].files.find(base) == std::string::npos) found[i].files += (found[i].files.empty() ? "" : ", ") + base;
      }
  }
  if (impossible) return;
  if (threads) good("the program, or a library of its own, makes threads: they become fibers");
  else lacking("threads", "neither the program nor the libraries that it is linked with make any; libraries that it loads later may");
  bool first = true;
  for (size_t i = 0; i < sizeof kUses / sizeof *kUses; i++) {
    if (found[i].names.empty()) continue;
    if (first) printf("these may keep or cost kernel threads, if the program calls them:\n");
    first = false;
    printf("  %s\n       (%s in %s)\n", kUses[i].what, found[i].names.c_str(), found[i].files.c_str());
  }
}

}  // namespace

static bool has_text(const std::string& path, const std::string& text) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat s;
  void* map = fd >= 0 && fstat(fd, &s) == 0 && s.st_size > 0 ? mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0)
                                                             : MAP_FAILED;
  if (fd >= 0) close(fd);
  if (map == MAP_FAILED) return false;
  bool found = memmem(map, static_cast<size_t>(s.st_size), text.data(), text.size());
  munmap(map, static_cast<size_t>(s.st_size));
  return found;
}

ThreadSanitizer sanitizer_of(const std::string& path) {
  Object program = read_object(path);
  if (program.imports.count("__tsan_init")) return ThreadSanitizer::Shared;
  // gcc -static-libtsan exports no name of it.
  return program.exports.count("__tsan_init") || has_text(path, "WARNING: ThreadSanitizer: ") ? ThreadSanitizer::Linked
                                                                                              : ThreadSanitizer::None;
}

std::string why_nothing_is_preloaded(const std::string& path) {
  Object program = read_object(path);
  if (!program.elf) return "";
  if (!program.right_machine) return "it is not of this machine's architecture";
  if (program.interpreter.empty()) return "it is linked statically, and its threads are its own";
  if (program.interpreter.find("musl") != std::string::npos) return "it is linked with musl";
  if (is_privileged(path) && geteuid() != 0) return "it has more rights than its caller (setuid, setgid, capabilities)";
  return "";
}

int main_doctor(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    bool asked = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    fputs(
        "usage: fiberthread doctor [PROGRAM]\n"
        "Says whether this machine can run fibers, and what it lacks for them. Of a program, says whether its threads become fibers, and\n"
        "what will cost kernel threads.\n",
        asked ? stdout : stderr);
    return asked ? 0 : kWrongUsage;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  look_at_machine();
  bool machine = !impossible;
  if (argc == 2) look_at_program(argv[1]);
  if (!machine) puts("verdict: threads on this machine stay those of libc, whatever the program");
  else if (nothing_to_run) puts("verdict: there is nothing to run");
  else if (impossible) puts("verdict: the program's threads stay those of libc");
  else puts(argc == 2 ? "verdict: threads that the program makes become fibers" : "verdict: threads become fibers on this machine");
  return nothing_to_run ? nothing_to_run : impossible;
}
