#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc gdb
# gdb with our script shows all fibers, on a live process and on a core, in C, C++ and Rust. Without the script it shows the threads that
# run them.
. "$(dirname "$0")/../lib.sh"
need gdb
# gdb's own libraries may not match its Python everywhere.
gdb -nx -batch -ex 'python print(1)' 2>/dev/null | grep -q 1 || skip "gdb has no Python"
here=$(cd "$(dirname "$0")" && pwd)
script="$BUILD/libfiberthread.so-gdb.py"
gcc -O1 -g -w -pthread -o "$TMP/inside" "$here/../src/inside.c" || fail "gcc failed"
g++ -O0 -g -w -pthread -o "$TMP/inside_cxx" "$here/../src/inside_cxx.cpp" || fail "g++ failed"
debug() { timeout -k 5 100 gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set auto-load no' -ex 'set pagination off' -ex 'set width 0' "$@" 2>&1; }
has() { grep -qE -- "$1" "$TMP/log" || fail "$2: no \"$1\" in $(head -c 3000 "$TMP/log")"; }
count() { grep -cE -- "$1" "$TMP/log"; }

check_c() { # WHAT
  [ "$(count '^  fiber [0-9]+, started at <waiter>: waits for cond 0x[0-9a-f]+ <never> \(')" = 20 ] || fail "$1: the waiters: $(cat "$TMP/log")"
  has "^  fiber [0-9]+ 'locker', started at <locker>: waits for mutex 0x[0-9a-f]+ <lock_a> held by fiber [0-9]+ \(main\)" "$1"
  has "^[* ] fiber [0-9]+ \(main\): waits for descriptor 0 \(" "$1"
  has "^[* ] fiber [0-9]+ 'computer', started at <computer>: running on thread [0-9]+" "$1"
  # "apply all" has shown each stack once, from where the fiber waits to its start.
  [ "$(count '^#[0-9]+ .* waiter \(p=.*inside\.c:')" = 20 ] || fail "$1: the waiters' stacks: $(cat "$TMP/log")"
  [ "$(count '^#[0-9]+ .* in wait_for_never \(depth=')" = 80 ] || fail "$1: the waiters' frames: $(cat "$TMP/log")"
  [ "$(count '^#[0-9]+ .* main \(argc=')" = 1 ] || fail "$1: main's stack: $(cat "$TMP/log")"
  has '^#[0-9]+ .* compute \(\) at .*inside\.c:' "$1"
  has '^#[0-9]+ .* read_pipe \(fd=' "$1"
  # All commands see the frames of the selected fiber.
  has '^mark fiber [0-9]+ .locker.: waits for mutex' "$1"
  has '^mark up .*locker \(p=0x0\)' "$1"
  has '^mark one .*turns' "$1"
  grep -qE 'Python Exception|Traceback|[Ee]rror' "$TMP/log" && fail "$1: $(grep -E -A 5 'Python Exception|Traceback|[Ee]rror' "$TMP/log")"
  return 0
}
commands=(-ex "source $script" -ex 'info fibers' -ex 'fiber apply all bt' -ex 'echo mark\040' -ex 'fiber locker'
  -ex 'python f = gdb.selected_frame()' -ex 'python while f.name() != "locker": f = f.older()' -ex 'python f.select()' -ex 'echo mark\040up\040' -ex 'frame'
  -ex 'echo mark\040one\040' -ex 'fiber computer info symbol &turns' -ex 'fiber')
# many N D: checks a core of N threads that wait D calls deep.
many() {
  makes_cores || return 0
  ulimit -S -s 256
  begin 2 "$TMP/inside_cxx" $1 $2
  end_by_core
  debug "$TMP/inside_cxx" "$core" -ex "source $script" -ex 'fiber apply all bt' >"$TMP/log"
  rm -f "$core"
  [ "$(count '^fiber [0-9]+: waits for cond 0x')" = $1 ] || fail "many: $(count '^fiber') fibers"
  [ "$(count '^#[0-9]+ .*Guarded::wait(\(int, int\))? \(this=.*, n=7, depth=')" = $(($1 * ($2 + 1))) ] || fail "many: the frames: $(tail -n 40 "$TMP/log")"
  [ "$(count '^#[0-9]+ .*std::thread::_State_impl<.*_M_run')" = $1 ] || fail "many: not all stacks go to their start: $(tail -n 40 "$TMP/log")"
}
if [ "${1:-}" = many ]; then
  makes_cores || skip "cores are not written into the directory here"
  many 10000 12
  exit 0
fi

# The program is stopped in main, where a backtrace ends by default.
gcc -O1 -g -w -pthread -o "$TMP/stops_in_main" "$here/../src/stops_in_main.c" || fail "gcc failed"
debug -ex "set environment LD_PRELOAD $LIBRARY" -ex 'set startup-with-shell off' -ex run -ex "source $script" -ex 'fiber apply all bt' "$TMP/stops_in_main" >"$TMP/log"
has '^#[0-9]+ .* waits \(p=0x0\) at .*stops_in_main\.c:' "stopped in main"
# Stacks go through the stubs that replace libgomp's system calls.
if [ "$(uname -m)" = x86_64 ]; then
  gcc -O1 -g -w -fopenmp -o "$TMP/openmp_waits" "$here/../src/openmp_waits.c" || fail "gcc failed"
  debug -ex "set environment LD_PRELOAD $LIBRARY" -ex 'set startup-with-shell off' -ex run -ex "source $script" -ex 'fiber apply all bt' "$TMP/openmp_waits" >"$TMP/log"
  [ "$(count '^#[0-9]+ .* waits_for_lock \(\) at .*openmp_waits\.c:')" = 2 ] || fail "OpenMP: $(cat "$TMP/log")"
fi

for workers in 1 4; do
  begin $workers "$TMP/inside" 20
  # Without the script, the computing fiber is seen on its thread, and its stack ends where the fiber began.
  debug -p $pid -ex 'thread apply all bt' >"$TMP/log"
  # Its frame is #0, or #2 where a tick has just come.
  has '^#[02] .*compute \(\) at .*inside\.c:' "plain gdb"
  has '^#[13] .*computer \(p=' "plain gdb"
  grep -qE 'corrupt|previous frame|Backtrace limit' "$TMP/log" && fail "plain gdb: $(cat "$TMP/log")"
  debug -p $pid "${commands[@]}" >"$TMP/log"
  check_c "live, $workers workers"
  if [ $workers = 4 ] && makes_cores; then
    end_by_core
    debug "$TMP/inside" "$core" "${commands[@]}" >"$TMP/log"
    check_c core
    rm -f "$core"
  else
    end "live, $workers workers"
  fi
done

# The process goes on from where it was, though we have looked at another fiber, and a breakpoint is hit after that. It ends half a second
# later: at once, gdb 13 may still look at threads that are gone ("Couldn't get registers", "wait returned unexpected status").
ends_later() {
  for ((i = 0; i < 600; i++)); do
    grep -q '^ready' "$TMP/log" && break
    sleep 0.05
  done
  sleep 0.5
}
: >"$TMP/log"
timeout -k 5 100 gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set auto-load no' -ex "set environment LD_PRELOAD $LIBRARY" -ex 'set breakpoint pending on' \
  -ex 'break puts' -ex 'run' -ex "source $script" -ex 'fiber locker' -ex 'bt -3' -ex 'delete' -ex 'continue' --args "$TMP/inside" 5 < <(ends_later) >"$TMP/log" 2>&1
has '^#[0-9]+ .* locker \(p=0x0\)' "run"
has 'exited normally' "run"

begin 2 "$TMP/inside_cxx"
debug -p $pid -ex "source $script" -ex 'fiber apply all bt' >"$TMP/log"
has "Guarded::wait(\(int, int\))? \(this=.*, n=7, depth=0\) at .*inside_cxx\.cpp" C++
has "^#[0-9]+ .*std::thread::_State_impl<.*_M_run" C++
end C++
many 500 12

if command -v rustc >/dev/null; then
  cat >"$TMP/inside.rs" <<'R'
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};
#[inline(never)]
fn wait_in_rust(pair: &(Mutex<u32>, Condvar)) {
    let mut g = pair.0.lock().unwrap();
    *g += 1;
    loop {
        g = pair.1.wait(g).unwrap();
    }
}
fn main() {
    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    for i in 0..3 {
        let p = pair.clone();
        std::thread::Builder::new().name(format!("rusty{}", i)).spawn(move || wait_in_rust(&p)).unwrap();
    }
    while *pair.0.lock().unwrap() < 3 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    println!("ready");
    let mut s = Vec::new();
    std::io::stdin().read_to_end(&mut s).unwrap();
}
R
  rustc -g -O -o "$TMP/inside_rust" "$TMP/inside.rs" >"$TMP/log" 2>&1 || fail "rustc: $(cat "$TMP/log")"
  begin 2 "$TMP/inside_rust"
  debug -p $pid -ex "source $script" -ex 'info fibers' -ex 'fiber apply all bt' >"$TMP/log"
  has "fiber [0-9]+ 'rusty2'.*: waits for futex" Rust
  [ "$(count '^#[0-9]+ .*inside::wait_in_rust \(')" = 3 ] || fail "Rust: $(cat "$TMP/log")"
  end Rust
fi
exit 0
