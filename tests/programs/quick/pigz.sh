#!/bin/bash
# packages: pigz
. "$(dirname "$0")/../lib.sh"

corpus 12 >input
for threads in 8 64; do
  same 3 pigz -p $threads -b 64 -c input
done
mv fibers.out input.gz
same 1 pigz -d -c input.gz
cmp input fibers.out || fail "what comes out is not what went in"
