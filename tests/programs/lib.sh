# SPDX-License-Identifier: MIT
# Functions that the program tests share. LIBRARY is the library, TMP a fresh directory.
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
# Makes LIBRARY a copy of the library that all users can read. Suites that start programs as other users need it: these may not be allowed
# to read the build directory.
readable_library() {
  chmod 755 "$TMP" && install -m 755 "$LIBRARY" "$TMP" || fail "the library cannot be copied"
  LIBRARY=$TMP/${LIBRARY##*/}
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
# made_fibers N: fails unless a process of the last run has made at least N fibers.
made_fibers() {
  [ "$1" -eq 0 ] && return
  local most
  most=$(sed -n 's/.*fibers=\([0-9]*\).*/\1/p' "$TMP/stats" | sort -n | tail -n 1)
  [ "${most:-0}" -ge "$1" ] || fail "only ${most:-no} fibers were made, not $1"
}
# compare FIBERS COMMAND…: fails unless output and exit status are the same on NPTL and on 1, 2 and 16 workers, with at least FIBERS fibers.
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
# begin WORKERS COMMAND…: starts the command preloaded in $TMP and waits until it has printed "ready" and, if it has threads, reads stdin. Its
# process is $pid. `end WHAT` ends it.
begin() {
  [ -p "$TMP/in" ] || mkfifo "$TMP/in"
  : >"$TMP/out"  # the file of an earlier command says "ready"
  (cd "$TMP" && ulimit -c unlimited 2>/dev/null
    exec env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS="$1" "${@:2}") <"$TMP/in" >"$TMP/out" &
  pid=$!
  exec 9>"$TMP/in"
  for ((i = 0; i < 600; i++)); do
    # It may still be in the call that has written that.
    grep -q ready "$TMP/out" && "$BUILD/fiberthread" dump --no-stacks --fiber $pid $pid 2>&1 | grep -qE ' waits for descriptor 0|; 0 workers$' && return
    sleep 0.05
  done
  fail "$2 is not ready"
}
end() {
  exec 9>&-
  wait $pid || fail "$*: status $?"
}
# makes_cores: whether the system writes cores into the current directory. end_by_core: ends $pid by a core dump, and sets $core to its
# file.
makes_cores() {
  [ "$(cat /proc/sys/kernel/core_pattern)" = core ] && [ "$(ulimit -Hc)" = unlimited ]
}
end_by_core() {
  kill -ABRT $pid
  wait $pid 2>/dev/null
  exec 9>&-
  core=$(ls "$TMP"/core* | head -n 1)
  [ -s "$core" ] || fail "no core"
}
# Makes a file of $1 MB of real text and binaries.
corpus() {
  find /usr/lib /usr/share /usr/bin -xdev -type f -readable -size +4k 2>/dev/null | LC_ALL=C sort | head -n 4000 | tr '\n' '\0' |
    xargs -0 cat 2>/dev/null | head -c "$(($1 << 20))" >"$TMP/corpus"
}
# source_of PACKAGE [PART…]: unpacks these parts of the source of a Debian package once under $BUILD, or all of it with Debian's patches, if
# the mirror has them. Sets $source to the directory.
source_of() {
  local package=$1 lists="$BUILD/suites/apt"
  shift
  source=$BUILD/suites/$package
  [ -e "$source/.complete" ] && return
  need apt-get
  rm -rf "$source"
  mkdir -p "$lists/partial" "$source"
  echo "deb-src http://deb.debian.org/debian $(. /etc/os-release && echo "$VERSION_CODENAME") main" >"$lists.list"
  # apt gets its own list of sources, so that the machine's configuration stays as it is.
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$lists.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$lists"
    -o APT::Sandbox::User=root)
  (cd "$source" && timeout 200 "${apt[@]}" update && timeout 200 "${apt[@]}" source --download-only "$package") >"$TMP/apt" 2>&1 ||
    { [ $# = 0 ] && (cd "$source" && timeout 200 "${apt[@]}" source --tar-only "$package") >>"$TMP/apt" 2>&1; } ||
    skip "the source of $package cannot be fetched: $(tail -n 1 "$TMP/apt")"
  if [ $# = 0 ] && [ -e "$source/$package"_*.dsc ]; then
    dpkg-source -x "$source/$package"_*.dsc "$source/all" >"$TMP/unpacked" 2>&1 || fail "$package cannot be unpacked: $(tail -n 1 "$TMP/unpacked")"
    mv "$source/all" "$source.all" && rm -rf "$source" && mv "$source.all" "$source"
  else
    tar -xf "$source/$package"_*.orig.tar.* -C "$source" --strip-components=1 ${1:+--wildcards "${@/#/*/}"} || fail "$package has no $*"
    rm -f "$source/$package"_*
  fi
  touch "$source/.complete"
}
# same_verdicts NAME FILTER COMMAND…: fails unless a suite's status and the output of FILTER on its output are as on NPTL. Runs the suite
# `rounds` times (1), with another number of workers each time: the default, 1, 16, 2.
same_verdicts() {
  local name=$1 filter=$2 status got i workers=("" 1 16 2)
  shift 2
  timeout -k 5 1000 "$@" >"$TMP/nptl" 2>&1
  status=$?
  for ((i = 0; i < ${rounds:-1}; i++)); do
    local w=${workers[i % 4]}
    env LD_PRELOAD="$LIBRARY" ${w:+FIBERTHREAD_WORKERS=$w} timeout -k 5 1000 "$@" >"$TMP/fiber" 2>&1
    got=$?
    diff <($filter <"$TMP/nptl") <($filter <"$TMP/fiber") >"$TMP/diff" || {
      head -n 40 "$TMP/diff"
      tail -n 20 "$TMP/fiber"
      fail "$name differs on ${w:-all} workers"
    }
    [ $got = $status ] || fail "$name: status $got on ${w:-all} workers, $status on NPTL: $(tail -n 5 "$TMP/fiber")"
  done
  verdicts=$((${verdicts:-0} + $($filter <"$TMP/fiber" | wc -l)))
}
# under_chaos TEST WORKERS SEED…: under FIBERTHREAD_CHAOS, the test of tests/preloaded gives the same output as on NPTL.
under_chaos() {
  local test=$BUILD/tests/preloaded/$1 workers=$2 seed
  [ -x "$test" ] || fail "make has not built $test"
  "$test" >"$TMP/nptl" || fail "$1 on NPTL: status $?"
  shift 2
  for seed; do
    FIBERTHREAD_CHAOS=$seed FIBERTHREAD_WORKERS=$workers LD_PRELOAD=$LIBRARY "$test" >"$TMP/fibers" || fail "$(basename "$test"), chaos $seed on $workers workers: status $?"
    cmp "$TMP/nptl" "$TMP/fibers" || fail "$(basename "$test"), chaos $seed on $workers workers: $(diff "$TMP/nptl" "$TMP/fibers")"
  done
}
