// SPDX-License-Identifier: MIT
// ABA in a queue without locks: its nodes are used again. A thread that was stopped in take() finds the same node at the head as before, but
// with another successor.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
enum { kNodes = 4, kNone = 255 };
struct node {
  atomic_int next;
  int value;
};
static struct node nodes[kNodes];
static atomic_uint head, tail;  // the index of a node. The twin counts changes in the other bits
static atomic_int taken[3];
static unsigned changed(unsigned old, int to) {
#ifdef MENDED
  return ((old >> 8) + 1) << 8 | (unsigned)to;
#else
  return (unsigned)to;
#endif
}
static void put(int node, int value) {  // one thread puts
  nodes[node].value = value;
  nodes[node].next = kNone;
  nodes[tail & 255].next = node;
  tail = changed(tail, node);
}
static void log_line() { write(1, "", 0); }
// Returns the node that is free now, or kNone if there is nothing. As in Michael's and Scott's queue, the head is a node that was taken.
static int take() {
  for (;;) {
    unsigned old = head;
    int next = nodes[old & 255].next;
    if (next == kNone) return kNone;
    int value = nodes[next].value;
    log_line();
    if (!atomic_compare_exchange_strong(&head, &old, changed(old, next))) continue;
    assert(taken[value]++ == 0);
    return (int)(old & 255);
  }
}
static void* takes_one(void* p) {
  take();
  return p;
}
int main() {
  pthread_t t;
  nodes[0].next = kNone;
  put(1, 0);
  pthread_create(&t, 0, takes_one, 0);
  int free = take();
  if (free != kNone) put(free, 1);
  log_line();
  free = take();
  if (free != kNone) put(free, 2);
  pthread_join(t, 0);
  take();
  take();
}
