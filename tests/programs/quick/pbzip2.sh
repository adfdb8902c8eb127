#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: pbzip2
. "$(dirname "$0")/../lib.sh"
need pbzip2
corpus 6
compare 8 pbzip2 -p8 -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.bz2"
compare 4 pbzip2 -p8 -dc "$TMP/corpus.bz2"
cmp "$TMP/corpus" "$TMP/fiber.out"
