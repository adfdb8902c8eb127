#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: pigz
. "$(dirname "$0")/../lib.sh"
need pigz
corpus 24
compare 9 pigz -p 8 -c "$TMP/corpus"
compare 16 pigz -p 64 -c "$TMP/corpus"
pigz -c "$TMP/corpus" >"$TMP/corpus.gz"
compare 2 pigz -dc "$TMP/corpus.gz"
cmp "$TMP/corpus" "$TMP/fiber.out"
