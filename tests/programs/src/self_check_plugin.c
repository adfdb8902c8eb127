// SPDX-License-Identifier: MIT
// A plugin for self_check.c, whose thread-local variable has to be in static TLS.
static __thread int value __attribute__((tls_model("initial-exec"))) = 1234;
int* variable(void) { return &value; }
