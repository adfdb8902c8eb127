#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc util-linux
# There are as many slots as CPUs that the process may use, by its affinity mask, and by the quota of its cgroup or of one above.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/many" "$(dirname "$0")/../src/many.c" || fail "gcc failed"
slots() {
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=1 "$@" 2>&1 >/dev/null | sed -n 's/^fiberthread: .*slots=\([0-9]*\).*/\1/p' | tail -n 1
}
expect() {
  local want=$1 got
  shift
  got=$(slots "$@")
  [ "$got" = "$want" ] || fail "$got slots, not $want: $*"
}
first=$(taskset -pc $$ | sed 's/.*: \([0-9]*\).*/\1/')
expect 1 taskset -c "$first" "$TMP/many" 10
expect 3 env FIBERTHREAD_WORKERS=3 "$TMP/many" 10
unshare -m true 2>/dev/null || skip "no mount namespaces: quotas were not tried"
# with V1|V2 QUOTA QUOTA_ABOVE: runs the program in a namespace where /proc and /sys show such a cgroup.
with() {
  rm -rf "$TMP/sys" && mkdir -p "$TMP/sys"
  case $1 in
    v2)
      mkdir -p "$TMP/sys/above/own"
      echo "0::/above/own" >"$TMP/cgroup"
      echo "$2 100000" >"$TMP/sys/above/own/cpu.max"
      echo "$3 100000" >"$TMP/sys/above/cpu.max"
      ;;
    v1)
      mkdir -p "$TMP/sys/cpu/above/own"
      printf '%s\n' "7:memory:/elsewhere" "3:cpuset:/x" "2:cpu,cpuacct:/above/own" "0::/" >"$TMP/cgroup"
      echo "${2/max/-1}" >"$TMP/sys/cpu/above/own/cpu.cfs_quota_us"
      echo "${3/max/-1}" >"$TMP/sys/cpu/above/cpu.cfs_quota_us"
      echo 100000 | tee "$TMP/sys/cpu/above/cpu.cfs_period_us" >"$TMP/sys/cpu/above/own/cpu.cfs_period_us"
      ;;
  esac
}
quota() {
  # The file of this process, whose id exec keeps.
  slots unshare -m bash -c 'mount --bind "$0/sys" /sys/fs/cgroup && mount --bind "$0/cgroup" /proc/$$/cgroup && exec "$0/many" 10' "$TMP"
}
all=$(slots "$TMP/many" 10)
[ "$all" -ge 2 ] || skip "only one CPU: quotas were not tried"
for version in v1 v2; do
  for case in "max max $all" "100000 max 1" "max 50000 1" "101000 max 2" "99999999 100000 1" "max 99999999 $all"; do
    set -- $case
    with $version $1 $2
    got=$(quota)
    [ -n "$got" ] || skip "mounts are not allowed: quotas were not tried"
    [ "$got" = "$3" ] || fail "$version, quota $1, above $2: $got slots, not $3"
  done
done
