#!/bin/bash
# SPDX-License-Identifier: MIT
# Go's runtime makes system calls by itself and has signal stacks of its own. A program of Go with C code on its threads keeps NPTL's
# threads. In a program that loads a library of Go's later, each thread gets a kernel thread of its own. Skipped without Go.
. "$(dirname "$0")/../lib.sh"
need go
cp "$(dirname "$0")/../src/cgo.go" "$TMP/main.go"
cp "$(dirname "$0")/../src/go_library.go" "$TMP/library.go"
gcc -O1 -w -pthread -o "$TMP/loader" "$(dirname "$0")/../src/go_library.c" -ldl || fail "gcc failed"
cd "$TMP" || exit 1
export GOCACHE="${GOCACHE:-$BUILD/suites/go}" GO111MODULE=off CGO_ENABLED=1
go build -o program main.go || fail "go build failed"
go build -buildmode=c-shared -o library.so library.go || fail "go build failed"
compare 0 ./program
LD_PRELOAD="$LIBRARY" FIBERTHREAD_VERBOSE=1 timeout -k 5 100 ./program 2>&1 >/dev/null | grep -q "threads are NPTL's: Go" || fail "it does not say why"
compare 16 ./loader ./library.so
