#!/bin/bash
# SPDX-License-Identifier: MIT
# The library needs no symbol that glibc 2.34 lacks, wherever it was built. So one library works for all releases.
# packages: binutils
. "$(dirname "$0")/../lib.sh"
need readelf
for so in "$LIBRARY" "$BUILD"/*/libfiberthread.so; do
  [ -e "$so" ] || continue # this one was not built
  names=$(readelf -W --dyn-syms "$so" | grep -oE '[A-Za-z_0-9]+@GLIBC_2\.[0-9]+') || fail "$so names no versions"
  newer=$(echo "$names" | awk -F. '$NF > 34')
  [ -z "$newer" ] || fail "$so needs" $newer
done
