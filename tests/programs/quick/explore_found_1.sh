#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# The programs of tests/explore/ whose names begin with [a-l].
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../explore_found.sh"
found "$(cd "$(dirname "$0")/../../explore" && pwd)"/[a-l]*.c
exit 0
