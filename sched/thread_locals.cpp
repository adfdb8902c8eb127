// SPDX-License-Identifier: MIT
// The thread_local variables of the scheduler. fiber.h and worker.h declare them and say what they mean.
#include "sched/worker.h"

namespace fiberthread {

thread_local constinit FiberRecord* tls_current __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit uint32_t tls_busy __attribute__((tls_model("initial-exec"))) = 0;
thread_local constinit uint32_t tls_vforked __attribute__((tls_model("initial-exec"))) = 0;
thread_local constinit Worker* tls_worker __attribute__((tls_model("initial-exec"))) = nullptr;

}  // namespace fiberthread
