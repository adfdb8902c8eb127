# What the program tests share. Each one starts with:  . "$(dirname "$0")/../lib.sh"
# It then works in $TMP, and $SRC is where the sources are.
set -u
SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")/src" && pwd)
SO=${FIBERTHREAD_SO:?the absolute path of libfiberthread.so}
cd "${TMP:?a fresh directory}" || exit 1
unset LD_PRELOAD ${!FIBERTHREAD_@}          # the programs get them from `fibers` only
export PATH=/usr/sbin:/usr/bin:/sbin:/bin   # Debian's programs, not others of the same names
export LC_ALL=C

WORKERS=${WORKERS:-1 2 default} # with which `same` and others run a program preloaded; default: one for each CPU
LIMIT=${LIMIT:-120}             # seconds after which a program counts as hung

fail() { # LINE…
  printf '%s\n' "$@" >&2
  exit 1
}

# nptl CMD…: runs it as it is. fibers WORKERS CMD…: runs it preloaded, with statistics on stderr.
# Their exit status is that of the program, or 124 or 137 if it hung.
nptl() { timeout -k 5 "$LIMIT" "$@"; }
fibers() {
  local workers=$1 environment=("LD_PRELOAD=$SO" FIBERTHREAD_STATS=1)
  shift
  [ "$workers" = default ] || environment+=("FIBERTHREAD_WORKERS=$workers")
  timeout -k 5 "$LIMIT" env "${environment[@]}" "$@"
}

explain() { # STATUS
  case $1 in
    124 | 137) echo "status $1 (hung for $LIMIT s, or killed)" ;;
    1[2-9]?) echo "status $1 (signal $(kill -l $(($1 - 128))))" ;;
    *) echo "status $1" ;;
  esac
}

# made FILE MIN: by the statistics in FILE (stderr of a preloaded program and of its children), at least MIN threads were
# fibers. Without this, a library that does nothing would pass every comparison.
made() {
  local n
  n=$(grep -ao 'fiberthread: fibers=[0-9]*' "$1" | awk -F= '{ n += $2 } END { print n + 0 }')
  [ "$n" -ge "$2" ] || fail "$n threads were fibers; at least $2 should be. stderr:" "$(tail -n 20 "$1")"
}

# same MIN CMD…: the program succeeds on NPTL, and preloaded with the same output and at least MIN fibers.
# Its output stays in nptl.out and fibers.out. It reads $INPUT.
same() {
  local min=$1 workers status
  shift
  nptl "$@" <"${INPUT:-/dev/null}" >nptl.out 2>nptl.err
  status=$?
  [ $status = 0 ] || fail "$*: $(explain $status) on NPTL" "$(tail -n 20 nptl.out nptl.err)"
  for workers in $WORKERS; do
    fibers "$workers" "$@" <"${INPUT:-/dev/null}" >fibers.out 2>fibers.err
    status=$?
    [ $status = 0 ] || fail "$*: $(explain $status) with $workers workers" "$(tail -n 30 fibers.out fibers.err)"
    cmp nptl.out fibers.out >cmp.out 2>&1 ||
      fail "$*: other output with $workers workers" "$(cat cmp.out)" "$(diff -a nptl.out fibers.out | cut -c 1-300 | head -n 20)"
    made fibers.err "$min"
  done
}

# Files to work on: text, a program and noise.
corpus() { # MEGABYTES
  local share=$(($1 * 1024 * 1024 / 4))
  { seq 1 9999999 | head -c $((2 * share)); cat /usr/bin/* 2>/dev/null | head -c $share; head -c $share /dev/urandom; } 2>/dev/null
}

# compile SOURCE [FLAG…]: makes a program of the same name in $TMP.
compile() {
  local source=$1 name=${1%.*}
  shift
  case $source in
    *.c) gcc -O2 -g -w -pthread "$SRC/$source" -o "$name" "$@" ;;
    *.cpp) g++ -std=c++20 -O2 -g -w -pthread "$SRC/$source" -o "$name" "$@" ;;
    *.rs) rustc -O "$SRC/$source" -o "$name" "$@" ;;
  esac >compile.out 2>&1 || fail "compiling $source:" "$(cat compile.out)"
}
