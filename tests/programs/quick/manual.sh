#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: mandoc man-db
# mandoc and man find no fault in the manual pages.
. "$(dirname "$0")/../lib.sh"
need mandoc
cd "$(dirname "$0")/../../../man" || exit 1
# We choose the length of source lines ourselves.
mandoc -Tlint ./*.[1-9] | grep -v 'STYLE: input text line longer than 80 bytes' >"$TMP/mandoc"
[ -s "$TMP/mandoc" ] && fail "$(cat "$TMP/mandoc")"
for page in ./*.[1-9]; do
  LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>"$TMP/man" >/dev/null || fail "$page: $(cat "$TMP/man")"
  [ -s "$TMP/man" ] && fail "$page: $(cat "$TMP/man")"
done
exit 0
