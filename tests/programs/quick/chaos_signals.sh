#!/bin/bash
# SPDX-License-Identifier: MIT
# The masks of kernel threads, under FIBERTHREAD_CHAOS: four tests of tests/preloaded give the same output as on NPTL. Without chaos, a mask
# that comes too late is hardly ever seen.
. "$(dirname "$0")/../lib.sh"
under_chaos signals_main_tid 1 1 2
under_chaos signals_main_tid 2 1 2
under_chaos signals_blocked 1 1 2 3 4
under_chaos signals_blocked 2 1 2 3 4 5 6 7 8 9 10
under_chaos signals_opened 1 1 2 3 4 5
under_chaos signals_opened 2 1 2 3 4 5
under_chaos signals_closed 1 1 2 3 4 5
under_chaos signals_closed 2 1 2 3 4 5
