// SPDX-License-Identifier: MIT
#include "fiberthread/misuse.h"

#include "sync/checks.h"

namespace fiberthread {

static_assert(kDestroyedWord == kDestroyed);

void report_misuse(const char* type, const void* object, const char* what) { misused(type, object, what); }

}  // namespace fiberthread
