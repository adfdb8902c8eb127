#!/bin/bash
# packages: binutils
# The library exports what tests/exports.txt lists and nothing else, and needs only libc and the loader.
set -u
list="$(dirname "$0")/../../exports.txt"
nm -D --defined-only "$FIBERTHREAD_SO" | awk '{print $3}' | LC_ALL=C sort >"$TMP/built"
diff "$list" "$TMP/built" || { echo "exported names (>) are not those of tests/exports.txt (<)"; exit 1; }
readelf -d "$FIBERTHREAD_SO" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so\.6|ld-linux-.*)$' && { echo "needs more than libc"; exit 1; }
exit 0
