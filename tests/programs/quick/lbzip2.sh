#!/bin/bash
# packages: lbzip2
. "$(dirname "$0")/../lib.sh"
need lbzip2
# It ends by _exit, so there are no statistics.
corpus 6
compare 0 lbzip2 -n 4 -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.bz2"
compare 0 lbzip2 -n 4 -dc "$TMP/corpus.bz2"
cmp "$TMP/corpus" "$TMP/fiber.out"
