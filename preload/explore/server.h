// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

// Called at each point before serve_before_first_thread(), and when the program asks for its process's id.
__attribute__((visibility("hidden"))) void note_before_first_thread(const char* call, uintptr_t object);
__attribute__((visibility("hidden"))) void note_id_before_first_thread();

// Called before the process makes its first thread. Where the program allows it, the caller becomes the server of the exploration, and each
// of its children returns from here.
__attribute__((visibility("hidden"))) void serve_before_first_thread();
