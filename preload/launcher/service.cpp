// SPDX-License-Identifier: MIT
// fiberthread enable|disable SERVICE: the systemd drop-in by which a service runs on fibers, and its removal. The files of the unit are read
// here and not by systemctl, so that it works in the making of images, where no systemd runs.
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "preload/launcher/launcher.h"

using namespace fiberthread;

namespace {

constexpr char kMark[] = "# Written by `fiberthread enable`";  // a file that begins otherwise is not ours to change
constexpr const char* kUnitFolders[] = {"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
                                        "/usr/lib/systemd/system", "/lib/systemd/system"};

std::string root;  // of the system whose services these are

bool read_file(const std::string& path, std::string& text) {
  FILE* f = fopen(path.c_str(), "r");
  if (!f) return false;
  char part[4096];
  text.clear();
  size_t n;
  do {
    n = fread(part, 1, sizeof part, f);
    text.append(part, n);
  } while (n == sizeof part);
  fclose(f);
  return true;
}

// What matters of a unit: its files, in the order in which systemd reads them.
struct Unit {
  std::string name;  // with ".service"
  bool found = false;
  std::vector<std::string> programs;  // of ExecStart=
  std::string preload;                // LD_PRELOAD as the unit sets it
  std::vector<std::string> files_of_variables;
  bool hides_home = false;

  explicit Unit(const std::string& service) : name(service) {
    if (name.size() < 8 || name.compare(name.size() - 8, 8, ".service")) name += ".service";
    std::vector<std::string> names{name};
    if (size_t at = name.find('@'); at != std::string::npos) names.insert(names.begin(), name.substr(0, at + 1) + ".service");
    // Of a unit's files with one name, the one in the first folder counts. Drop-ins are read in the order of their names.
    std::string text;
    for (auto n = names.rbegin(); n != names.rend() && !found; n++)
      for (const char* folder : kUnitFolders)
        if (!found && read_file(root + folder + "/" + *n, text)) {
          found = true;
          take(text);
        }
    std::vector<std::pair<std::string, std::string>> drop_ins;
    for (auto& n : names)
      for (const char* folder : kUnitFolders) {
        std::string drop_in_folder = root + folder;
        drop_in_folder.append("/").append(n).append(".d/");
        if (DIR* d = opendir(drop_in_folder.c_str())) {
          while (dirent* e = readdir(d)) {
            std::string file = e->d_name, path = drop_in_folder + file;
            bool known = std::any_of(drop_ins.begin(), drop_ins.end(), [&](auto& other) { return other.first == file; });
            if (file.size() > 5 && !file.compare(file.size() - 5, 5, ".conf") && !known) drop_ins.push_back({file, path});
          }
          closedir(d);
        }
      }
    std::sort(drop_ins.begin(), drop_ins.end());
    for (auto& [file, path] : drop_ins)
      if (read_file(path, text) && text.compare(0, sizeof kMark - 1, kMark)) take(text);
  }

