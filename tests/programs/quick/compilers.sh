#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: clang
# The library and the launcher also work when Clang has built them. `make test` builds them; `make compilers` builds all by each compiler.
. "$(dirname "$0")/../lib.sh"
[ -e "$BUILD/clang/libfiberthread.so" ] || skip "it was not built by Clang"
# The emulator does not run these programs. Otherwise its tests of them would match the patterns as well.
LIBRARY=$BUILD/clang/libfiberthread.so "$(dirname "$0")/../../run" preloaded/blocking preloaded/dlsym preloaded/errors_mutex \
  preloaded/signals_stack || exit
[ "$(timeout 60 "$BUILD/clang/fiberthread" echo launched)" = launched ] || fail "the launcher does not run"
