#!/bin/bash
# packages: zstd
. "$(dirname "$0")/../lib.sh"

corpus 24 >input
same 4 zstd -q -T4 -B1M -c input
mv fibers.out input.zst
INPUT=input same 4 zstd -q -T4 -B1M --long -c
same 0 zstd -q -d -c input.zst # only newer versions have threads here
cmp input fibers.out || fail "what comes out is not what went in"
