#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: lbzip2
# lbzip2 ends by _exit, so there are no statistics, and compare checks only the output.
. "$(dirname "$0")/../lib.sh"
need lbzip2
corpus 6
compare 0 lbzip2 -n 8 -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.bz2"
compare 0 lbzip2 -n 8 -d -c "$TMP/corpus.bz2"
cmp "$TMP/corpus" "$TMP/fiber.out"
