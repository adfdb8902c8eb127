// SPDX-License-Identifier: MIT
// Names of functions from the symbol tables of ELF files, for systems without libdw.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "preload/launcher/target.h"

namespace fiberthread {

class ElfSymbols {
 public:
  explicit ElfSymbols(const Target& target) : target_(target) {}
  // Returns the name of the function at this address as it stands in the file, or "".
  std::string function(uint64_t address);

 private:
  struct Function {
    uint64_t address, size;
    std::string name;
  };
  struct Object {
    std::vector<Function> functions;  // by address
    std::vector<Mapping> parts;       // where the file's contents belong, without a bias: low and high are the file's own addresses
  };
  static Object read(const std::string& path);
  const Target& target_;
  std::map<std::string, Object> objects_;  // by path
};

// Returns a symbol's name as it stands in the source.
std::string demangled(const char* name);

}  // namespace fiberthread
