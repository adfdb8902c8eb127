// SPDX-License-Identifier: MIT
// A lock-free stack that frees its nodes at once: a thread that was stopped in pop() reads the successor of a freed node.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
struct node {
  struct node* next;
  int freed;
};
static _Atomic(struct node*) top;
static struct node nodes[3];
static void log_line() { write(1, "", 0); }
static void release(struct node* n) {
#ifndef MENDED  // the twin keeps all nodes until its end
  n->freed = 1;
#endif
}
static void push(struct node* n) {
  n->next = top;
  while (!atomic_compare_exchange_strong(&top, &n->next, n)) log_line();
}
static struct node* pop() {
  struct node* n = top;
  do {
    if (!n) return 0;
    log_line();
    assert(!n->freed);
  } while (!atomic_compare_exchange_strong(&top, &n, n->next));
  return n;
}
static void* pops(void* p) {
  struct node* n = pop();
  if (n) release(n);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) push(&nodes[i]);
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, pops, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
