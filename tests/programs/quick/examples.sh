#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: coreutils
# The examples in bench-scripts work as they say, on 1, 2 and 16 workers.
. "$(dirname "$0")/../lib.sh"
ulimit -c 0
bin="$BUILD/examples"
cd "$TMP" || exit 1
run() { timeout -k 5 100 "$bin/$@" 2>"$TMP/err"; }
expect() { # WHAT FOUND EXPECTED
  [ "$2" = "$3" ] || fail "$1 on $FIBERTHREAD_WORKERS workers: \"$2\" instead of \"$3\": $(tail -n 3 "$TMP/err")"
}

# Computes the pipeline's result by other means.
seq 1 5000 | factor >"$TMP/factors"
primes=$(awk 'NF == 2 { n++; s += $2 } END { printf "primes: %d, sum %d", n, s }' "$TMP/factors")
others=$(awk 'NF != 2 { sub(":", "", $1); n++; s += $1 } END { printf "composites and 1: %d, sum %d", n, s }' "$TMP/factors")
grey() { # a P5 with a comment, 50 x 40
  printf 'P5 # grey\n50\n40 255\n'
  head -c 2000 "$bin/filter"
}
grey >"$TMP/grey"

for FIBERTHREAD_WORKERS in 1 2 16; do
  export FIBERTHREAD_WORKERS
  # fetch: it fetches all pages, in any order. The time limit and the first error end waiting fibers.
  expect fetch "$(run fetch --pages 60 --delay 2 --at-once 10 | sed 's/1:[0-9]*\//1:PORT\//' | tee "$TMP/fetched.$FIBERTHREAD_WORKERS" | tail -n 1)" \
    "60 of 60 pages, $(for ((i = 0; i < 60; i++)); do for ((k = 0; k <= i; k++)); do echo "page $i, line $k"; done; done | wc -c) bytes"
  cmp -s "$TMP/fetched.1" "$TMP/fetched.$FIBERTHREAD_WORKERS" || fail "fetch: other pages on $FIBERTHREAD_WORKERS workers"
  [ "$(grep -c ': 200, ' "$TMP/fetched.1")" = 60 ] || fail "fetch: not 60 lines"
  run fetch --pages 5 --delay 100000 --limit 50 >"$TMP/out" && fail "fetch: the time limit is no failure"
  expect "fetch with a limit" "$(tail -n 1 "$TMP/out")" "0 of 5 pages, 0 bytes: Connection timed out"
  expect "fetch without a limit" "$(grep -c 'Operation canceled$' "$TMP/out")" 5
  run fetch --strict http://127.0.0.1:1/ ftp://x/ >"$TMP/out" && fail "fetch: an error is no failure"
  run fetch http://127.0.0.1:1/ ftp://x/ >"$TMP/out" && fail "fetch: errors are no failure"
  expect "fetch of nothing" "$(cat "$TMP/out")" "http://127.0.0.1:1/: Connection refused
ftp://x/: Protocol not supported
0 of 2 pages, 0 bytes"

  for arguments in "" "1 0" "7 3"; do
    expect "pipeline $arguments" "$(run pipeline 5000 $arguments)" "$primes
$others"
  done

  run filter --make 161x90 made || fail "filter: cannot make a picture: $(cat "$TMP/err")"
  expect "the size of a picture" "$(wc -c <made)" $((161 * 90 * 3 + $(printf 'P6\n161 90\n255\n' | wc -c)))
  for picture in made grey; do
    expect "filter $picture" "$(run filter --check "$picture")" "the same"
    run filter --serial "$picture" "$picture.serial" && run filter - - <"$picture" >"$picture.parallel" || fail "filter $picture: $(cat "$TMP/err")"
    cmp "$picture.serial" "$picture.parallel" || fail "filter $picture: differs on $FIBERTHREAD_WORKERS workers"
    cmp -s "$picture" "$picture.serial" && fail "filter $picture: nothing was done"
  done
  echo P4 | run filter - out && fail "filter: took what is no picture"

  # chat
  rm -f "$TMP/port"
  "$bin/chat" >"$TMP/port" 2>"$TMP/err" &
  server=$!
  for ((i = 0; i < 500; i++)); do [ -s "$TMP/port" ] && break; sleep 0.02; done
  port=$(sed -n 's/listening on port //p' "$TMP/port")
  expect "chat" "$(run chat --load "$port" 16 40)" "9600 of 9600 lines heard"
  line() { IFS= read -r -t 30 -u "$1" answer || fail "chat: no answer on $FIBERTHREAD_WORKERS workers"; }
  exec 5<>"/dev/tcp/127.0.0.1/$port" 6<>"/dev/tcp/127.0.0.1/$port" 7<>"/dev/tcp/127.0.0.1/$port" || fail "chat: no connection"
  echo ann >&5
  line 5
  expect "the first in the room" "$answer" "+ann"
  printf 'bob\r\n' >&6
  line 6
  expect "the second" "$answer" "+bob"
  echo ann >&7
  line 7
  expect "a name that is taken" "$answer" "-taken"
  IFS= read -r -t 30 -u 7 answer && fail "chat: who is refused can go on"
  echo "hello, ann" >&6
  line 5
  expect "what bob says" "$answer" "bob: hello, ann"
  echo /who >&5
  line 5
  expect "who is there" "$answer" "+ann bob"
  echo /quit >&6
  IFS= read -r -t 30 -u 6 answer && fail "chat: no end after /quit: $answer"
  for ((i = 0; i < 500; i++)); do
    echo /who >&5
    line 5
    [ "$answer" = "+ann" ] && break
    sleep 0.01
  done
  expect "who is left" "$answer" "+ann"
  exec 5>&- 6>&- 7>&-
  kill $server
  wait $server 2>/dev/null

  # philosophers: unmodified
  expect "philosophers in order" "$(LD_PRELOAD="$LIBRARY" run philosophers --ordered 7 200)" "7 philosophers have had 1400 meals"
  FIBERTHREAD_DEADLOCK=abort LD_PRELOAD="$LIBRARY" timeout -s KILL 100 "$bin/philosophers" 4 >"$TMP/out" 2>"$TMP/err"
  expect "philosophers' end" $? 134
  grep -q ': deadlock: ' "$TMP/err" || fail "philosophers: no report: $(cat "$TMP/err")"
  for i in 0 1 2 3; do
    grep -q "fiber [0-9]* 'philosopher $i', started at .* waits for mutex .* held by fiber [0-9]* 'philosopher $(((i + 1) % 4))'" "$TMP/err" ||
      fail "philosophers: no wait of $i: $(cat "$TMP/err")"
  done
  grep -q "cycle: fiber [0-9]* 'philosopher 0' waits.*held by fiber [0-9]* 'philosopher 0'$" "$TMP/err" || fail "philosophers: no cycle: $(cat "$TMP/err")"
done
expect "philosophers without the library" "$(run philosophers --ordered 7 200)" "7 philosophers have had 1400 meals"
exit 0
