#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: clang
# Threads run on the library as Clang makes it, too, and so does its launcher. `make test` builds it; `make compilers` builds all by each compiler.
. "$(dirname "$0")/../lib.sh"
[ -e "$BUILD/clang/libfiberthread.so" ] || skip "it was not built by Clang"
# Programs that are not run by the emulator as well, under names that hold these.
LIBRARY=$BUILD/clang/libfiberthread.so "$(dirname "$0")/../../run" preloaded/blocking preloaded/dlsym preloaded/errors_mutex \
  preloaded/signals_stack || exit
[ "$(timeout 60 "$BUILD/clang/fiberthread" echo launched)" = launched ] || fail "the launcher does not run"
