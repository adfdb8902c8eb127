#!/bin/bash
# SPDX-License-Identifier: MIT
# Descriptors closed under threads that wait for them, under FIBERTHREAD_CHAOS.
. "$(dirname "$0")/../lib.sh"
for workers in 1 2 16; do
  under_chaos closed_under_wait $workers 1 2
  under_chaos closed_stress $workers 1 2 3
done
