// SPDX-License-Identifier: MIT
// The library's own descriptors, in one registry. Each part that opens a descriptor enters it there. Some programs close descriptors that
// they do not know. They must not close these, so close() refuses, and dup2() onto one makes it move.
#pragma once
#include <atomic>

namespace fiberthread {

struct FiberRecord;

constexpr int kOwnFdsFrom = 512;  // their numbers begin here, where the limit allows it
bool is_own_fd(int fd);
void own_fd_new_process();  // this is a copy of the process that has them, and they are its own now
int own_fd_next(int fd);    // returns the first of them from fd on; -1: none
// Makes `fd` one of them, unless it is an error (negative), and moves it out of the way of the numbers that programs expect. `to` has its
// number from then on. The number changes if a program wants just this one. A variable keeps its place in the registry for ever, so it is a
// static one. If there is no place, the descriptor is closed and `to` stays as it is, as if the call that opened it had failed.
void own_fd_take(long fd, std::atomic<int>& to);
void own_fd_close(std::atomic<int>& own);  // closes it, and sets it to -1
void own_fd_make_way(int fd);              // moves an own descriptor away from this number

// Duplicates a descriptor of the program's that is about to be closed, while `keeper` waits for its file. The duplicate is one of the
// library's own. Returns its number, or -1 if there can be none.
int own_fd_keep(int fd, const FiberRecord* keeper);
void own_fd_let_go(int number);  // closes it, if it is such a duplicate
// Returns the first such number of that fiber's from `from` on; -1: none. Costs one load while there is none of any fiber.
int own_fd_next_kept(int from, const FiberRecord* keeper);

// Notes that these descriptors are this process's, unless a process was noted before.
void know_process();
// Returns true if the caller is not in that process. The child of a vfork has descriptors of its own, and our memory. A child whose fork we
// did not see has memory of its own, and our epoll.
bool another_process();

}  // namespace fiberthread
