#!/bin/bash
# packages: p7zip-full
. "$(dirname "$0")/../lib.sh"

mkdir files
corpus 4 >files/a
cp /etc/passwd files/b
nptl 7z a -mmt4 -mx3 nptl.7z files >/dev/null || fail "7z a on NPTL"
for workers in $WORKERS; do
  rm -rf fibers.7z x
  fibers "$workers" 7z a -mmt4 -mx3 fibers.7z files >out 2>err || fail "7z a with $workers workers: $(explain $?)" "$(tail out err)"
  made err 2
  cmp nptl.7z fibers.7z || fail "another archive with $workers workers"
  fibers "$workers" 7z t -mmt4 fibers.7z >out 2>err || fail "7z t with $workers workers: $(explain $?)" "$(tail out err)"
  fibers "$workers" 7z x -mmt4 -ox fibers.7z >out 2>err || fail "7z x with $workers workers: $(explain $?)" "$(tail out err)"
  diff -r files x/files || fail "other files with $workers workers"
done
# Its benchmark has threads that wait for each other, and checks what they compute.
same 4 sh -c '7z b 1 -mmt4 -md18 >log || { cat log; exit 1; }'
