#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: ripgrep
. "$(dirname "$0")/../lib.sh"
need rg
# ripgrep's threads print in any order.
compare 7 bash -c 'rg -j 8 --no-config -n "sub +[a-z]+_[a-z]+" /usr/share/perl | LC_ALL=C sort'
compare 7 bash -c 'rg -j 8 --no-config --files /usr/share/perl | LC_ALL=C sort'
