#!/bin/bash
# packages: clang
# Threads run on the library as Clang makes it, too, and so does its launcher. `make test` builds it; `make compilers` builds all by each compiler.
. "$(dirname "$0")/../lib.sh"
[ -e "$BUILD/clang/libfiberthread.so" ] || skip "it was not built by Clang"
LIBRARY=$BUILD/clang/libfiberthread.so "$(dirname "$0")/../../run" preloaded/blocking preloaded/cancel_rules preloaded/exit_ways \
  preloaded/signals_frames || exit
[ "$(timeout 60 "$BUILD/clang/fiberthread" echo launched)" = launched ] || fail "the launcher does not run"
