# Shared by the program tests. LIBRARY is the library, TMP a fresh directory.
set -u
fail() {
  echo "$*"
  exit 1
}
skip() {
  echo "$*"
  exit 77
}
need() {
  command -v "$1" >/dev/null || skip "$1 is not installed"
}
# fiber WORKERS COMMAND…: runs it preloaded. Its statistics go to $TMP/stats.
fiber() {
  local workers=$1
  shift
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS="$workers" FIBERTHREAD_STATS=1 timeout -k 5 200 "$@" 2>"$TMP/stderr"
  local status=$?
  grep '^fiberthread: ' "$TMP/stderr" >"$TMP/stats"
  grep -v '^fiberthread: ' "$TMP/stderr" >&2
  return $status
}
# The library did something: at least N fibers, in one process of what ran last.
made_fibers() {
  local most
  most=$(sed -n 's/.*fibers=\([0-9]*\).*/\1/p' "$TMP/stats" | sort -n | tail -n 1)
  [ "${most:-0}" -ge "$1" ] || fail "only ${most:-no} fibers were made, not $1"
}
# compare FIBERS COMMAND…: same output and exit status on NPTL and on 1, 2 and 16 workers, with at least so many fibers.
compare() {
  local fibers=$1 expected status workers
  shift
  timeout -k 5 200 "$@" >"$TMP/nptl.out"
  expected=$?
  for workers in 1 2 16; do
    fiber $workers "$@" >"$TMP/fiber.out"
    status=$?
    [ $status = $expected ] || fail "$1: exit status $status on $workers workers, $expected on NPTL"
    cmp -s "$TMP/nptl.out" "$TMP/fiber.out" || {
      diff "$TMP/nptl.out" "$TMP/fiber.out" | head -n 20
      fail "$1: output differs on $workers workers"
    }
    made_fibers "$fibers"
  done
}
# A file of real text and binaries, $1 MB.
corpus() {
  find /usr/lib /usr/share /usr/bin -xdev -type f -readable -size +4k 2>/dev/null | LC_ALL=C sort | head -n 4000 | tr '\n' '\0' |
    xargs -0 cat 2>/dev/null | head -c "$(($1 << 20))" >"$TMP/corpus"
}
