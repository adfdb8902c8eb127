// SPDX-License-Identifier: MIT
#include "preload/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <initializer_list>

namespace fiberthread {
namespace {

constexpr long kMostBytes = 64 << 10;  // of a file

// Returns whether `name` has the form of the pattern's first `n` bytes.
bool has_form(const char* pattern, size_t n, const char* name) {
  const char *end = pattern + n, *star = nullptr, *again = nullptr;  // the last `*`, and the first character that it may still take
  while (*name) {
    if (pattern != end && *pattern == '*') {
      star = pattern++;
      again = name;
    } else if (pattern != end && *pattern == *name) {
      pattern++;
      name++;
    } else if (star) {
      pattern = star + 1;
      name = ++again;
    } else {
      return false;
    }
  }
  while (pattern != end && *pattern == '*') pattern++;
  return pattern == end;
}

const char* last_part(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Takes the spaces away at both ends of [from, to), and ends the text with a zero.
char* trim(char* from, char* to) {
  while (from != to && is_space(*from)) from++;
  while (from != to && is_space(to[-1])) to--;
  *to = 0;
  return from;
}

const char* variable(char** envp, const char* name) {
  size_t n = strlen(name);
  for (; envp && *envp; envp++)
    if (!strncmp(*envp, name, n) && (*envp)[n] == '=') return *envp + n + 1;
  return nullptr;
}

}  // namespace

bool names_program(const char* list, const ProgramNames& program) {
  for (;; list++) {
    size_t n = strcspn(list, ":");
    bool path = memchr(list, '/', n);
    for (const char* name : {program.file, program.called})
      if (n && name && has_form(list, n, path ? name : last_part(name))) return true;
    list += n;
    if (!*list) return false;
  }
}

bool Settings::take(const char* name, size_t length, const char* value) {
  const OptionRow* row = option_row(name, length);
  uint64_t n;
  if (!row || !understand(row->form, value, n)) return false;
  of[row - kOptions] = {value, n, nullptr, 0};
  return true;
}

const Setting& Settings::get(const char* name) const { return of[option_row(name, strlen(name)) - kOptions]; }

const char* Settings::why_nptl(const ProgramNames& program) const {
  if (*broken) return "a file of settings is broken";
  const Setting &only = get("ONLY"), &without = get("NOT");
  if (get("NPTL").number) return get("NPTL").file ? "a file of settings has nptl = 1" : "asked for by FIBERTHREAD_NPTL";
  if (only.value && *only.value && !names_program(only.value, program))
    return only.file ? "a file of settings has an \"only\" that does not name this program" : "FIBERTHREAD_ONLY does not name this program";
  if (without.value && *without.value && names_program(without.value, program))
    return without.file ? "a file of settings has a \"not\" that names this program" : "FIBERTHREAD_NOT names this program";
  return nullptr;
}

// The form: lines "name = value", where the name is a variable's without the prefix, in letters of either case. Those after a line
// "[programs]" hold for these programs only. Lines that begin with # or ; are comments.
void Settings::parse(char* text, size_t size, const char* path, const ProgramNames& program) {
  bool applies = true;
  uint32_t number = 1;
  Text why(broken, sizeof broken - 1);
  auto fail = [&]() -> Text& { return why << path << ":" << uint64_t{number} << ": "; };
  Setting found[kMostOptions];
  for (char *at = text, *end = text + size, *next; at < end; at = next, number++) {
    auto* newline = static_cast<char*>(memchr(at, '\n', static_cast<size_t>(end - at)));
    next = newline ? newline + 1 : end + 1;
    if (memchr(at, 0, static_cast<size_t>(next - 1 - at))) return void(fail() << "a zero byte");
    char* line = trim(at, next - 1);
    if (!*line || *line == '#' || *line == ';') continue;
    if (*line == '[') {
      char* close = line + strlen(line) - 1;
      if (*close != ']') return void(fail() << "a line that begins with [ must end with ]");
      char* list = trim(line + 1, close);
      if (!*list) return void(fail() << "no program between [ and ]");
      applies = names_program(list, program);
      continue;
    }
    char* equals = strchr(line, '=');
    if (!equals) return void(fail() << "neither \"name = value\" nor \"[program]\"");
    char* value = trim(equals + 1, equals + 1 + strlen(equals + 1));
    char* name = trim(line, equals);
    for (char* c = name; *c; c++) *c = *c >= 'a' && *c <= 'z' ? static_cast<char>(*c - 32) : *c == '-' ? '_' : *c;
    const OptionRow* row = option_row(name, strlen(name));
    if (!row) return void(fail() << name << " is no option (nearest: " << nearest_option(name, strlen(name)) << ")");
    uint64_t n;
    if (!understand(row->form, value, n)) return explain(fail() << name << "=" << value, row->form, value);
    if (applies) found[row - kOptions] = {value, n, path, number};
  }
  for (size_t i = 0; i < kOptionCount; i++)
    if (found[i].value) of[i] = found[i];
}

void Settings::read_file(const char* path, const ProgramNames& program) {
  if (*broken) return;
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  // A home that this user may not search is another user's, as that of a daemon that root has started.
  if (fd == -ENOENT || fd == -ENOTDIR || (fd == -EACCES && path == user_file)) return;
  struct stat s;
  long memory = 0;
  size_t size = 0;
  const char* why = nullptr;
  if (fd < 0) why = fd == -EACCES ? "it may not be read" : "it cannot be opened";
  else if (raw_syscall(SYS_fstat, fd, arg(&s)) != 0 || !S_ISREG(s.st_mode)) why = "it is no regular file";
  // Another user must not choose files that this one writes.
  else if (s.st_uid != 0 && s.st_uid != static_cast<uid_t>(raw_syscall(SYS_geteuid))) why = "it belongs to another user";
  else if (s.st_size > kMostBytes) why = "it is too large";
  else if (s.st_size > 0) {
    // Memory of its own, because a file may be cut while it is mapped. It stays, since settings point to it.
    memory = raw_syscall(SYS_mmap, 0, s.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory < 0 && memory > -4096) why = "there is no memory to read it";
    for (long n = 1; !why && n != 0;) {
      n = raw_syscall(SYS_read, fd, memory + static_cast<long>(size), s.st_size - static_cast<long>(size));
      if (n > 0) size += static_cast<size_t>(n);
      else if (n < 0 && n != -EINTR) why = "it cannot be read";
    }
  }
  if (fd >= 0) raw_syscall(SYS_close, fd);
  if (why) Text(broken, sizeof broken - 1) << path << ": " << why;
  else if (size) parse(reinterpret_cast<char*>(memory), size, path, program);
}

void Settings::read_files(char** envp, const ProgramNames& program) {
  read_file(kSystemSettings, program);
  const char *config = variable(envp, "XDG_CONFIG_HOME"), *home = variable(envp, "HOME");
  Text path(user_file, sizeof user_file - 1);
  if (config && *config == '/') path.put(config, strlen(config)).put("/fiberthread.conf", 17);
  else if (home && *home == '/') path.put(home, strlen(home)).put("/.config/fiberthread.conf", 25);
  if (path.room() == 0) user_file[0] = 0;  // it may be cut
  if (*user_file) read_file(user_file, program);
}

}  // namespace fiberthread
