// The set*id family. The kernel keeps user and group ids per kernel thread; POSIX has them per process.
#pragma once
namespace fiberthread {

void ids_reset_after_fork();

}  // namespace fiberthread
