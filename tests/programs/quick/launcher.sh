#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3 hyperfine
# The launcher: its options, the table that they come from, doctor, compare, completion.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
ft=$BUILD/fiberthread
gcc -O2 -w -pthread -o "$TMP/many" "$top/tests/programs/src/many.c" || fail "gcc failed"

# gives STATUS TEXT ARGUMENTS…: fails unless the launcher ends with that status and prints the text.
gives() {
  local status=$1 text=$2
  shift 2
  "$ft" "$@" >"$TMP/out" 2>&1
  local got=$?
  [ $got = "$status" ] || fail "fiberthread $*: status $got, not $status: $(cat "$TMP/out")"
  grep -qF -- "$text" "$TMP/out" || fail "fiberthread $*: no \"$text\" in: $(cat "$TMP/out")"
}
gives 0 'fiberthread 0.' --version
gives 0 '--stack-size' --help
gives 2 'no program'
gives 2 'nearest: --workers' --wokers 2 true
gives 2 'a number from 1 to 1024' --workers none true
gives 2 'needs a value' --workers
gives 2 'takes no value' --verbose=1 true
gives 2 'nearest: round-robin' --spawn roundrobin true
gives 2 'tc is none of jemalloc, mimalloc, tcmalloc, libc' --malloc=tc true
gives 2 'there is no option -x' -x true
gives 2 'short for more than one: --stack-size, --stats' --sta true
gives 0 FIBERTHREAD_WORKERS=2 --work 2 env
gives 127 'No such file' /no/such/program
gives 126 'ermission' /etc/passwd
gives 126 'Is a directory' /tmp
printf '#!/no/such/interpreter\n' >"$TMP/orphan"
printf 'echo "by sh"\n' >"$TMP/plain"
chmod +x "$TMP/orphan" "$TMP/plain"
gives 127 'its interpreter or loader is not there' "$TMP/orphan"
gives 0 'by sh' "$TMP/plain"
gives 127 'the subcommand doctor has to be the first word' --workers 2 doctor true
gives 127 'nearest subcommand: compare' comapre true
gives 2 'fiberthread top: ' top --no-such-option
gives 0 'fibers=164' --stats --workers 2 -- "$TMP/many" 100
gives 0 '"fibers":164' --stats=json -w1 -s local "$TMP/many" 100
gives 0 'FIBERTHREAD_DEADLOCK=abort' --deadlock=abort env
gives 0 'FIBERTHREAD_PREEMPT=0' --no-preempt env
gives 0 'FIBERTHREAD_CHAOS=7' --chaos 7 env
gives 0 "FIBERTHREAD_TRACE=$PWD/t.json" --trace t.json env
gives 0 '--help' echo --help # this option is the program's
for allocator in jemalloc mimalloc tcmalloc; do
  "$ft" --malloc=$allocator true 2>/dev/null || continue
  "$ft" --malloc=$allocator env | grep -q "^LD_PRELOAD=.*libfiberthread\.so:/.*/lib$allocator.*\.so\." || fail "--malloc=$allocator: $("$ft" --malloc=$allocator env)"
done

# Each option is in the help and in fiberthread(1), and each variable in fiberthread(7).
"$ft" --table >"$TMP/table"
"$ft" --help >"$TMP/help"
# Prints a page as a reader sees it, without fonts and escapes.
plain() { sed -e 's/\\f[A-Z]//g' -e 's/\\-/-/g' "$@"; }
plain "$top/man/fiberthread.1" >"$TMP/man1"
plain "$top/man/fiberthread.7" >"$TMP/man7"
[ "$(wc -l <"$TMP/table")" -ge 15 ] || fail "table: $(cat "$TMP/table")"
while IFS=$'\t' read -r variable option letter values _; do
  if [ "$variable" != - ]; then
    grep -q "^\.B.* $variable\b" "$TMP/man7" || fail "$variable is not in fiberthread(7)"
    grep -q "$variable\b" "$top/README.md" "$top/man/fiberthread.7" || fail "$variable is not documented"
  fi
  if [ "$option" != - ]; then
    grep -qE -- "--$option\b" "$TMP/help" || fail "--$option is not in --help"
    grep -qE -- "--$option\b" "$TMP/man1" || fail "--$option is not in fiberthread(1)"
    [ "$letter" = - ] || grep -qE -- "[B ]\"?-$letter\b" "$TMP/man1" || fail "-$letter is not in fiberthread(1)"
  elif [ "$variable" = - ]; then
    grep -q "^\.B.* $values\b" "$TMP/man1" || fail "the subcommand $values is not in fiberthread(1)"
  fi
  for word in $(tr '|,' '  ' <<<"$values"); do
    case $word in [a-z]*) grep -q -- "\b$word\b" "$TMP/man7" "$TMP/man1" || fail "the value $word of $variable$option is in no manual page" ;; esac
  done
done <"$TMP/table"
# The pages and the README name only variables that exist.
for name in $(grep -oh 'FIBERTHREAD_[A-Z_]*[A-Z]' "$top/README.md" "$TMP/man1" "$TMP/man7" | sort -u); do
  grep -q "^$name	" "$TMP/table" || fail "$name is documented, but there is no such variable"
