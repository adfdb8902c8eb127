#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# 100,000 threads can be blocked at once, at default limits, in an unmodified program.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/many" "$(dirname "$0")/../src/many.c" || fail "gcc failed"
compare 1064 "$TMP/many" 1000
fiber 2 "$TMP/many" 100000 >"$TMP/out" || fail "status $?: $(cat "$TMP/out")"
[ "$(cat "$TMP/out")" = "$(printf '100000 1\n65')" ] || fail "$(cat "$TMP/out")"
made_fibers 100064
fiber 2 "$TMP/many" 100000 65536 >/dev/null || fail "with small stacks: status $?"
