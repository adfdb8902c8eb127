#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
# A library built with FIBERTHREAD_DEBUG_CHECKS catches misuse: the program ends with a line that names the object and the misuse.
. "$(dirname "$0")/../lib.sh"
top="$(dirname "$0")/../../.."
checked='mutex semaphore rw_lock wait_group once channel misuse'
objects=() sources=()
while read -r o; do
  source=${o#"$BUILD"/obj/}
  source=${source%.o}
  name=${source#sync/}
  case " $checked " in
    *" ${name%.cpp} "*) [ "$source" != "$name" ] && continue ;;
  esac
  [ -e "$top/$source" ] && objects+=("$o")
done < <(find "$BUILD"/obj/{sched,sync,shim,preload} -name '*.o')
for name in $checked; do sources+=("$top/sync/$name.cpp"); done
g++ -std=c++20 -g -w -I"$top" -I"$top/sync/include" -fno-exceptions -fno-rtti -DFIBERTHREAD_DEBUG_CHECKS -o "$TMP/misuse" "$(dirname "$0")/../src/misuse.cpp" \
  "${sources[@]}" "${objects[@]}" -pthread || fail "g++ failed"
"$TMP/misuse" none 2>"$TMP/err" || fail "right use was taken for misuse: $(cat "$TMP/err")"
n=0
while IFS=$'\t' read -r name says; do
  [ "$name" = none ] && continue
  timeout -k 5 60 "$TMP/misuse" "$name" 2>"$TMP/err"
  status=$?
  [ $status = 134 ] || fail "$name: status $status and not SIGABRT: $(cat "$TMP/err")"
  sed 's/ 0x[0-9a-f]* / /' "$TMP/err" | grep -qx "fiberthread: $says" || fail "$name: not \"$says\" but: $(cat "$TMP/err")"
  n=$((n + 1))
done < <("$TMP/misuse")
[ $n -ge 19 ] || fail "only $n cases"
