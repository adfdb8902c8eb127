// SPDX-License-Identifier: MIT
// A list is walked with the lock released for each callback. The node that the walk has in hand may be removed in the meantime.
#include <assert.h>
#include <pthread.h>
#include <stddef.h>
struct node {
  struct node* next;
  int removed;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node nodes[3] = {{&nodes[1]}, {&nodes[2]}, {NULL}};
static void* walks(void* p) {
  pthread_mutex_lock(&lock);
  for (struct node* n = &nodes[0]; n; n = n->next) {
    assert(!n->removed);
#ifndef MENDED
    pthread_mutex_unlock(&lock);  // the callback may lock
    pthread_mutex_lock(&lock);
#endif
    assert(!n->removed);
  }
  pthread_mutex_unlock(&lock);
  return p;
}
static void* removes(void* p) {
  pthread_mutex_lock(&lock);
  nodes[0].next = nodes[1].next;
  nodes[1].removed = 1;
  nodes[1].next = NULL;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, walks, 0);
  pthread_create(&t[1], 0, removes, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
