#!/bin/bash
# packages: nodejs
. "$(dirname "$0")/../lib.sh"
need node
compare 12 node "$(dirname "$0")/../src/workers.js"
