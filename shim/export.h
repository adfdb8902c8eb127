// SPDX-License-Identifier: MIT
// Marks a POSIX or libc name that this library takes over.
#pragma once
#define FIBERTHREAD_EXPORT extern "C" __attribute__((visibility("default")))
// A second exported name for one of this file's functions, as libc has it for old binaries. Not by `alias` on the plain
// name, since headers may redirect that one.
#define FIBERTHREAD_ALIAS(name, target) \
  extern "C" __attribute__((visibility("default"), alias(#target))) decltype(target) fiberthread_alias_##name __asm__(#name)
