// SPDX-License-Identifier: MIT
// Where large tables are. A process writes few pages of them, and the linker puts them behind all other variables (--sort-section in the
// Makefile). So the others, which each start of a process and each fork's child write, share few pages.
#pragma once

#define FIBERTHREAD_LARGE [[gnu::section(".bss.large")]]        // zero at first
#define FIBERTHREAD_LARGE_DATA [[gnu::section(".data.large")]]  // not zero at first
