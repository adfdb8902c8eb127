#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# Lists of operations that once differed give the same output on fibers as on NPTL, and so do the programs of 500 seeds, or of as many as
# a slow machine does in some minutes.
. "$(dirname "$0")/../lib.sh"
here=$(dirname "$0")/../../differential
[ -x "$BUILD/tests/differential" ] || fail "make has not built tests/differential"
export LIBRARY BUILD
"$here/compare" --times 3 "$here"/found/*.txt || exit 1
for first in 1 101 201 301 401; do
  [ $SECONDS -lt 130 ] || { echo "the seeds up to $((first - 1)) only"; break; }
  "$here/compare" "$first" $((first + 100)) || exit 1
done
