#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
. "$(dirname "$0")/../lib.sh"
g++ -std=c++20 -O2 -w -pthread -o "$TMP/modern" "$(dirname "$0")/../src/modern.cpp" || fail "g++ failed"
for ((i = 0; i < 5; i++)); do compare 100 "$TMP/modern"; done
