// SPDX-License-Identifier: MIT
// Marks a POSIX or libc name that this library takes over.
#pragma once
#define FIBERTHREAD_EXPORT extern "C" __attribute__((visibility("default")))
// Exports one of this file's functions under a second name, which libc has for old binaries. It does not apply `alias` to the plain name,
// because headers may redirect that name.
#define FIBERTHREAD_ALIAS(name, target) \
  extern "C" __attribute__((visibility("default"), alias(#target))) decltype(target) fiberthread_alias_##name __asm__(#name)
