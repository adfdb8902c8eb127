// SPDX-License-Identifier: MIT
#include "preload/explore/memory/clock.h"

#include <sys/mman.h>

#include <initializer_list>

namespace fiberthread {

bool lost = false;

namespace {
constexpr size_t kHeapSizes[] = {size_t{8} << 30, size_t{1} << 28};  // address space, which may be limited
char* heap = nullptr;
size_t heap_size = 0, heap_used = 0;
}  // namespace

void* take(size_t n) {
  for (size_t size : kHeapSizes) {
    if (heap) break;
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    heap = static_cast<char*>(p);
    heap_size = size;
  }
  n = (n + 15) / 16 * 16;
  if (n > heap_size - heap_used) return nullptr;
  heap_used += n;
  return heap + heap_used - n;
}

bool grow(Clock& c, uint32_t size) {
  if (size <= c.size) return true;
  uint32_t bigger = 8;
  while (bigger < size) bigger *= 2;
  auto* at = static_cast<uint32_t*>(take(bigger * sizeof(uint32_t)));
  if (!at) {
    lost = true;
    return false;
  }
  for (uint32_t i = 0; i < c.size; i++) at[i] = c.at[i];
  c = {at, bigger};
  return true;
}

void join(Clock& to, const Clock& from) {
  uint32_t size = from.size;
  while (size && !from.at[size - 1]) size--;
  if (!grow(to, size)) return;
  for (uint32_t i = 0; i < size; i++)
    if (from.at[i] > to.at[i]) to.at[i] = from.at[i];
}

void clear(Clock& c) {
  for (uint32_t i = 0; i < c.size; i++) c.at[i] = 0;
}

}  // namespace fiberthread