 private:
  void take(const std::string& text) {
    std::string line;
    for (size_t at = 0; at < text.size();) {
      size_t end = text.find('\n', at);
      if (end == std::string::npos) end = text.size();
      line += text.substr(at, end - at);
      at = end + 1;
      if (!line.empty() && line.back() == '\\') {  // goes on in the next one
        line.back() = ' ';
        continue;
      }
      if (size_t equals = line.find('='); equals != std::string::npos)
        take(line.substr(0, line.find_last_not_of(" \t", equals - (equals > 0)) + 1), line.substr(equals + 1));
      line.clear();
    }
  }
  void take(const std::string& key, std::string value) {
    value.erase(0, value.find_first_not_of(" \t"));
    if (key == "ExecStart") {
      if (value.empty()) programs.clear();
      value.erase(0, value.find_first_not_of("@-:+!|"));
      if (std::string program = value.substr(0, value.find_first_of(" \t")); !program.empty()) programs.push_back(program);
    } else if (key == "Environment") {
      if (value.empty()) preload.clear();
      if (size_t at = value.find("LD_PRELOAD="); at != std::string::npos) {
        at += strlen("LD_PRELOAD=");
        preload = value.substr(at, value.find_first_of(" \t\"'", at) - at);
      }
    } else if (key == "EnvironmentFile") {
      if (value.empty()) files_of_variables.clear();
      else files_of_variables.push_back(value.substr(value[0] == '-'));
    } else if (key == "ProtectHome") {
      hides_home = value != "no" && value != "false" && value != "0" && value != "off";
    }
  }
};

bool is_script(const std::string& path) {
  std::string text;
  return read_file(root + path, text) && !text.compare(0, 2, "#!");
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

struct Arguments {
  bool write = false;
  std::string service;
  std::vector<std::string> settings;
};

int usage(bool asked, bool enable) {
  fputs(enable ? "usage: fiberthread enable [--write] [--root=DIR] SERVICE [NAME=VALUE…]\n"
                 "Prints the systemd drop-in by which a service runs on fibers, with these settings (fiberthread(7); workers=4 is\n"
                 "FIBERTHREAD_WORKERS=4). Only the service's own programs get them, and not what they execute.\n"
               : "usage: fiberthread disable [--write] [--root=DIR] SERVICE\n"
                 "Says which file \"enable\" has written for the service.\n",
        asked ? stdout : stderr);
  fputs(enable ? "  --write       write it to /etc/systemd/system/SERVICE.service.d/fiberthread.conf\n" : "  --write       remove it\n",
        asked ? stdout : stderr);
  fputs("  --root=DIR    of the system below this directory, for example an image\n", asked ? stdout : stderr);
  return asked ? 0 : kWrongUsage;
}

// Returns a status to end with, or -1.
int read_arguments(int argc, char** argv, bool enable, Arguments& to) {
  const option options[] = {
      {"write", no_argument, nullptr, 'w'}, {"root", required_argument, nullptr, 'r'}, {"help", no_argument, nullptr, 'h'}, {}};
  for (int c; (c = getopt_long(argc, argv, "h", options, nullptr)) != -1;) switch (c) {
      case 'w': to.write = true; break;
      case 'r': root = optarg; break;
      case 'h': return usage(true, enable);
      default: return kWrongUsage;
    }
  if (optind >= argc || (!enable && optind + 1 < argc)) return usage(false, enable);
  to.service = argv[optind++];
  if (to.service.empty() || to.service.find('/') != std::string::npos) {
    fprintf(stderr, "%s: \"%s\" is no name of a service\n", argv[0], to.service.c_str());
    return kWrongUsage;
  }
  for (; optind < argc; optind++) to.settings.push_back(argv[optind]);
  return -1;
}

std::string folder_of(const Unit& unit) { return root + "/etc/systemd/system/" + unit.name + ".d"; }
std::string file_of(const Unit& unit) { return folder_of(unit) + "/fiberthread.conf"; }

// Returns "FIBERTHREAD_NAME=value", or "" after a message.
std::string variable_of(const char* program, const std::string& setting) {
  size_t equals = setting.find('=');
  std::string name = setting.substr(0, equals), value = equals == std::string::npos ? "" : setting.substr(equals + 1);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(toupper(c));
  if (!name.compare(0, sizeof kPrefix - 1, kPrefix)) name.erase(0, sizeof kPrefix - 1);
  const OptionRow* row = option_row(name.data(), name.size());
  uint64_t n;
  if (!row || equals == std::string::npos) {
    fprintf(stderr, "%s: \"%s\" is no setting (nearest: %s=…)\n", program, setting.c_str(), nearest_option(name.data(), name.size()));
    return "";
  }
  if (!understand(row->form, value.c_str(), n)) {
    char memory[512];
    Text why(memory, sizeof memory);
    explain(why, row->form, value.c_str());
    fprintf(stderr, "%s: %s%.*s\n", program, setting.c_str(), static_cast<int>(why.size()), why.data());
    return "";
  }
  return kPrefix + name + "=" + value;
}

// A value between quotes, in which systemd replaces % and $ as it does in others.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '%') out += '%';
    out += c;
  }
  return out + "\"";
}

}  // namespace

