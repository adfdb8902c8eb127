#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc gdb
# gdb shows all stacks of a core of 10,000 threads.
exec "$(dirname "$0")/../quick/gdb.sh" many
