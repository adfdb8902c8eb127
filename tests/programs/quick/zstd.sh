#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: zstd
. "$(dirname "$0")/../lib.sh"
need zstd
corpus 24
compare 4 zstd -q -T4 -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.zst"
compare 0 zstd -q -T4 -dc "$TMP/corpus.zst"
cmp "$TMP/corpus" "$TMP/fiber.out"
