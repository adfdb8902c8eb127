// SPDX-License-Identifier: MIT
// Threads do everything at random: create, join, detach, mutexes, conditions, semaphores, read-write locks, sleeping, yielding, malloc,
// fork with threads in the child. Sums are checked at the end. Argument: a seed.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t tokens;
static long shared_sum, steps;
static atomic_long expected_sum, alive, written;
static __thread long own;

struct Job {
  unsigned seed;
  int depth;
};

static void* child_work(void* p) {
  for (int i = 0; i < 20; i++) {
    free(malloc(100 + i));
    if (i % 5 == 0) sched_yield();
  }
  return p;
}

static void* run(void* p) {
  struct Job* job = p;
  unsigned seed = job->seed;
  int depth = job->depth;
  free(job);
  assert(own == 0);
  pthread_t made[8];
  int n_made = 0;
  for (int step = 0; step < 30; step++) {
    own++;
    switch (rand_r(&seed) % 12) {
      case 0:
      case 1:
        if (depth < 4) {
          struct Job* j = malloc(sizeof *j);
          j->seed = (unsigned)rand_r(&seed);
          j->depth = depth + 1;
          atomic_fetch_add(&alive, 1);
          pthread_t t;
          assert(pthread_create(&t, NULL, run, j) == 0);
          if (n_made == 8 || rand_r(&seed) % 3 == 0) pthread_detach(t);
          else made[n_made++] = t;
        }
        break;
      case 2:
        if (n_made) assert(pthread_join(made[--n_made], NULL) == 0);
        break;
      case 3:
      case 4: {
        long v = rand_r(&seed) % 100;
        pthread_mutex_lock(&mutex);
        long s = shared_sum;
        if (v < 10) sched_yield();
        shared_sum = s + v;
        steps++;
        if (v % 8 == 0) pthread_cond_broadcast(&changed);
        else pthread_cond_signal(&changed);
        pthread_mutex_unlock(&mutex);
        atomic_fetch_add(&expected_sum, v);
        break;
      }
      case 5: {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 1000000;
        if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
        pthread_mutex_lock(&mutex);
        long before = steps;
        if (rand_r(&seed) % 2) pthread_cond_timedwait(&changed, &mutex, &t);
        assert(steps >= before);
        pthread_mutex_unlock(&mutex);
        break;
      }
      case 6:
        sem_wait(&tokens);
        if (rand_r(&seed) % 4 == 0) sched_yield();
        sem_post(&tokens);
        break;
      case 7: usleep((useconds_t)(rand_r(&seed) % 300)); break;
      case 8: {
        size_t size = (size_t)(rand_r(&seed) % 20000 + 1);
        char* m = malloc(size);
        memset(m, (int)size, size);
        if (size % 3 == 0) sched_yield();
        for (size_t i = 0; i < size; i += 97) assert(m[i] == (char)size);
        free(m);
        break;
      }
      case 9:
        if (rand_r(&seed) % 4 == 0) {
          pthread_rwlock_wrlock(&rwlock);
          atomic_fetch_add(&written, 1);
          pthread_rwlock_unlock(&rwlock);
        } else {
          pthread_rwlock_rdlock(&rwlock);
          long w = atomic_load(&written);
          if (rand_r(&seed) % 4 == 0) sched_yield();
          assert(atomic_load(&written) == w);
          pthread_rwlock_unlock(&rwlock);
        }
        break;
      case 10:
        if (rand_r(&seed) % 40 == 0) {
          pid_t pid = fork();
          assert(pid >= 0);
          if (pid == 0) {
            pthread_t t[3];
            for (int i = 0; i < 3; i++) assert(pthread_create(&t[i], NULL, child_work, NULL) == 0);
            for (int i = 0; i < 3; i++) assert(pthread_join(t[i], NULL) == 0);
            _exit(42);
          }
          int status;
          assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42);
        }
        break;
      default: sched_yield();
    }
    assert(own == step + 1);
  }
  while (n_made) assert(pthread_join(made[--n_made], NULL) == 0);
  if (atomic_fetch_sub(&alive, 1) % 5 == 0) pthread_exit(NULL);
  return NULL;
}

int main(int argc, char** argv) {
  unsigned seed = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
  sem_init(&tokens, 0, 3);
  for (int i = 0; i < 12; i++) {
    struct Job* j = malloc(sizeof *j);
    j->seed = seed * 1000 + (unsigned)i;
    j->depth = 0;
    atomic_fetch_add(&alive, 1);
    pthread_t t;
    assert(pthread_create(&t, NULL, run, j) == 0);
    pthread_detach(t);
  }
  while (atomic_load(&alive)) usleep(500);
  pthread_mutex_lock(&mutex);
  assert(shared_sum == expected_sum);
  pthread_mutex_unlock(&mutex);
  puts("ok");
  return 0;
}
