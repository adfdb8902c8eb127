#!/bin/bash
# SPDX-License-Identifier: MIT
# OpenJDK's own tests of threads, locks, processes, sockets, channels and thread management have the same verdicts as on NPTL.
# packages: openjdk-17-jdk-headless|default-jdk-headless jtreg7
. "$(dirname "$0")/../lib.sh"
need javac
need jtreg
release=$(javac -version 2>&1 | sed -E 's/[^0-9]*([0-9]+).*/\1/')
source_of "openjdk-$release" test/jdk test/lib test/jtreg-ext
readable_library
rounds=${ROUNDS:-1}
cd "$source/test/jdk" || exit 1
results() { grep -E '^(Passed|FAILED|Error): ' | tr -s ' ' | LC_ALL=C sort; }
java=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
for tests in ${TESTS_OF_JDK:-java/lang/ProcessBuilder java/lang/ProcessHandle java/lang/Thread java/lang/ThreadLocal java/lang/RuntimeTests \
  java/lang/management/ThreadMXBean com/sun/management/ThreadMXBean java/util/Timer java/net/Socket java/net/ServerSocket java/nio/channels \
  java/util/concurrent}; do
  same_verdicts "$tests" results jtreg -verbose:summary -ignore:quiet -othervm -conc:2 -timeout:4 "-jdk:$java" "-w:$TMP/work" "-r:$TMP/report" \
    -e:LD_PRELOAD -e:FIBERTHREAD_WORKERS "$tests"
done
echo "$verdicts verdicts, $rounds times"
