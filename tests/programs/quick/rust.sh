#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: rustc
. "$(dirname "$0")/../lib.sh"
need rustc
rustc -O -o "$TMP/threads" "$(dirname "$0")/../src/threads.rs" || fail "rustc failed"
compare 200 "$TMP/threads"
