#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# Programs that are generated from SEEDS seeds, from the first one on, give the same output on fibers as on NPTL.
. "$(dirname "$0")/../lib.sh"
here=$(dirname "$0")/../../differential
[ -x "$BUILD/tests/differential" ] || fail "make has not built tests/differential"
export LIBRARY BUILD
first=${FIRST_SEED:-1}
"$here/compare" --shrink --found "$TMP" "$first" $((first + ${SEEDS:-500}))
