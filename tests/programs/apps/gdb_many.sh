#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc gdb
# gdb on a core of 10,000 threads: all stacks.
exec "$(dirname "$0")/../quick/gdb.sh" many
