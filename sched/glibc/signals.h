// SPDX-License-Identifier: MIT
// The two signals that libc keeps for itself, by its own names SIGCANCEL and SIGSETXID. It strips both from every mask that a program sets.
#pragma once
#include <cstdint>

namespace fiberthread {

constexpr int kLibcCancelSignal = 32;
constexpr int kLibcSetxidSignal = 33;  // libc has all of its threads change their ids by it

// Both, as a mask in the kernel's format.
constexpr uint64_t kLibcsSignals = uint64_t{1} << (kLibcCancelSignal - 1) | uint64_t{1} << (kLibcSetxidSignal - 1);

constexpr bool is_libcs_signal(int sig) { return sig == kLibcCancelSignal || sig == kLibcSetxidSignal; }

}  // namespace fiberthread
