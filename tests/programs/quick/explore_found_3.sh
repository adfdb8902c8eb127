#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
# The programs of tests/explore/ whose names begin with [m-r].
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../explore_found.sh"
found "$(cd "$(dirname "$0")/../../explore" && pwd)"/[m-r]*.c*
exit 0
