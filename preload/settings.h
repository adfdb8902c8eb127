// SPDX-License-Identifier: MIT
// Which options hold for a program, and where each comes from. The library's constructor asks, and `fiberthread doctor` tells.
//
// There are three sources: /etc/fiberthread.conf, the user's own fiberthread.conf, and the variables. Of an option that several of them
// set, the last holds. Nothing here takes memory or a lock of libc: the library asks before libc is ready.
#pragma once
#include "preload/options.h"

namespace fiberthread {

constexpr size_t kMostOptions = 32;
constexpr char kSystemSettings[] = "/etc/fiberthread.conf";

// A program, by the names that a list may give it: its file, and the name by which it was executed. Of a script, the first is its
// interpreter, and the second the script.
struct ProgramNames {
  const char* file;
  const char* called;
};
// Returns true if the list, divided by ':', has one of them. An entry with a slash stands for a whole path, and another one for a path's
// last part. `*` stands for any characters.
bool names_program(const char* list, const ProgramNames& program);

struct Setting {
  const char* value = nullptr;  // null: not set. Lasts as long as the process
  uint64_t number = 0;          // see understand()
  const char* file = nullptr;   // null: a variable
  uint32_t line = 0;
};

struct Settings {
  Setting of[kMostOptions];  // by the rows of options.def
  char broken[512] = {};     // "FILE:LINE: why" of a file that cannot be understood; nothing of that file holds
  char user_file[512] = {};  // the path of the user's own file; empty: there is no home

  // Reads both files. `envp` says where the user's is.
  void read_files(char** envp, const ProgramNames& program);
  // Takes a variable, named without the prefix. Returns false if there is none of that name, or the value is not valid.
  bool take(const char* name, size_t length, const char* value);
  const Setting& get(const char* name) const;
  // Returns why the program's threads shall stay libc's, or null. An empty list counts as none.
  const char* why_nptl(const ProgramNames& program) const;

 private:
  void read_file(const char* path, const ProgramNames& program);
  void parse(char* text, size_t size, const char* path, const ProgramNames& program);
};

}  // namespace fiberthread
