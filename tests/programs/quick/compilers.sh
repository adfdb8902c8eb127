#!/bin/bash
# packages: clang
# What Clang makes of the library, the launcher and some programs, without a warning: threads run on it too. `make compilers` builds all
# there is, by each compiler; BUILD=build/clang tests/run then runs it.
. "$(dirname "$0")/../lib.sh"
need clang++
top=$(cd "$(dirname "$0")/../../.." && pwd)
unset MAKEFLAGS MFLAGS MAKELEVEL LIBRARY
programs=(preloaded/blocking preloaded/cancel_rules preloaded/dlopen preloaded/exit_ways preloaded/fork_locks preloaded/preempt_stress preloaded/signals_frames)
make -C "$top" --no-print-directory -j2 CC=clang CXX=clang++ WERROR=1 BUILD="$TMP/clang" all "${programs[@]/#/$TMP/clang/tests/}" >"$TMP/log" 2>&1 ||
  { tail -n 40 "$TMP/log"; fail "Clang does not build it"; }
BUILD=$TMP/clang "$top/tests/run" "${programs[@]}" || exit
[ "$(timeout 20 "$TMP/clang/fiberthread" echo launched)" = launched ] || fail "the launcher does not run"
