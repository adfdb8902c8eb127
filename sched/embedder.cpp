// SPDX-License-Identifier: MIT
#include "sched/embedder.h"

namespace fiberthread {

constinit Embedder inside::embedder{};

void sched_embed(const Embedder& table) { inside::embedder = table; }

void leave_busy_slow() { embedder().at_safe_point(tls_current); }

}  // namespace fiberthread
