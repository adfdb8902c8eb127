#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc g++ gdb libdw1|libdw1t64 libunwind8
# The frames of `fiberthread dump`: the same by libunwind and by libdw, and the same as gdb's, with their lines; of C, C++ with inlined
# functions and a caught exception, Rust, and through a signal handler. Without either of the two libraries, the other one does.
. "$(dirname "$0")/../lib.sh"
need gdb
gdb -nx -batch -ex 'python print(1)' 2>/dev/null | grep -q 1 || skip "gdb has no Python"
here=$(cd "$(dirname "$0")" && pwd)
unset DEBUGINFOD_URLS
# The loader takes an empty file for a library that is broken.
mkdir "$TMP/no_unwind" "$TMP/no_dw" "$TMP/neither"
touch "$TMP"/{no_unwind,neither}/libunwind-{x86_64,aarch64}.so.8 "$TMP"/{no_dw,neither}/libdw.so.1
dump() { # WITHOUT ARGUMENTS…
  local without=$1
  shift
  LD_LIBRARY_PATH=${without:+$TMP/$without} "$BUILD/fiberthread" dump "$@" >"$TMP/dump" 2>"$TMP/err" || fail "dump without ${without:-nothing}: $(cat "$TMP/err")"
}
cat >"$TMP/frames.py" <<'P'
# Prints for each frame its number as a real one, pc and line. Frame 0 is that of the thread, and not the fiber's. The fiber's first one is
# where it goes on, which is no call to gdb, but its return to us. gdb also infers functions that have left their stack to the next one.
def frames():
    f, n = gdb.newest_frame(), -2
    inlined = False
    while f is not None and f.is_valid():
        if f.type() == gdb.TAILCALL_FRAME:
            f = f.older()
            continue
        if not inlined:
            n += 1
        line = f.find_sal()
        if n > 0:
            print("frame %d 0x%x %d" % (n, f.pc(), line.line if line.symtab else 0))
        inlined = f.type() == gdb.INLINE_FRAME
        f = f.older()
P
# Prints of a dump: number, pc, line.
frames_of() { sed -nE '/^    #0 /d; s/^    #([0-9]+) (0x[0-9a-f]+) (.*:([0-9]+)( \(inlined\))?|.*)$/\1 \2 0\4/p' "$1" | sed -E 's/ 0([1-9])/ \1/'; }

compare_all() { # WHAT PROGRAM FIBERS…
  local what=$1 program=$2 id without
  shift 2
  for id in "$@"; do
    timeout -k 5 100 gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set auto-load no' -ex 'set pagination off' -ex 'set width 0' \
      -ex 'set backtrace past-main on' -ex 'set backtrace past-entry on' "${look[@]}" -ex "source $BUILD/libfiberthread.so-gdb.py" -ex "source $TMP/frames.py" -ex "fiber $id python frames()" >"$TMP/gdb" 2>&1
    sed -n 's/^frame //p' "$TMP/gdb" >"$TMP/gdb.frames"
    [ "$(wc -l <"$TMP/gdb.frames")" -ge 3 ] || fail "$what, fiber $id: gdb shows $(cat "$TMP/gdb")"
    for without in "" no_unwind no_dw; do
      dump "$without" --full --fiber $id "$target"
      frames_of "$TMP/dump" >"$TMP/dump.frames"
      # Without libdw there are no lines, and so no inlined functions.
      if [ "$without" = no_dw ]; then awk '{ print $1, $2 }' "$TMP/gdb.frames" | uniq >"$TMP/wanted"; sed -i 's/ 0$//' "$TMP/dump.frames"
      else cp "$TMP/gdb.frames" "$TMP/wanted"; fi
      cmp -s "$TMP/wanted" "$TMP/dump.frames" || fail "$what, fiber $id, without ${without:-nothing}: $(diff "$TMP/wanted" "$TMP/dump.frames") $(head -n 40 "$TMP/gdb" "$TMP/dump")"
    done
  done
}
fibers() { dump "" --no-stacks "$target"; sed -nE 's/^fiber ([0-9]+).* waits for .*/\1/p' "$TMP/dump"; }
has() { grep -qE -- "$1" "$TMP/dump" || fail "$2: no \"$1\" in $(grep -v recursion "$TMP/dump")"; }

g++ -std=c++20 -O2 -g -w -pthread -o "$TMP/frames" "$here/../src/frames.cpp" || fail "g++ failed"
check_frames() { # WHAT
  compare_all "$1" "$TMP/frames" $(fibers)
  dump "" "$target"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::Waits<.*>::innermost at .*frames\.cpp:[0-9]+ \(inlined\)$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::Waits<.*>::middle at .*frames\.cpp:[0-9]+ \(inlined\)$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::Waits<.*>::outer\(.* at .*frames\.cpp:[0-9]+$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::handler\(int\) at .*frames\.cpp:[0-9]+$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::interrupted\(\) at .*frames\.cpp:[0-9]+$' "$1"
  has '^    … [0-9]+ more frames$' "$1"
  dump no_dw "$target"
  has '^no lines and no inlined functions: libdw \(elfutils\) is not installed$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::Waits<.*>::outer\(.* in /.*frames$' "$1"
  has '^    #[0-9]+ 0x[0-9a-f]+ \(anonymous namespace\)::in_catch\(.* in /.*frames$' "$1"
  dump neither "$target"
  has '^no stacks: libunwind is not installed, and libdw \(elfutils\) is not installed$' "$1"
  [ "$(grep -c '^fiber ' "$TMP/dump")" = 5 ] || fail "$1: no fibers: $(cat "$TMP/dump")"
}
begin 2 "$TMP/frames"
target=$pid look=(-p $pid)
check_frames "a process"
if makes_cores; then
  end_by_core
  target=$core look=("$TMP/frames" "$core")
  check_frames "a core"
  rm -f "$core"
else
  end "a process"
fi

gcc -O1 -g -w -pthread -o "$TMP/inside" "$here/../src/inside.c" || fail "gcc failed"
begin 2 "$TMP/inside" 3
target=$pid look=(-p $pid)
compare_all C "$TMP/inside" $(fibers)
end C

if command -v rustc >/dev/null; then
  rustc -g -O -o "$TMP/rust" "$here/../src/frames.rs" >"$TMP/log" 2>&1 || fail "rustc: $(cat "$TMP/log")"
  begin 2 "$TMP/rust"
  target=$pid look=(-p $pid)
  compare_all Rust "$TMP/rust" $(fibers)
  end Rust
fi
exit 0
