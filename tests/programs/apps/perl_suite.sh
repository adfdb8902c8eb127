#!/bin/bash
# SPDX-License-Identifier: MIT
# Perl's own tests of threads, shared variables, queues and semaphores have the same verdicts as on NPTL.
# packages: perl
. "$(dirname "$0")/../lib.sh"
source_of perl dist/threads dist/threads-shared dist/Thread-Queue dist/Thread-Semaphore t/test.pl
rounds=${ROUNDS:-1}
# Threads print their results in any order.
results() { grep -aE '^(not )?ok|^1\.\.|^# Failed' | sed -E 's/^(ok|not ok) *([0-9]*)( *# *(TODO|skip))?.*/\2 \1\3/I' | LC_ALL=C sort; }
for module in threads threads-shared Thread-Queue Thread-Semaphore; do
  cd "$source/dist/$module" || exit 1
  for test in t/*.t; do PERL_CORE=1 same_verdicts "$module/$test" results perl "$test"; done
done
echo "$verdicts verdicts, $rounds times"
