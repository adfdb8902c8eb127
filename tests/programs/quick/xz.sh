#!/bin/bash
# packages: xz-utils
. "$(dirname "$0")/../lib.sh"

corpus 8 >input
same 3 xz -T4 -0 --block-size=512KiB -c input
mv fibers.out input.xz
same 3 xz -T4 -d -c input.xz
cmp input fibers.out || fail "what comes out is not what went in"
