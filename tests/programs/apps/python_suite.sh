#!/bin/bash
# SPDX-License-Identifier: MIT
# Python's own tests of threads, signals, processes and sockets have the same verdicts as on NPTL. All run ROUNDS (1) times, and those of
# threads and signals at least TIMES (3) times.
# packages: python3 libpython3.14-testsuite|libpython3.13-testsuite|libpython3.11-testsuite
. "$(dirname "$0")/../lib.sh"
python=/usr/bin/python3
need $python
$python -c 'import test.test_threading' 2>/dev/null || skip "Python's test suite is not installed"
readable_library
cd "$TMP" || exit 1
# Prints each test with its verdict. So a test that did not run is noticed.
verdicts() {
  grep -aE "^(test|setUp|tearDown).* \.\.\. " "$1" | sed -E "s: \.\.\. (ok|skipped|FAIL|ERROR|expected failure)?.*: \1:" | LC_ALL=C sort
}
run() { # name of the output, suite
  # The test of VSOCK waits for ever, on NPTL too, if the machine cannot connect to itself by VSOCK.
  timeout -k 5 1000 $python -m test -v -i "*ThreadedVSOCK*" "$2" >"$TMP/$1" 2>&1
  echo "exit $?" >>"$TMP/$1"
}
for suite in ${SUITES:-test_threading test_thread test_queue test_signal test_subprocess test_fork1 test_concurrent_futures test_socket}; do
  run nptl $suite
  times=${ROUNDS:-1}
  case $suite in test_threading | test_thread | test_signal) times=$((${TIMES:-3} > times ? ${TIMES:-3} : times)) ;; esac
  for i in $(seq $times); do
    LD_PRELOAD="$LIBRARY" run fiber $suite
    diff <(verdicts "$TMP/nptl") <(verdicts "$TMP/fiber") >"$TMP/diff" || {
      cat "$TMP/diff"
      grep -aA30 '^\(FAIL\|ERROR\): ' "$TMP/fiber" | head -n 100
      tail -n 20 "$TMP/fiber"
      fail "$suite differs"
    }
    [ "$(tail -n 1 "$TMP/nptl")" = "$(tail -n 1 "$TMP/fiber")" ] || fail "$suite: $(tail -n 1 "$TMP/fiber"), on NPTL $(tail -n 1 "$TMP/nptl")"
  done
  echo "$suite: $(verdicts "$TMP/fiber" | wc -l) verdicts, $times times"
done
