// SPDX-License-Identifier: MIT
// ABA: a lock-free stack whose pop() compares addresses only. The top may be the same node again while its successor is another one.
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
struct node {
  struct node* next;
  int in_use;
};
static _Atomic(struct node*) top;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node nodes[3];
static struct node* pop() {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#endif
  struct node *n = atomic_load(&top), *next;
  do {
    if (!n) break;
    next = n->next;
    sched_yield();
  } while (!atomic_compare_exchange_strong(&top, &n, next));
  if (n) {
    assert(!n->in_use);
    n->in_use = 1;
  }
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  return n;
}
static void push(struct node* n) {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#else
  (void)lock;
#endif
  n->in_use = 0;
  n->next = atomic_load(&top);
  while (!atomic_compare_exchange_strong(&top, &n->next, n)) {
  }
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
}
static void* pops(void* p) {
  struct node* n = pop();
  if (n) push(n);
  return p;
}
static void* pops_two(void* p) {
  struct node *a = pop(), *b = pop();
  if (a) push(a);
  sched_yield();
  if (b) push(b);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) push(&nodes[i]);
  pthread_create(&t[0], 0, pops, 0);
  pthread_create(&t[1], 0, pops_two, 0);
  pthread_create(&t[2], 0, pops_two, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
