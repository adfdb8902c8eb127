// SPDX-License-Identifier: MIT
#include "sched/glibc/model.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include "sched/arch/arch.h"
#include "sched/fiber.h"
#include "sched/glibc/keys.h"
#include "sched/glibc/processor.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/tcb.h"
#include "sched/large.h"

extern "C" {
void __pthread_register_cancel(__pthread_unwind_buf_t*);
void __pthread_unregister_cancel(__pthread_unwind_buf_t*);
void* __res_state();
}

namespace fiberthread::glibc {

FIBERTHREAD_LARGE alignas(64) unsigned char template_image[kMaxPthread];
uint16_t self_pointers[64];
unsigned self_pointer_count;
char* model_tcb;

namespace {

enum Step : uint32_t { kLooking, kLooked, kGoOn, kEnd };
constinit struct {
  void (*main)();
  char* stack;
  size_t stack_size;
  std::atomic<uint32_t> step{kLooking};
  const char* why = nullptr;
} experiment{};

// Returns the offset of the only word that matches, or a negative number.
template <class F>
int find_word(const char* from, size_t bytes, F matches) {
  int found = -1;
  for (size_t o = 0; o + sizeof(uintptr_t) <= bytes; o += sizeof(uintptr_t)) {
    if (!matches(*reinterpret_cast<const uintptr_t*>(from + o))) continue;
    if (found >= 0) return -2;  // not unique
    found = static_cast<int>(o);
  }
  return found;
}

int find_value(const char* pd, uintptr_t value) {
  return find_word(pd, layout.sizeof_pthread, [value](uintptr_t v) { return v == value; });
}
int find_value(const char* pd, const void* value) { return find_value(pd, reinterpret_cast<uintptr_t>(value)); }

// Since 2.41 a thread that asks for random numbers gets a state for that. Nobody else may use it, because two threads with one state would
// draw the same numbers. It is the one word that changes when the model asks. Two others may change at any time: the kernel writes into the
// rseq area when the thread comes to another CPU, and a thread that another one makes or ends is linked into the list beside the model.
const char* find_random() {
  auto* get = reinterpret_cast<ssize_t (*)(void*, size_t, unsigned)>(dlvsym(RTLD_NEXT, "getrandom", "GLIBC_2.25"));
  char* pd = model_tcb;
  uintptr_t before[kMaxPthread / sizeof(uintptr_t)];
  char byte;
  memcpy(before, pd, layout.sizeof_pthread);
  if (get) get(&byte, 1, 1 /* GRND_NONBLOCK */);
  uint32_t found = 0;
  for (uint32_t o = 0; o < layout.sizeof_pthread; o += sizeof(uintptr_t)) {
    if (at<uintptr_t>(pd, o) == before[o / sizeof(uintptr_t)]) continue;
    if (in_rseq_area(thread_pointer_of(pd), pd + o) || (o >= layout.list && o < layout.list + 2 * sizeof(void*))) continue;
    if (found || before[o / sizeof(uintptr_t)]) return "random numbers change struct pthread in an unknown way";
    found = o;
  }
  layout.random = found;
  return nullptr;
}

// libc puts a new thread that has its stack from the program first in the list.
bool list_is_right(char* pd) {
  char* node = pd + layout.list;
  auto leads = [](char* from, char* to) {
    char *next, *prev;
    return read_word(from + layout.list_next, next) && next == to && read_word(to + layout.list_prev, prev) && prev == from;
  };
  return leads(layout.stack_user, node) && leads(node, at<char*>(node, layout.list_next));
}

// Checks that struct pthread is at the top of the stack that the model was given, and as large as libc says.
const char* check_place(char* pd, char* low, char* high) {
  if (thread_pointer_of(pd) != thread_pointer()) return "thread pointer is elsewhere";
  model_tcb = pd;
  if (pd < low || pd + layout.sizeof_pthread > high) return "TCB is not on the given stack";
  if (kPlaceTellsSize && pd != place(high)) return "struct pthread has another size";
  if (!rseq_area_is_within(thread_pointer_of(pd), low, high)) return "the rseq area is elsewhere";
  return nullptr;
}

// Finds the fields without a descriptor: libc itself puts values there that we know.
const char* find_fields(char* pd, char* low) {
  __pthread_unwind_buf_t buf;
  __pthread_register_cancel(&buf);
  int jmp = find_value(pd, &buf);
  __pthread_unregister_cancel(&buf);
  auto* push = reinterpret_cast<void (*)(_pthread_cleanup_buffer*, void (*)(void*), void*)>(dlsym(RTLD_NEXT, "_pthread_cleanup_push"));
  auto* pop = reinterpret_cast<void (*)(_pthread_cleanup_buffer*, int)>(dlsym(RTLD_NEXT, "_pthread_cleanup_pop"));
  int cleanup = -1;
  if (push && pop) {
    _pthread_cleanup_buffer b;
    push(&b, +[](void*) {}, nullptr);
    cleanup = find_value(pd, &b);
    pop(&b, 0);
  }
  int block = find_value(pd, low), size = find_value(pd, experiment.stack_size);
  if (jmp < 0 || block < 0 || size < 0) return "struct pthread has an unknown form";
  layout.cleanup_jmp_buf = jmp;
  layout.cleanup = cleanup >= 0 ? cleanup : 0;
  layout.stackblock = block;
  layout.stackblock_size = size;
  void* head = nullptr;
  size_t head_size = 0;
  if (raw_syscall(SYS_get_robust_list, 0, arg(&head), arg(&head_size)) == 0 && head >= pd && head < pd + layout.sizeof_pthread)
    layout.robust_head = static_cast<char*>(head) - pd;
  char* res;
  if (!read_word(static_cast<char*>(thread_pointer()) + layout.resp, res) || res != static_cast<char*>(__res_state()) || res < pd ||
      res + kResBytes > pd + layout.sizeof_pthread)
    return "resolver state is elsewhere";
  layout.res = res - pd;
  return nullptr;
}

// Copies struct pthread, without what is the model's own. The resolver state is not copied: it starts empty in each new thread.
const char* make_template(char* pd, char* low, char* high) {
  memcpy(template_image, pd, layout.sizeof_pthread);
  if (layout.random) at<void*>(template_image, layout.random) = nullptr;
  self_pointer_count = 0;
  for (size_t o = 0; o + 8 <= layout.sizeof_pthread; o += 8) {
    auto& v = *reinterpret_cast<uintptr_t*>(template_image + o);
    char* p = reinterpret_cast<char*>(v);
    if (p >= pd && p <= pd + layout.sizeof_pthread) {
      if (self_pointer_count == 64) return "too many pointers in struct pthread";
      v -= reinterpret_cast<uintptr_t>(pd);
      self_pointers[self_pointer_count++] = static_cast<uint16_t>(o);
    } else if (p >= low && p < high && o != layout.stackblock) {
      v = 0;  // points into the model's stack: its unwind buffer
    }
  }
  drop_key_values(template_image);
  return nullptr;
}

const char* look_at_model() {
  char* pd = reinterpret_cast<char*>(pthread_self());
  char *low = experiment.stack, *high = low + experiment.stack_size;
  if (const char* why = check_place(pd, low, high)) return why;
  if (const char* why = find_fields(pd, low)) return why;
  if (at<uint32_t>(pd, layout.tid) != static_cast<uint32_t>(raw_syscall(SYS_gettid))) return "tid is elsewhere";
  if (!list_is_right(pd)) return "the list of threads is elsewhere";
  find_specific_used(pd);
  if (!keys_are_right(pd)) return "the values of keys are elsewhere";
  if (const char* why = find_random()) return why;
  return make_template(pd, low, high);
}

void* known_thread(void*) {
  tls_busy = 1;
  experiment.main();
  return nullptr;
}

void* model_thread(void*) {
  tls_busy = 1;
  experiment.why = look_at_model();
  experiment.step.store(kLooked, std::memory_order_release);
  futex_wake(&experiment.step, 1);
  uint32_t s;
  while ((s = experiment.step.load(std::memory_order_acquire)) == kLooked) futex_wait(&experiment.step, kLooked);
  if (s == kGoOn) experiment.main();
  return nullptr;
}

void go_on(Step step) {
  experiment.step.store(step, std::memory_order_release);
  futex_wake(&experiment.step, 1);
}

}  // namespace

namespace {

// Returns null, or why there is no thread.
const char* make_thread(void* (*start)(void*), pthread_t* thread) {
  experiment.stack_size = tcb_libc_stack_size() + 0x5000;  // an odd size, so that its value is found nowhere by chance
  experiment.stack = map_memory(experiment.stack_size, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_STACK);
  if (!experiment.stack) return "no memory";
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  static const bool join = dlsym(RTLD_NEXT, "pthread_join") != nullptr;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  bool made = create && join && pthread_attr_setstack(&attr, experiment.stack, experiment.stack_size) == 0 &&
              create(thread, &attr, start, nullptr) == 0;
  pthread_attr_destroy(&attr);
  if (made) return nullptr;
  unmap_memory(experiment.stack, experiment.stack_size);
  return "no kernel thread to be had";
}

}  // namespace

const char* start_model(pthread_t* thread, bool* made) {
  experiment.step.store(kLooking);
  const char* why = make_thread(model_thread, thread);
  *made = !why;
  if (why) return why;
  while (experiment.step.load(std::memory_order_acquire) == kLooking) futex_wait(&experiment.step, kLooking);
  return experiment.why;
}

const char* start_known(void (*main)(), pthread_t* thread) {
  experiment.main = main;
  return make_thread(known_thread, thread);
}

void release_model(void (*main)()) {
  experiment.main = main;
  go_on(kGoOn);
}

void end_model(pthread_t thread) {
  go_on(kEnd);
  reinterpret_cast<int (*)(pthread_t, void**)>(dlsym(RTLD_NEXT, "pthread_join"))(thread, nullptr);
  unmap_memory(experiment.stack, experiment.stack_size);
}

}  // namespace fiberthread::glibc
