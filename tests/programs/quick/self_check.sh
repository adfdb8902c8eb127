#!/bin/bash
# SPDX-License-Identifier: MIT
# The self-check at the start finds anything that libc lacks, or has in another place than it says. Then threads are libc's, and the program
# ends as usual.
# packages: gcc python3
. "$(dirname "$0")/../lib.sh"
need gcc
need python3
here=$(cd "$(dirname "$0")/.." && pwd)
gcc -O1 -pthread -o "$TMP/self_check" "$here/src/self_check.c" || fail "the program does not compile"
gcc -shared -fPIC -o "$TMP/plugin.so" "$here/src/self_check_plugin.c" || fail "the plugin does not compile"
"$TMP/self_check" "$TMP/plugin.so" >/dev/null || fail "wrong on NPTL"
mkdir "$TMP/copies"
python3 "$here/src/perturb_libc.py" "$LIBRARY" "$here/../../sched/glibc" "$TMP/self_check" "$TMP/plugin.so" "$TMP/copies"
