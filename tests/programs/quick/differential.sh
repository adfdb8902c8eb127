#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# Lists of operations that once differed give the same output on fibers as on NPTL, and so do the programs of 500 seeds.
. "$(dirname "$0")/../lib.sh"
here=$(dirname "$0")/../../differential
[ -x "$BUILD/tests/differential" ] || fail "make has not built tests/differential"
export LIBRARY BUILD
"$here/compare" --times 3 "$here"/found/*.txt || exit 1
"$here/compare" 1 501
