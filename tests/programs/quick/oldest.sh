#!/bin/bash
# SPDX-License-Identifier: MIT
# One library for all releases of glibc: wherever it was built, it needs no symbol that 2.34 lacks.
# packages: binutils
. "$(dirname "$0")/../lib.sh"
need readelf
for so in "$LIBRARY" "$BUILD"/*/libfiberthread.so; do
  [ -e "$so" ] || continue # none built
  names=$(readelf -W --dyn-syms "$so" | grep -oE '[A-Za-z_0-9]+@GLIBC_2\.[0-9]+') || fail "$so names no versions"
  newer=$(echo "$names" | awk -F. '$NF > 34')
  [ -z "$newer" ] || fail "$so needs" $newer
done