int main_enable(int argc, char** argv) {
  Arguments given;
  if (int status = read_arguments(argc, argv, true, given); status >= 0) return status;
  Unit unit(given.service);
  if (!unit.found) {
    fprintf(stderr, "%s: there is no %s in systemd's folders\n", argv[0], unit.name.c_str());
    return kNotFound;
  }
  std::string library = find_library();
  std::string text = std::string(kMark) + "; `fiberthread disable " + given.service + " --write` removes it.\n[Service]\n";
  text += "Environment=" + quoted("LD_PRELOAD=" + library + (unit.preload.empty() ? "" : ":" + unit.preload)) + "\n";
  bool only = false;
  std::string variables, names;
  for (auto& s : given.settings) {
    std::string variable = variable_of(argv[0], s);
    if (variable.empty()) return kWrongUsage;
    only |= !variable.compare(0, strlen("FIBERTHREAD_ONLY="), "FIBERTHREAD_ONLY=");
    variables += "Environment=" + quoted(variable) + "\n";
  }
  bool script = false;
  for (auto& program : unit.programs) {
    script |= is_script(program);
    std::string name = last_part(program);
    if ((":" + names + ":").find(":" + name + ":") == std::string::npos) names += (names.empty() ? "" : ":") + name;
  }
  if (!only && !script && !names.empty()) variables = "Environment=" + quoted("FIBERTHREAD_ONLY=" + names) + "\n" + variables;
  text += variables;
  if (given.write) {
    std::string there;
    if (read_file(file_of(unit), there) && there.compare(0, sizeof kMark - 1, kMark)) {
      fprintf(stderr, "%s: %s is there already, and was not written by this command\n", argv[0], file_of(unit).c_str());
      return 1;
    }
    mkdir(folder_of(unit).c_str(), 0755);
    // Written beside it first, so that no half of a file is ever read.
    std::string beside = file_of(unit) + ".new";
    FILE* f = fopen(beside.c_str(), "w");
    bool written = f && fwrite(text.data(), 1, text.size(), f) == text.size();
    if (f && fclose(f) != 0) written = false;
    if (!written || rename(beside.c_str(), file_of(unit).c_str()) != 0) {
      fprintf(stderr, "%s: %s cannot be written: %s\n", argv[0], file_of(unit).c_str(), strerror(errno));
      unlink(beside.c_str());
      return 1;
    }
    printf("%s is written. It holds from the next start on: systemctl daemon-reload && systemctl restart %s\n", file_of(unit).c_str(),
           given.service.c_str());
  } else {
    fputs(text.c_str(), stdout);
  }
  auto warn = [&](const std::string& what) { fprintf(stderr, "%s: %s\n", argv[0], what.c_str()); };
  if (script && !only)
    warn("the service is started by a script, and all that it executes runs on fibers; only=PROGRAM[:PROGRAM…] names those that shall");
  if (library[0] != '/') warn("the library was not found beside this program or in ../lib; the loader will look for it");
  else if (unit.hides_home && (!library.compare(0, 6, "/home/") || !library.compare(0, 6, "/root/")))
    warn("the service cannot see " + library + " (ProtectHome=), and would run on libc's threads; install the library elsewhere");
  for (auto& file : unit.files_of_variables)
    if (std::string said; read_file(root + file, said) && said.find("LD_PRELOAD=") != std::string::npos)
      warn(std::string(file).append(" sets LD_PRELOAD, which comes after this drop-in: add ").append(library).append(" there"));
  return 0;
}

int main_disable(int argc, char** argv) {
  Arguments given;
  if (int status = read_arguments(argc, argv, false, given); status >= 0) return status;
  Unit unit(given.service);
  std::string there, file = file_of(unit);
  if (!read_file(file, there)) {
    printf("%s is not there: nothing to take back\n", file.c_str());
    return 0;
  }
  if (there.compare(0, sizeof kMark - 1, kMark)) {
    fprintf(stderr, "%s: %s was not written by \"fiberthread enable\", and stays\n", argv[0], file.c_str());
    return 1;
  }
  if (!given.write) {
    printf("%s would be removed: add --write\n", file.c_str());
    return 0;
  }
  if (unlink(file.c_str()) != 0) {
    fprintf(stderr, "%s: %s cannot be removed: %s\n", argv[0], file.c_str(), strerror(errno));
    return 1;
  }
  rmdir(folder_of(unit).c_str());  // if nothing else is in it
  printf("%s is removed. It holds from the next start on: systemctl daemon-reload && systemctl restart %s\n", file.c_str(),
         given.service.c_str());
  return 0;
}
