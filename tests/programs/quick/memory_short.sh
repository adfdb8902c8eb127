#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc mount util-linux
# A program that makes threads until it is refused any more gets EAGAIN before the last memory is gone, and goes on. What is left is what
# /proc/meminfo says, so the test puts another file in its place.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/until_refused" "$(dirname "$0")/../src/until_refused.c" || fail "gcc failed"
sed 's/^MemAvailable:.*/MemAvailable: 2000 kB/; s/^SwapFree:.*/SwapFree: 1000 kB/' /proc/meminfo >"$TMP/short"
# Under chroot the root is no mount, so that only /proc can be made private.
sandbox=(unshare --mount --propagation unchanged)
[ "$(id -u)" = 0 ] || sandbox+=(--map-root-user)
sandbox+=(sh -c 'mount --make-private /proc && mount --bind "$0" /proc/meminfo && exec "$@"' "$TMP/short")
"${sandbox[@]}" true || skip "nothing can be mounted here"
for workers in 1 2; do
  FIBERTHREAD_WORKERS=$workers timeout -k 5 100 "${sandbox[@]}" env LD_PRELOAD="$LIBRARY" "$TMP/until_refused" 40000 >"$TMP/out" 2>&1 ||
    fail "status $?: $(cat "$TMP/out")"
  printf '32767 threads: Resource temporarily unavailable\n32767 ended\n' | cmp - "$TMP/out" || fail "not refused: $(cat "$TMP/out")"
done
# With memory left there are as many as wanted.
grep -q '^MemAvailable: *[0-9]\{7\}' /proc/meminfo || exit 0
LD_PRELOAD="$LIBRARY" timeout -k 5 100 "$TMP/until_refused" 40000 >"$TMP/out" 2>&1 ||
  fail "status $?: $(cat "$TMP/out")"
printf '40000 threads: no more wanted\n40000 ended\n' | cmp - "$TMP/out" || fail "refused: $(cat "$TMP/out")"
