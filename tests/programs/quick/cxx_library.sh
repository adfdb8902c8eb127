#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
# The C++ library's parts that use threads: futures, stop tokens, latches, barriers, semaphores, atomic waits, locks, call_once
# and statics that throw first, thread_local destructors, exceptions across waits, an exit with threads of every kind.
. "$(dirname "$0")/../lib.sh"
need g++
g++ -std=c++20 -O1 -w -pthread -o "$TMP/cxx_library" "$(dirname "$0")/../src/cxx_library.cpp" || fail "g++ failed"
for ((i = 0; i < 3; i++)); do compare 400 "$TMP/cxx_library"; done
