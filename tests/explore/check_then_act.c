// SPDX-License-Identifier: MIT
// Atomicity: each call locks, but another thread may take the last seat between the look and the booking.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int seats = 2;
static int seats_left() {
  pthread_mutex_lock(&lock);
  int n = seats;
  pthread_mutex_unlock(&lock);
  return n;
}
static void take_seat() {
  pthread_mutex_lock(&lock);
  seats--;
  pthread_mutex_unlock(&lock);
}
static void take_seat_if_any() {
  pthread_mutex_lock(&lock);
  if (seats > 0) seats--;
  pthread_mutex_unlock(&lock);
}
static void* books(void* p) {
#ifdef MENDED
  take_seat_if_any();
#else
  if (seats_left() > 0) take_seat();
#endif
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, books, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  assert(seats == 0);
}
