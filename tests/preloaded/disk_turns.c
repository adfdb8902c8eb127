// SPDX-License-Identifier: MIT
// Two threads read from a disk on one worker. While one waits for the disk the other goes on, also where the disk answers in less than a
// tenth of a millisecond: they take turns at every few reads, and not at every tick. Where there is no such disk, nothing is shown.
// workers: 1
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 16, kReads = 1000, kPage = 4096, kPages = 1024 };
static int fd;
static atomic_int last, turns, waits;

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void* read_pages(void* p) {
  int me = *(int*)p;
  char* page = aligned_alloc(kPage, kPage);
  for (int i = 0; i < kReads; i++) {
    long began = now();
    if (pread(fd, page, kPage, (off_t)(i * 37 % kPages) * kPage) != kPage) abort();
    if (now() - began > 40000) atomic_fetch_add(&waits, 1);
    if (atomic_exchange(&last, me) != me) atomic_fetch_add(&turns, 1);
  }
  free(page);
  return NULL;
}

int main(void) {
  char name[] = "fileXXXXXX";
  int w = mkostemp(name, O_CLOEXEC);
  if (w < 0) abort();
  fd = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);  // not every file system has it
  unlink(name);
  if (fd >= 0) {
    char* page = aligned_alloc(kPage, kPage);
    for (int i = 0; i < kPages; i++)
      if (write(w, page, kPage) != kPage) abort();
    free(page);
    if (fsync(w)) abort();
  }
  // Two threads may come to take turns by chance in a round. In another one, busy programs may keep them from it.
  int rounds_without = 0;
  for (int round = 0; fd >= 0 && round < kRounds; round++) {
    atomic_store(&waits, 0), atomic_store(&turns, 0);
    pthread_t t[2];
    int names[2] = {1, 2};
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, read_pages, &names[i]);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    rounds_without += atomic_load(&turns) < atomic_load(&waits) / 32;
  }
  fprintf(stderr, "%d of %d rounds without turns\n", rounds_without, kRounds);
  puts(rounds_without <= kRounds / 2 ? "they take turns" : "one reads, the other waits");
  return 0;
}
