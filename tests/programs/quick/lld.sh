#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: lld g++
# A linker that does everything in parallel, by LLVM's thread pool.
. "$(dirname "$0")/../lib.sh"
need ld.lld
cat >"$TMP/a.cpp" <<'C'
#include <iostream>
#include <map>
#include <regex>
int main() { std::map<std::string, int> m{{"a", 1}}; std::cout << std::regex_match("aaa", std::regex("a*")) << m["a"] << "\n"; }
C
g++ -g -O1 -c -o "$TMP/a.o" "$TMP/a.cpp" || fail "g++ failed"
# Static, so that there is much to link, and the addresses in the output depend on the results of the threads.
export LLD_IN_TEST=1 # makes lld end by exit, which statistics need
link="g++ -static -fuse-ld=lld -Wl,--threads=8,--gc-sections,--icf=all,--build-id=sha1 -o $TMP/a $TMP/a.o"
# lld's thread pool starts threads only when there is work.
compare 1 sh -c "$link && cat $TMP/a"
[ "$("$TMP/a")" = 11 ] || fail "what it linked does not work"
