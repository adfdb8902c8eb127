#!/bin/bash
# packages: pbzip2
. "$(dirname "$0")/../lib.sh"

corpus 6 >input
same 4 pbzip2 -p4 -b2 -c input
mv fibers.out input.bz2
same 4 pbzip2 -p4 -d -c input.bz2
cmp input fibers.out || fail "what comes out is not what went in"
