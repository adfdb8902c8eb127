#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: p7zip-full|7zip
. "$(dirname "$0")/../lib.sh"
need 7z
corpus 6
mkdir "$TMP/x"
for workers in 1 2 16; do
  rm -f "$TMP/a.7z"
  fiber $workers 7z a -mmt=4 -m0=bzip2 "$TMP/a.7z" "$TMP/corpus" >/dev/null || fail "7z a: status $?"
  made_fibers 2
  7z t "$TMP/a.7z" >/dev/null || fail "NPTL's 7z does not like the archive"
  fiber $workers 7z t "$TMP/a.7z" >/dev/null || fail "7z t: status $?"
  fiber $workers 7z x -y -o"$TMP/x" "$TMP/a.7z" >/dev/null || fail "7z x: status $?"
  cmp "$TMP/corpus" "$TMP/x/corpus" || exit 1
done
