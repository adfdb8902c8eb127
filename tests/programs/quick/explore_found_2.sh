#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# The programs of tests/explore/ whose names begin with [m-z].
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../explore_found.sh"
found "$(cd "$(dirname "$0")/../../explore" && pwd)"/[m-z]*.c
exit 0
