// SPDX-License-Identifier: MIT
// A store of keys like LevelDB's: writes go to a log and a table in memory. A thread writes full ones to files, and merges these. A reader takes
// the list of files and the tables in memory in two critical sections, so a table that becomes a file in between is in neither.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kInMemory = 2, kMostFiles = 2, kKeys = 6, kMissing = -1 };

struct pair {
  int key, value;
};

// In memory. It gets no more entries once it is full.
struct table {
  int references, size;
  struct pair pairs[kInMemory];
};

// A table that was written, and does not change. Of two pairs with one key, the later counts.
struct file {
  int references, fd, size;
};

// The files at one moment, the newest first.
struct version {
  int references, count;
  struct file* files[kMostFiles + 1];
};

struct store {
  pthread_mutex_t lock;
  pthread_cond_t changed;  // a table is full, or was written, or the store closes
  pthread_t compactor;
  int log, closing;
  struct table *memory, *full;
  struct version* current;
};

static void release_table(struct table* t) {
  if (t && --t->references == 0) free(t);
}

static void release_version(struct version* v) {
  if (--v->references) return;
  for (int i = 0; i < v->count; i++)
    if (--v->files[i]->references == 0) {
      close(v->files[i]->fd);
      free(v->files[i]);
    }
  free(v);
}

static struct table* new_table() {
  struct table* t = calloc(1, sizeof *t);
  t->references = 1;
  return t;
}

static int find(const struct pair* pairs, int size, int key) {
  for (int i = size - 1; i >= 0; i--)
    if (pairs[i].key == key) return pairs[i].value;
  return kMissing;
}

// ---- files ----

static struct file* write_file(const struct pair* pairs, int size) {
  struct file* f = calloc(1, sizeof *f);
  f->fd = memfd_create("table", 0);
  f->size = size;
  ssize_t bytes = (ssize_t)((size_t)size * sizeof *pairs);
  if (write(f->fd, pairs, (size_t)bytes) != bytes) abort();
  return f;
}

static int read_file(const struct file* f, struct pair* pairs) {
  ssize_t bytes = (ssize_t)((size_t)f->size * sizeof *pairs);
  if (pread(f->fd, pairs, (size_t)bytes, 0) != bytes) abort();
  return f->size;
}

// Called with the lock, which it releases while it merges.
static void merge(struct store* s) {
  struct version* old = s->current;
  old->references++;
  pthread_mutex_unlock(&s->lock);
  struct pair all[(kMostFiles + 1) * kInMemory * 4];
  int size = 0;
  for (int i = old->count - 1; i >= 0; i--) size += read_file(old->files[i], all + size);
  int kept = 0;
  for (int i = 0; i < size; i++)
    if (find(all + i + 1, size - i - 1, all[i].key) == kMissing) all[kept++] = all[i];
  struct version* v = calloc(1, sizeof *v);
  v->references = v->count = 1;
  v->files[0] = write_file(all, kept);
  v->files[0]->references = 1;
  pthread_mutex_lock(&s->lock);
  s->current = v;
  release_version(old);
  release_version(old);
}

// Called with the lock, which it releases while it writes.
static void write_full(struct store* s) {
  struct table* t = s->full;
  pthread_mutex_unlock(&s->lock);
  struct file* f = write_file(t->pairs, t->size);
  pthread_mutex_lock(&s->lock);
  struct version *old = s->current, *v = calloc(1, sizeof *v);
  v->references = 1;
  v->files[v->count++] = f;
  for (int i = 0; i < old->count; i++) v->files[v->count++] = old->files[i];
  for (int i = 0; i < v->count; i++) v->files[i]->references++;
  s->current = v;
  s->full = NULL;
  release_version(old);
  release_table(t);
  pthread_cond_broadcast(&s->changed);
}

static void* compacts(void* p) {
  struct store* s = p;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->full && !s->closing) pthread_cond_wait(&s->changed, &s->lock);
    if (!s->full) break;
    write_full(s);
    if (s->current->count > kMostFiles - 1) merge(s);
  }
  pthread_mutex_unlock(&s->lock);
  return p;
}

// ---- the store ----

static void open_store(struct store* s) {
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->closing = 0;
  s->log = memfd_create("log", 0);
  s->memory = new_table();
  s->full = NULL;
  s->current = calloc(1, sizeof *s->current);
  s->current->references = 1;
  pthread_create(&s->compactor, NULL, compacts, s);
}

static void close_store(struct store* s) {
  pthread_mutex_lock(&s->lock);
  s->closing = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->compactor, NULL);
  release_table(s->memory);
  release_version(s->current);
  close(s->log);
}

static void put(struct store* s, int key, int value) {
  struct pair p = {key, value};
  pthread_mutex_lock(&s->lock);
  while (s->memory->size == kInMemory) {
    if (s->full) {
      pthread_cond_wait(&s->changed, &s->lock);
      continue;
    }
    s->full = s->memory;
    s->memory = new_table();
    pthread_cond_broadcast(&s->changed);
  }
  if (write(s->log, &p, sizeof p) != sizeof p) abort();
  s->memory->pairs[s->memory->size++] = p;
  pthread_mutex_unlock(&s->lock);
}

static int get(struct store* s, int key) {
  pthread_mutex_lock(&s->lock);
  struct version* v = s->current;
  v->references++;
#ifndef MENDED
  pthread_mutex_unlock(&s->lock);
  pthread_mutex_lock(&s->lock);
#endif
  struct table *memory = s->memory, *full = s->full;
  int size = memory->size;  // what is added later is not for this reader
  memory->references++;
  if (full) full->references++;
  pthread_mutex_unlock(&s->lock);
  int value = find(memory->pairs, size, key);
  if (value == kMissing && full) value = find(full->pairs, full->size, key);
  for (int i = 0; i < v->count && value == kMissing; i++) {
    struct pair pairs[(kMostFiles + 1) * kInMemory * 4];
    value = find(pairs, read_file(v->files[i], pairs), key);
  }
  pthread_mutex_lock(&s->lock);
  release_table(memory);
  release_table(full);
  release_version(v);
  pthread_mutex_unlock(&s->lock);
  return value;
}

// ---- its use ----

static struct store store;

static void* reads(void* p) {
  for (int i = 0; i < 3; i++) assert(get(&store, 0) != kMissing);
  return p;
}

static void* writes(void* p) {
  for (int key = 1; key < kKeys; key++) put(&store, key, key);
  return p;
}

int main() {
  pthread_t t[2];
  open_store(&store);
  put(&store, 0, 1);
  pthread_create(&t[0], NULL, reads, NULL);
  pthread_create(&t[1], NULL, writes, NULL);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  for (int key = 0; key < kKeys; key++) assert(get(&store, key) == (key ? key : 1));
  close_store(&store);
}
