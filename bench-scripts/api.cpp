// SPDX-License-Identifier: MIT
// usage: api --list | api CASE      prints ns=NUMBER, the time of one operation; ends with 3 if there is no such case.
#include "api.h"

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (auto* r = Case::Register::first; r; r = r->next) {
    const Case& c = r->c;
    if (!strcmp(argv[1], "--list")) printf("%s\t%g\t%d\t%s\n", c.name, c.goal, c.cpus, c.what);
    if (strcmp(argv[1], c.name)) continue;
    printf("ns=%.2f\n", c.run());
    return 0;
  }
  if (!strcmp(argv[1], "--list")) return 0;
  puts("–");
  return 3;
}
