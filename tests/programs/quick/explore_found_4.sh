#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
# The programs of tests/explore/ whose names begin with [s-z].
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../explore_found.sh"
found "$(cd "$(dirname "$0")/../../explore" && pwd)"/[s-z]*.c*
exit 0
