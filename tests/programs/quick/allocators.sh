#!/bin/bash
# SPDX-License-Identifier: MIT
# With other allocators, preloaded before and after the library, threads that end, are cancelled, fork and exec behave as with the same
# allocator on NPTL. A child of a fork may hang on NPTL by mimalloc 3's own locks. So they may also behave as without an allocator there.
# packages: libjemalloc2 libmimalloc2.0|libmimalloc3|libmimalloc2 libtcmalloc-minimal4|libtcmalloc-minimal4t64
. "$(dirname "$0")/../lib.sh"
found=0
cd "$TMP" || exit 1
for name in libjemalloc.so.2 libmimalloc.so libtcmalloc_minimal.so.4; do
  allocator=$(/sbin/ldconfig -p | sed -n "s/.*$name.* => //p" | head -n 1)
  [ -e "$allocator" ] || continue
  found=1
  for program in "cancel_rules" "thread_end_unwinding" "thread_end_keys" "thread_end_process" "process_fork noise" "process_exec vfork" "loader_plugins" "tls"; do
    set -- $program
    LD_PRELOAD="$allocator" timeout -k 5 100 "$BUILD/tests/preloaded/$1" ${2:-} >nptl 2>&1
    status=$?
    for preload in "$LIBRARY $allocator" "$allocator $LIBRARY"; do
      LD_PRELOAD="$preload" timeout -k 5 100 "$BUILD/tests/preloaded/$1" ${2:-} >fiber 2>&1
      got=$?
      sed -i '/wrong ELF class: ELFCLASS64/d' nptl fiber # the loader prints this for 32-bit children
      [ $got = $status ] && cmp -s nptl fiber && continue
      timeout -k 5 100 "$BUILD/tests/preloaded/$1" ${2:-} >plain 2>&1 && [ $got = 0 ] && cmp -s plain fiber && continue
      diff nptl fiber | head -n 20
      fail "$program with $preload: status $got, not $status, or the output differs"
    done
  done
done
[ $found = 1 ] || skip "none of jemalloc, mimalloc and tcmalloc is installed"
