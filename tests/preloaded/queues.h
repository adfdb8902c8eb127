// SPDX-License-Identifier: MIT
// Queues of System V and of POSIX for tests of calls that wait for them: one that is empty, and one that is full.
#pragma once
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <unistd.h>

struct message {
  long type;
  char text[4000];
};
static int queue, full_queue;
static mqd_t mq_empty, mq_full;

static inline mqd_t new_mq(char c) {
  char name[64];
  struct mq_attr attr = {};
  attr.mq_maxmsg = 1;
  attr.mq_msgsize = 64;
  snprintf(name, sizeof name, "/fiberthread-%d-%c", getpid(), c);
  mqd_t mq = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
  mq_unlink(name);
  return mq;
}

static inline void open_queues() {
  queue = msgget(IPC_PRIVATE, 0600);
  full_queue = msgget(IPC_PRIVATE, 0600);
  struct message m = {1, {}};
  while (msgsnd(full_queue, &m, sizeof m.text, IPC_NOWAIT) == 0) {
  }
  mq_empty = new_mq('a');
  mq_full = new_mq('b');
  mq_send(mq_full, "x", 1, 0);
}

static inline void remove_queues() {
  msgctl(queue, IPC_RMID, nullptr);
  msgctl(full_queue, IPC_RMID, nullptr);
}
