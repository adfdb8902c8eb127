#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: coreutils
. "$(dirname "$0")/../lib.sh"
export LC_ALL=C
seq 1 600000 | rev >"$TMP/lines"
compare 7 sort --parallel=8 -S 200M "$TMP/lines"
compare 3 sort --parallel=4 -S 200M -n -u -r "$TMP/lines"
