#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: xz-utils
. "$(dirname "$0")/../lib.sh"
need xz
corpus 8
compare 4 xz -T4 -1 --block-size=1MiB -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.xz"
compare 0 xz -T4 -dc "$TMP/corpus.xz"
cmp "$TMP/corpus" "$TMP/fiber.out"
