// Marks a POSIX or libc name that this library takes over.
#pragma once
#define FIBERTHREAD_EXPORT extern "C" __attribute__((visibility("default")))
