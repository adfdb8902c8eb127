// SPDX-License-Identifier: MIT
// Two threads put nodes in front of a list without a lock, so one of the nodes may be lost.
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
struct Node {
  struct Node* next;
};
static struct Node* volatile head;
static void* inserts(void* p) {
  struct Node* n = malloc(sizeof *n);
#ifdef MENDED
  do n->next = head;
  while (!__sync_bool_compare_and_swap(&head, n->next, n));
#else
  n->next = head;
  head = n;
#endif
  return p;
}
int main() {
  pthread_t t[3];
  int length = 0;
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, inserts, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  for (struct Node* n = head; n; n = n->next) length++;
  assert(length == 3);
}
