#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: openjdk-17-jdk-headless|default-jdk-headless
. "$(dirname "$0")/../lib.sh"
need javac
javac -d "$TMP" "$(dirname "$0")/../src/Threads.java" || fail "javac failed"
cd "$TMP"
compare 500 java -Xmx128m Threads
compare 500 java -Xmx128m -XX:+UseParallelGC Threads
