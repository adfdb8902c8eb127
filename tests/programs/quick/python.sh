#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: python3
. "$(dirname "$0")/../lib.sh"
python=/usr/bin/python3
need $python
compare 64 $python "$(dirname "$0")/../src/threads.py"
