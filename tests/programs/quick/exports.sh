#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: binutils
# The library exports the names in tests/exports.txt and no others, needs only libc and the loader, and initializes nothing when it is
# loaded.
set -u
list="$(dirname "$0")/../../exports.txt"
bad=0
differ() { LC_ALL=C diff "$list" "$2" >"$TMP/diff" || { cat "$TMP/diff"; echo "$1"; bad=1; }; }

nm -D --defined-only "$LIBRARY" | awk '{print $3}' | LC_ALL=C sort >"$TMP/built"
differ "what the library exports (>) is not what tests/exports.txt lists (<)" "$TMP/built"

# Debian's list of them has the version that each came with.
sed -n 's/^ \(.*\)@Base .*/\1/p' "$(dirname "$0")/../../../debian/libfiberthread0.symbols" | LC_ALL=C sort >"$TMP/debian"
differ "debian/libfiberthread0.symbols (>) is not tests/exports.txt (<)" "$TMP/debian"

# If a source exports a name that is missing in preload/exports.map, the linker hides it without a message, and libc's function would be
# used.
top="$(dirname "$0")/../../.."
objects=()
while read -r o; do # leave out objects of removed sources
  source=${o#"$BUILD"/obj/}
  [ -e "$top/${source%.o}" ] && objects+=("$o")
done < <(find "$BUILD"/obj/{sched,sync,shim,preload} -name '*.o')
readelf -sW "${objects[@]}" |
  awk '($5 == "GLOBAL" || $5 == "WEAK") && $6 == "DEFAULT" && $7 != "UND" && NF >= 8 { print $8 }' | LC_ALL=C sort -u >"$TMP/sources"
differ "what the sources mark for export (>) is not in tests/exports.txt (<); preload/exports.map wants it too" "$TMP/sources"

needed=$(readelf -dW "$LIBRARY" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so\.6|ld-linux-.*)$')
[ -z "$needed" ] || { echo "needs more than libc: $needed"; bad=1; }
# Programs replace these by functions that take locks. See map_memory().
called=$(nm -D --undefined-only "$LIBRARY" | grep -oE '\b(mmap|mmap64|munmap|mremap|mprotect|madvise|brk|sbrk)\b')
[ -z "$called" ] || { echo "calls functions that programs replace: $called"; bad=1; }
readelf -VW "$LIBRARY" | grep -q 'Version definition' && { echo "has version nodes: callers of other versions would not bind"; bad=1; }
# Each program pays for the pages that initialization touches. An array of locks once cost 65 pages, half of the time that the library adds
# to a start.
nm -C "$LIBRARY" | grep _GLOBAL__ && { echo "has objects that are not constant-initialized"; bad=1; }
exit $bad
