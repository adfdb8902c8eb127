#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++ libboost-coroutine-dev
. "$(dirname "$0")/../lib.sh"
g++ -std=c++17 -O2 -w -pthread -o "$TMP/coroutines" "$(dirname "$0")/../src/coroutines.cpp" -lboost_context -lboost_coroutine ||
  fail "g++ failed"
compare 24 "$TMP/coroutines"