done

# doctor
gives 0 'threads become fibers on this machine' doctor
gives 0 'the program, or a library of its own, makes threads' doctor "$TMP/many"
gives 127 'no such program' doctor /no/such/program
gives 126 'Is a directory' doctor /tmp
gives 126 'ermission' doctor /etc/passwd
gives 127 'NO   /no/such/interpreter: there is no such program' doctor "$TMP/orphan"
gives 0 'a script without #!, run by sh' doctor "$TMP/plain"
gives 2 usage doctor a b
gives 0 'what will cost kernel threads' doctor -h
gcc -static -O2 -w -pthread -o "$TMP/static" "$top/tests/programs/src/many.c" || fail "gcc -static failed"
gives 1 'linked statically' doctor "$TMP/static"
gives 0 'no fibers: it is linked statically' --verbose "$TMP/static" 10
printf '#!/usr/bin/env bash\ntrue\n' >"$TMP/script"
chmod +x "$TMP/script"
gives 0 'bash' doctor "$TMP/script"
printf '#!/usr/bin/env -S A=1 bash -e\ntrue\n' >"$TMP/script"
gives 0 'interpreter: /' doctor "$TMP/script"
printf 'void __tsan_init(void) {}\nint main() { return 0; }\n' >"$TMP/tsan.c"
gcc -rdynamic -o "$TMP/tsan" "$TMP/tsan.c" && gives 1 ThreadSanitizer doctor "$TMP/tsan"
printf '__attribute__((section(".go.buildinfo"))) int go = 1;\nint main() { return 0; }\n' >"$TMP/go.c"
gcc -o "$TMP/go" "$TMP/go.c" && gives 1 "threads stay NPTL's" doctor "$TMP/go"
printf '#define _GNU_SOURCE\n#include <pthread.h>\nint main() { cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s); return pthread_setaffinity_np(pthread_self(), sizeof s, &s) * 0; }\n' >"$TMP/affinity.c"
gcc -o "$TMP/affinity" "$TMP/affinity.c" && gives 0 'pthread_setaffinity_np in affinity' doctor "$TMP/affinity"
head -c 1000 "$TMP/many" >"$TMP/cut"
chmod +x "$TMP/cut"
"$ft" doctor "$TMP/cut" >/dev/null
[ $? -le 1 ] || fail "doctor and a damaged file"
# doctor finds out that a library makes no fibers.
mkdir "$TMP/broken"
cp "$ft" "$TMP/broken/"
gcc -shared -x c /dev/null -o "$TMP/broken/libfiberthread.so"
"$TMP/broken/fiberthread" doctor >"$TMP/out" && fail "doctor believes in a library that does nothing: $(cat "$TMP/out")"

# compare
gives 0 'Output and status are the same' compare -r 2 -- "$TMP/many" 100
grep -q '^fibers made *164$' "$TMP/out" && grep -q '^kernel threads' "$TMP/out" && grep -q '^verdict: ' "$TMP/out" || fail "compare: $(cat "$TMP/out")"
gives 0 'no threads' compare -r 2 true
gives 0 'Output and status are the same' compare -r 2 -- sh -c "'$TMP/many' 100; '$TMP/many' 100"
grep -q '^fibers made *328$' "$TMP/out" || fail "compare, of two processes: $(cat "$TMP/out")"
gives 0 'exit status 3' compare -r 2 -- sh -c 'exit 3'
# Peak memory is the program's, without the memory in which the launcher keeps the first side's output.
gives 0 '(60000000 bytes' compare -r 2 -- head -c 60000000 /dev/zero
awk '/^peak memory/ { ok = $3 < 30 && $5 < 30 } END { exit !ok }' "$TMP/out" || fail "compare: $(cat "$TMP/out")"
gives 1 'Nothing was compared' compare -- sh -c 'echo $LD_PRELOAD'
gives 1 'But so do two runs on NPTL' compare -- sh -c 'echo $$'
gives 127 'no such program' compare /no/such/program
gives 126 'Is a directory' compare /tmp
gives 126 'cannot be run: its interpreter' compare "$TMP/orphan"
gives 0 'Output and status are the same (6 bytes' compare -r 2 "$TMP/plain"
FIBERTHREAD_NPTL=1 gives 0 'no threads' compare -r 2 -- "$TMP/many" 100
gives 2 usage compare -r x true
gives 0 '(default: 10)' compare --help

# Completion, as bash calls it.
complete_() {
  PATH=$BUILD:$PATH bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fiberthread; printf "%s\n" "${COMPREPLY[@]}"' - "$top/preload/packaging/completion.bash" "$@"
}
complete_ fiberthread --st | grep -qx -- --stack-size || fail "completion of an option"
complete_ fiberthread --spawn = rou | grep -qx round-robin || fail "completion of a value"
complete_ fiberthread doc | grep -qx doctor || fail "completion of a subcommand"
exit 0
