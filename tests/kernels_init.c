// SPDX-License-Identifier: MIT
// The first process in the emulated machine of tests/kernels. It loads the modules, and goes on with /session of the first disk.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static void load_modules(void) {
  struct dirent** all;
  int n = scandir("/modules", &all, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    char path[300];
    snprintf(path, sizeof path, "/modules/%s", all[i]->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (all[i]->d_name[0] != '.') syscall(SYS_finit_module, fd, "", 0);
    close(fd);
  }
}

int main(void) {
  mount("dev", "/dev", "devtmpfs", 0, NULL);
  load_modules();
  char* environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", NULL};
  if (mount("/dev/vda", "/root", "ext4", 0, NULL) != 0 || mount("dev", "/root/dev", "devtmpfs", 0, NULL) != 0 || chdir("/root") != 0 ||
      mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0 ||
      execle("/bin/sh", "sh", "/session", NULL, environment) != 0)
    perror("the disk");
  return 1;
}
