#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# Exploration begins without sysmon. Each of these programs needs it: a thread sleeps in the kernel, does not let in what main lets in, is bound, or
# waits for a timer of the kernel, or a signal comes while another thread runs. In the last two, a thread goes on until something has come from outside,
# for more points than make a livelock.
. "$(dirname "$0")/../lib.sh"
gcc -O1 -g -w -pthread -o "$TMP/late" "$(dirname "$0")/../src/explored_late.c" || fail "gcc failed"
cd "$TMP" || exit 1
for case in line raw mask attr child bound alarm timer own sigwait itself long poll; do
  schedules=60
  [[ $case = long || $case = poll ]] && schedules=4
  ./late $case >expected || fail "$case: status $? on libc's threads"
  for how in "" --exec; do
    "$BUILD/fiberthread" explore $how --schedules $schedules --expect expected --jobs 1 -- ./late $case >out 2>&1 || fail "$case $how: $(cat out)"
    grep -q "^$schedules schedules" out || fail "$case $how: $(cat out)"
  done
done
# A run that has begun anew, because a thread slept in a call, is the same in a replay.
"$BUILD/fiberthread" explore --schedules 20 --strategy random --seed 5 --expect /dev/null --jobs 1 -- ./late line >out 2>&1
[ $? = 1 ] || fail "another output was not seen: $(cat out)"
for i in 1 2 3; do
  "$BUILD/fiberthread" replay late-1.explored >out 2>&1
  [ $? = 1 ] || fail "replay: $(cat out)"
done
exit 0
