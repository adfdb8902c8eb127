// SPDX-License-Identifier: MIT
// The library's own descriptors: one registry, and each part that opens one enters it there. A program that closes descriptors which
// it does not know must not close these: close() refuses, and dup2() onto one makes it move.
#pragma once
#include <atomic>

namespace fiberthread {

constexpr int kOwnFdsFrom = 512;  // they stand from here on, where the limit allows it
bool is_own_fd(int fd);
int own_fd_next(int fd);  // the first of them from fd on; -1: none
// Makes `fd` one of them, if it is one at all, and moves it out of the way of the numbers that programs expect. `*to` is its
// number from then on: a program that wants just this one makes it move.
void own_fd_take(long fd, std::atomic<int>& to);
void own_fd_close(std::atomic<int>& own);  // closes it; -1 then
void own_fd_make_way(int fd);

// Remembers whose descriptors these are: this process's, unless it has been told before.
void know_process();
// The child of a vfork has descriptors of its own, and our memory. One whose fork we did not see has memory of its own, and our epoll.
bool another_process();

}  // namespace fiberthread
