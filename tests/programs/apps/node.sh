#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: nodejs
. "$(dirname "$0")/../lib.sh"
need node
compare 12 node "$(dirname "$0")/../src/workers.js"
