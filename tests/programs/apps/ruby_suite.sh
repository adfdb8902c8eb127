#!/bin/bash
# SPDX-License-Identifier: MIT
# Ruby's own tests of threads, queues, condition variables, monitors, signals and processes have the same verdicts as on NPTL.
# packages: ruby ruby-dev
. "$(dirname "$0")/../lib.sh"
need ruby
source_of ruby3.1 test/ruby test/monitor test/lib tool/lib tool/test test/runner.rb test/test_timeout.rb test/fileutils
readable_library
rounds=${ROUNDS:-1}
cd "$source" || exit 1
results() { sed -nE -e 's/^\[ *[0-9]+\/[0-9]+\] ([A-Za-z]+#[^ ]+) = [0-9.]+ s( = )?(.*)/\1 \3/p' -e '/^[0-9]+ tests/s/,? [0-9]+ assertions//p' | LC_ALL=C sort; }
for test in ${TESTS_OF_RUBY:-ruby/test_thread ruby/test_thread_queue ruby/test_thread_cv ruby/test_threadgroup ruby/test_signal \
  monitor/test_monitor test_timeout ruby/test_process}; do
  same_verdicts "$test" results ruby -W0 -Itool/lib -Itest/lib test/runner.rb -v "test/$test.rb"
done
echo "$verdicts verdicts, $rounds times"
