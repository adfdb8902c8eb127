#!/bin/bash
# SPDX-License-Identifier: MIT
# stress-ng's stressors of threads, locks, futexes, forks, clones and signals verify their own work. Each passes or fails as on
# NPTL. STRESS_SECONDS (1) is the most time that each may take.
# packages: stress-ng
. "$(dirname "$0")/../lib.sh"
need stress-ng
seconds=${STRESS_SECONDS:-1}
ops=$((seconds * 100))
rounds=${ROUNDS:-1}
results() { sed -nE 's/ run completed in .*//; s/^.*(fail:|skipped|[^ ]*successful)/\1/p' | sed 's/\[[0-9]*\]//' | LC_ALL=C sort -u; }
cd "$TMP" || exit 1
for stressor in pthread mutex sem futex fork vfork clone signal sigq sigrt sigsuspend sigfd sigsegv switch; do
  # The mutex stressor may reach its count before its threads are made, and then reports a lack of resources. Its count is so large that
  # time ends it.
  # Without the right to SCHED_FIFO: else one process's threads keep the other's first from its CPU until the time is up, on NPTL too.
  n=$ops without=()
  if [ $stressor = mutex ]; then
    n=$((ops * 100000))
    [ "$(id -u)" != 0 ] || without=(setpriv --bounding-set -sys_nice)
  fi
  same_verdicts "$stressor" results "${without[@]}" stress-ng --$stressor 2 --$stressor-ops $n --timeout "$seconds" --verify --log-brief --temp-path "$TMP"
done
echo "$verdicts verdicts, $rounds times"
