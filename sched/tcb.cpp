#include "sched/tcb.h"

#include <dlfcn.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sched/syscall.h"
#include "sched/worker.h"

extern "C" {
void __pthread_register_cancel(__pthread_unwind_buf_t*);
void __pthread_unregister_cancel(__pthread_unwind_buf_t*);
void* __res_state();
}

namespace fiberthread {

thread_local constinit FiberRecord* tls_current __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit uint32_t tls_busy __attribute__((tls_model("initial-exec"))) = 0;
thread_local constinit uint32_t tls_vforked __attribute__((tls_model("initial-exec"))) = 0;
thread_local constinit Worker* tls_worker __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

constexpr size_t kMaxPthread = 16384;
#if defined(__x86_64__)
constexpr size_t kTcbAlign = 64;
#else
constexpr size_t kTcbAlign = 16;
#endif

// One field as libc's debugger descriptors tell it.
struct Field {
  uint32_t bits, count, offset;
};

// Everything learnt about this libc. Written once before the first fiber, constant afterwards.
struct Layout {
  size_t sizeof_pthread, tls_size, tls_align;
  // Offsets in struct pthread.
  uint32_t tid, list, cancelhandling, specific, dtv;
  uint32_t stackblock, stackblock_size, cleanup_jmp_buf, cleanup, robust_head, res;
  uint32_t specific_used;       // a byte: some key may have a value; 0: not found
  uint32_t random;              // the thread's own state for the kernel's random numbers (2.41); 0: there is none
  uint32_t list_next, list_prev;
  uint32_t level2_data, key_data_seq, key_data_data, sizeof_key_data, level2_count, level1_count;
  uint32_t key_seq, key_destr, sizeof_key_struct, key_count;
  uint32_t dtv_entry, dtv_val;
  uint32_t slotinfo_len, slotinfo_next, slotinfo_array, slotinfo_map, sizeof_slotinfo, map_offset, map_modid;
  char* rtld_global;
  char* stack_user;             // list head
  std::atomic<int>* list_lock;  // libc's own low-level lock over the stack lists
  char* slotinfo_list;          // a pointer to its first part
  char* keys;                   // __pthread_keys
  ptrdiff_t resp;               // of the TLS variable __resp, from the thread pointer
};
Layout L;

void* (*dl_allocate_tls)(void*);
void (*dl_deallocate_tls)(void*, bool);
void (*call_tls_dtors)();
void (*ctype_init)();

// struct pthread of the model, as it was while it ran, with pointers into itself noted for relocation.
alignas(64) unsigned char template_image[kMaxPthread];
uint16_t self_pointers[64];
unsigned self_pointer_count;
char* model_tcb;

// Static TLS of all modules but libc and this library, with copies of their images, since dlclose may take the true ones
// away at any time.
struct Module {
  ptrdiff_t offset;  // from the thread pointer
  const void* image;
  size_t file_size, mem_size;
};
struct Modules {
  unsigned long long generation;  // the loader's count of changes
  size_t size;                    // of this mapping
  unsigned count, room;
  size_t bytes;                   // of images
  Module module[];
};
SpinLock modules_lock;
Modules* modules = nullptr;  // under modules_lock; never null once read
Module libc_tls;
// Changes of the list of modules that were announced, and how many of them the list in use has seen: raised only after that
// list is published, so nobody takes an old one for new.
std::atomic<uint64_t> modules_changes{1}, modules_seen{0};
std::atomic<int> loading{0};  // dlopens and dlcloses under way: any thread that ends meanwhile has to look itself
// libc's own static TLS, and how it looks in a thread that has done nothing yet.
unsigned char pristine[4096];
std::atomic<bool> pristine_known{false};

char* thread_pointer_of(void* tcb) {
#if defined(__x86_64__)
  return static_cast<char*>(tcb);
#else
  return static_cast<char*>(tcb) + L.sizeof_pthread;
#endif
}

template <class T>
T& at(void* base, size_t offset) { return *reinterpret_cast<T*>(static_cast<char*>(base) + offset); }

void* private_symbol(const char* name) { return dlvsym(RTLD_DEFAULT, name, "GLIBC_PRIVATE"); }

// Bits: what the field has to have, by how it is used here.
bool field(const char* name, uint32_t bits, uint32_t& offset) {
  auto* f = static_cast<const Field*>(private_symbol(name));
  if (!f || f->bits != bits || f->count != 1) return false;
  offset = f->offset;
  return true;
}

bool array(const char* name, uint32_t& bits, uint32_t& count, uint32_t& offset) {
  auto* f = static_cast<const Field*>(private_symbol(name));
  if (f) bits = f->bits, count = f->count, offset = f->offset;
  return f;
}

bool number(const char* name, uint32_t& value) {
  auto* p = static_cast<const uint32_t*>(private_symbol(name));
  if (p) value = *p;
  return p;
}

constexpr uint32_t kWordBits = 8 * sizeof(void*);
constexpr uint32_t kMaxElement = 256, kMaxLoader = 65536;  // far beyond what any libc has

bool fits(size_t offset, size_t bytes, size_t limit) {
  return bytes != 0 && offset % (bytes < sizeof(void*) ? bytes : sizeof(void*)) == 0 && offset + bytes <= limit;
}

bool two_words(size_t a, size_t b, size_t limit) {
  return a != b && limit % sizeof(void*) == 0 && fits(a, sizeof(void*), limit) && fits(b, sizeof(void*), limit);
}

const char* read_descriptors() {
  uint32_t size = 0;
  if (!number("_thread_db_sizeof_pthread", size) || size == 0 || size > kMaxPthread || size % kTcbAlign != 0)
    return "no size of struct pthread";
  L.sizeof_pthread = size;
  auto* info = reinterpret_cast<void (*)(size_t*, size_t*)>(private_symbol("_dl_get_tls_static_info"));
  dl_allocate_tls = reinterpret_cast<void* (*)(void*)>(private_symbol("_dl_allocate_tls"));
  dl_deallocate_tls = reinterpret_cast<void (*)(void*, bool)>(private_symbol("_dl_deallocate_tls"));
  call_tls_dtors = reinterpret_cast<void (*)()>(private_symbol("__call_tls_dtors"));
  ctype_init = reinterpret_cast<void (*)()>(private_symbol("__ctype_init"));
  L.rtld_global = static_cast<char*>(private_symbol("_rtld_global"));
  L.keys = static_cast<char*>(private_symbol("__pthread_keys"));
  if (!info || !dl_allocate_tls || !dl_deallocate_tls || !call_tls_dtors || !ctype_init || !L.rtld_global || !L.keys)
    return "libc lacks a loader entry";
  info(&L.tls_size, &L.tls_align);
  if (void* resp = private_symbol("__resp")) L.resp = static_cast<char*>(resp) - static_cast<char*>(thread_pointer());
  else return "no resolver state";

  uint32_t stack_user, slotinfo, table, unused, level2_size, slotinfo_bits, slotinfo_count;
  uint32_t level2_bits, key_bits, key_offset, dtv_bits, dtv_offset;
  auto* specific = static_cast<const Field*>(private_symbol("_thread_db_pthread_specific"));
  bool ok = specific && field("_thread_db_pthread_specific", specific->bits, L.specific) &&
            field("_thread_db_pthread_tid", 32, L.tid) && field("_thread_db_pthread_list", 2 * kWordBits, L.list) &&
            field("_thread_db_pthread_cancelhandling", 32, L.cancelhandling) &&
            field("_thread_db_pthread_dtvp", kWordBits, L.dtv) && field("_thread_db_list_t_next", kWordBits, L.list_next) &&
            field("_thread_db_list_t_prev", kWordBits, L.list_prev) &&
            array("_thread_db_pthread_key_data_level2_data", level2_bits, L.level2_count, L.level2_data) &&
            field("_thread_db_pthread_key_data_seq", kWordBits, L.key_data_seq) &&
            field("_thread_db_pthread_key_data_data", kWordBits, L.key_data_data) &&
            field("_thread_db_pthread_key_struct_seq", kWordBits, L.key_seq) &&
            field("_thread_db_pthread_key_struct_destr", kWordBits, L.key_destr) &&
            array("_thread_db___pthread_keys", key_bits, L.key_count, key_offset) &&
            array("_thread_db_dtv_dtv", dtv_bits, unused, dtv_offset) &&
            field("_thread_db_dtv_t_pointer_val", kWordBits, L.dtv_val) &&
            field("_thread_db_rtld_global__dl_stack_user", 2 * kWordBits, stack_user) &&
            field("_thread_db_rtld_global__dl_tls_dtv_slotinfo_list", kWordBits, slotinfo) &&
            field("_thread_db_dtv_slotinfo_list_len", kWordBits, L.slotinfo_len) &&
            field("_thread_db_dtv_slotinfo_list_next", kWordBits, L.slotinfo_next) &&
            array("_thread_db_dtv_slotinfo_list_slotinfo", slotinfo_bits, slotinfo_count, L.slotinfo_array) &&
            field("_thread_db_dtv_slotinfo_map", kWordBits, L.slotinfo_map) &&
            field("_thread_db_link_map_l_tls_offset", kWordBits, L.map_offset) &&
            field("_thread_db_link_map_l_tls_modid", kWordBits, L.map_modid) &&
            number("_thread_db_sizeof_dtv_slotinfo", L.sizeof_slotinfo) &&
            number("_thread_db_sizeof_pthread_key_data", L.sizeof_key_data) &&
            number("_thread_db_sizeof_pthread_key_data_level2", level2_size) &&
            number("_thread_db_sizeof_pthread_key_struct", L.sizeof_key_struct);
  if (!ok) return "libc lacks a debugger descriptor, or has it in another form";
  // Each is used only where it fits what it lies in. What is there is looked at later, on living threads.
  L.level1_count = specific->bits / kWordBits;  // the descriptor calls the array one element
  table = L.level1_count * sizeof(void*);
#if defined(__x86_64__)
  size_t dtv_limit = size;
#else
  size_t dtv_limit = size + 2 * sizeof(void*);  // beside the thread pointer, which is at the end
#endif
  if (!fits(L.tid, 4, size) || !fits(L.list, 2 * sizeof(void*), size) || !fits(L.cancelhandling, 4, size) ||
      !fits(L.specific, table, size) || !fits(L.dtv, sizeof(void*), dtv_limit))
    return "a field is outside of struct pthread";
  if (!two_words(L.list_next, L.list_prev, 2 * sizeof(void*))) return "the list's nodes have an unknown form";
  if (!two_words(L.key_data_seq, L.key_data_data, L.sizeof_key_data) || L.sizeof_key_data > kMaxElement || key_offset != 0 ||
      !two_words(L.key_seq, L.key_destr, L.sizeof_key_struct) || L.sizeof_key_struct > kMaxElement ||
      key_bits != 8 * L.sizeof_key_struct || level2_bits != 8 * L.sizeof_key_data || L.key_count != PTHREAD_KEYS_MAX ||
      L.level1_count == 0 || L.key_count % L.level1_count != 0 || L.level2_count != L.key_count / L.level1_count ||
      L.level2_data % sizeof(void*) != 0 || level2_size != L.level2_data + L.level2_count * L.sizeof_key_data)
    return "the tables of keys have an unknown form";
  L.dtv_entry = dtv_bits / 8;
  if (dtv_bits != 2 * kWordBits || dtv_offset != 0 || !fits(L.dtv_val, sizeof(void*), L.dtv_entry)) return "unknown form of the dtv";
  if (!two_words(L.slotinfo_len, L.slotinfo_next, L.slotinfo_array) || L.slotinfo_array % sizeof(void*) != 0 ||
      L.slotinfo_array > kMaxElement || slotinfo_bits != 8 * L.sizeof_slotinfo || L.sizeof_slotinfo > kMaxElement ||
      !fits(L.slotinfo_map, sizeof(void*), L.sizeof_slotinfo) || !two_words(L.map_offset, L.map_modid, kMaxLoader) ||
      !fits(stack_user, 2 * sizeof(void*), kMaxLoader) || !fits(slotinfo, sizeof(void*), kMaxLoader))
    return "the loader's tables have an unknown form";
  L.stack_user = L.rtld_global + stack_user;
  L.slotinfo_list = L.rtld_global + slotinfo;
  return nullptr;
}

char* place(char* top) {
#if defined(__x86_64__)
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top - L.sizeof_pthread) & ~(L.tls_align - 1));
#else
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top - L.tls_size) & ~(L.tls_align - 1)) - L.sizeof_pthread;
#endif
}

// libc's __rseq_offset and __rseq_size, which 2.34 lacks: a reference, even a weak one, would need the loader of 2.35.
const ptrdiff_t* rseq_offset;
const unsigned* rseq_size;
size_t rseq_bytes() { return *rseq_size > 32 ? *rseq_size : 32; }  // no libc has less room

// Where the kernel would note on which CPU a thread is; as it has it.
struct RseqArea {
  uint32_t cpu_id_start;
  int32_t cpu_id;  // negative: it is not registered
};

// ---- the experiment on the model thread ----

constexpr size_t kModelStack = 256 * 1024 + 0x5000;  // an odd size, so that its value is found nowhere by chance
constexpr size_t kResWords = 64;                     // bytes of the resolver state that begin as zeros
constexpr size_t kSearch = 512;                      // bytes around the list head that may hold its lock
constinit struct Experiment {
  void (*main)();
  char* stack;
  std::atomic<uint32_t> step{0};  // 1: model looked at; 2: go on as sysmon; 3: end
  const char* why = nullptr;
  struct kernel_sigaction* original;
  int during[kSearch / sizeof(int)];
  uint32_t cancel_during;
  std::atomic<bool> seen{false};
} experiment{};

struct kernel_sigaction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
#if defined(__x86_64__)
  void (*restorer)();
#endif
  uint64_t mask;
};

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

// Behind the table of keys' values, libc notes that one was set; without it, each end of a thread looks at them all.
void find_specific_used(char* pd) {
  pthread_key_t key;
  char* byte = pd + L.specific + L.level1_count * sizeof(char*);
  if (byte >= pd + L.sizeof_pthread || *byte != 0 || pthread_key_create(&key, nullptr) != 0) return;
  // A value of a key above the first ones would leave the model with a block of its own, which is copied for all.
  bool set = key < L.level2_count && pthread_setspecific(key, pd) == 0 && *byte == 1;
  *byte = 0;
  set = set && pthread_setspecific(key, nullptr) == 0 && *byte == 0;
  set = set && pthread_setspecific(key, pd) == 0 && *byte == 1;
  if (key < L.level2_count) pthread_setspecific(key, nullptr);
  pthread_key_delete(key);
  if (!set) return;
  *byte = 0;
  L.specific_used = static_cast<uint32_t>(byte - pd);
}

// Since 2.41 a thread that asks for random numbers gets a state for that, which nobody else may use: two would draw the same numbers.
// It is the one word that changes when the model asks. Others may change at any time: the kernel writes into the rseq area when the thread
// comes to another CPU, and a thread that another one makes or ends is linked into the list beside the model.
const char* find_random() {
  auto* get = reinterpret_cast<ssize_t (*)(void*, size_t, unsigned)>(dlvsym(RTLD_NEXT, "getrandom", "GLIBC_2.25"));
  char* pd = model_tcb;
  uintptr_t before[kMaxPthread / sizeof(uintptr_t)];
  char byte;
  memcpy(before, pd, L.sizeof_pthread);
  if (get) get(&byte, 1, 1 /* GRND_NONBLOCK */);
  char *rseq = nullptr, *rseq_end = nullptr;
  if (rseq_offset) {
    rseq = thread_pointer_of(pd) + *rseq_offset;
    rseq_end = rseq + rseq_bytes();
  }
  uint32_t found = 0;
  for (uint32_t o = 0; o < L.sizeof_pthread; o += sizeof(uintptr_t)) {
    if (at<uintptr_t>(pd, o) == before[o / sizeof(uintptr_t)]) continue;
    if ((pd + o >= rseq && pd + o < rseq_end) || (o >= L.list && o < L.list + 2 * sizeof(void*))) continue;
    if (found || before[o / sizeof(uintptr_t)]) return "random numbers change struct pthread in an unknown way";
    found = o;
  }
  L.random = found;
  return nullptr;
}

// A word of a structure that may not be where libc says.
template <class T>
bool read_word(const char* p, T& value) {
  static_assert(sizeof(T) == sizeof(void*));
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0 || !readable(p)) return false;
  memcpy(&value, p, sizeof value);
  return true;
}

// libc puts a new thread that has its stack from the program first in the list.
bool list_is_right(char* pd) {
  char* node = pd + L.list;
  auto leads = [](char* from, char* to) {
    char *next, *prev;
    return read_word(from + L.list_next, next) && next == to && read_word(to + L.list_prev, prev) && prev == from;
  };
  return leads(L.stack_user, node) && leads(node, at<char*>(node, L.list_next));
}

// Two new keys, so that the distance of their entries counts as well. libc's free keys come back in order: the program sees no difference.
bool keys_are_right(char* pd) {
  pthread_key_t keys[2];
  auto destructor = +[](void*) {};
  int made = 0;
  bool ok = true;
  for (; made < 2 && pthread_key_create(&keys[made], destructor) == 0; made++) {
    pthread_key_t key = keys[made];
    char* entry = L.keys + key * L.sizeof_key_struct;
    uintptr_t seq, set, data_seq;
    ok = ok && read_word(entry + L.key_destr, set) && set == reinterpret_cast<uintptr_t>(destructor);
    // A value of a key above the first ones would need memory of the model's own. Then those are the program's: one has it for a moment.
    if (key >= L.level2_count) key = made;
    void* old = pthread_getspecific(key);
    char* block = nullptr;
    ok = ok && pthread_setspecific(key, &keys[made]) == 0 && read_word(pd + L.specific, block) &&
         read_word(L.keys + key * L.sizeof_key_struct + L.key_seq, seq);
    char* data = block + L.level2_data + key * L.sizeof_key_data;
    ok = ok && read_word(data + L.key_data_data, set) && set == reinterpret_cast<uintptr_t>(&keys[made]) &&
         read_word(data + L.key_data_seq, data_seq) && data_seq == seq;
    pthread_setspecific(key, old);
  }
  while (made > 0) pthread_key_delete(keys[--made]);
  if (L.specific_used) at<uint8_t>(pd, L.specific_used) = 0;
  return ok;
}

const char* look_at_model() {
  char* pd = reinterpret_cast<char*>(pthread_self());
  if (thread_pointer_of(pd) != thread_pointer()) return "thread pointer is elsewhere";
  model_tcb = pd;
  char* low = experiment.stack;
  char* high = low + kModelStack;
  if (pd < low || pd + L.sizeof_pthread > high) return "TCB is not on the given stack";
#if defined(__x86_64__)
  if (pd != place(high)) return "struct pthread has another size";  // elsewhere the thread pointer has told it
#endif
  if (rseq_offset) {
    auto area = reinterpret_cast<uintptr_t>(thread_pointer_of(pd)) + static_cast<uintptr_t>(*rseq_offset);
    auto bottom = reinterpret_cast<uintptr_t>(low), top = reinterpret_cast<uintptr_t>(high);
    if (area < bottom || area > top || rseq_bytes() > top - area) return "the rseq area is elsewhere";
  }

  // cleanup_jmp_buf and cleanup: let libc itself put an address that we know there.
  __pthread_unwind_buf_t buf;
  __pthread_register_cancel(&buf);
  int jmp = find_word(pd, L.sizeof_pthread, [&](uintptr_t v) { return v == reinterpret_cast<uintptr_t>(&buf); });
  __pthread_unregister_cancel(&buf);
  auto* push = reinterpret_cast<void (*)(_pthread_cleanup_buffer*, void (*)(void*), void*)>(
      dlsym(RTLD_NEXT, "_pthread_cleanup_push"));
  auto* pop = reinterpret_cast<void (*)(_pthread_cleanup_buffer*, int)>(dlsym(RTLD_NEXT, "_pthread_cleanup_pop"));
  int cleanup = -1;
  if (push && pop) {
    _pthread_cleanup_buffer b;
    push(&b, +[](void*) {}, nullptr);
    cleanup = find_word(pd, L.sizeof_pthread, [&](uintptr_t v) { return v == reinterpret_cast<uintptr_t>(&b); });
    pop(&b, 0);
  }
  int block = find_word(pd, L.sizeof_pthread, [&](uintptr_t v) { return v == reinterpret_cast<uintptr_t>(low); });
  int size = find_word(pd, L.sizeof_pthread, [&](uintptr_t v) { return v == kModelStack; });
  if (jmp < 0 || block < 0 || size < 0) return "struct pthread has an unknown form";
  L.cleanup_jmp_buf = jmp;
  L.cleanup = cleanup >= 0 ? cleanup : 0;
  L.stackblock = block;
  L.stackblock_size = size;
  void* head = nullptr;
  size_t head_size = 0;
  if (raw_syscall(SYS_get_robust_list, 0, arg(&head), arg(&head_size)) == 0 && head >= pd && head < pd + L.sizeof_pthread)
    L.robust_head = static_cast<char*>(head) - pd;
  char* res;
  if (!read_word(static_cast<char*>(thread_pointer()) + L.resp, res) || res != static_cast<char*>(__res_state()) || res < pd ||
      res + kResWords > pd + L.sizeof_pthread)
    return "resolver state is elsewhere";
  L.res = res - pd;
  if (at<uint32_t>(pd, L.tid) != static_cast<uint32_t>(raw_syscall(SYS_gettid))) return "tid is elsewhere";
  if (!list_is_right(pd)) return "the list of threads is elsewhere";

  find_specific_used(pd);
  if (!keys_are_right(pd)) return "the values of keys are elsewhere";
  if (const char* why = find_random()) return why;
  memcpy(template_image, pd, L.sizeof_pthread);
  if (L.random) at<void*>(template_image, L.random) = nullptr;
  self_pointer_count = 0;
  for (size_t o = 0; o + 8 <= L.sizeof_pthread; o += 8) {
    auto& v = *reinterpret_cast<uintptr_t*>(template_image + o);
    char* p = reinterpret_cast<char*>(v);
    if (p >= pd && p <= pd + L.sizeof_pthread) {
      if (self_pointer_count == 64) return "too many pointers in struct pthread";
      v -= reinterpret_cast<uintptr_t>(pd);
      self_pointers[self_pointer_count++] = static_cast<uint16_t>(o);
    } else if (p >= low && p < high && o != L.stackblock) {
      v = 0;  // into the model's stack: its unwind buffer
    }
  }
  // What the model has under keys is its own: where pthread_create is a sanitizer's, that is the thread's whole state to it.
  for (uint32_t i = 0; i < L.level1_count; i++) {
    auto& block = at<char*>(template_image, L.specific + i * sizeof(char*));
    auto offset = reinterpret_cast<uintptr_t>(block);  // of the first block, by now
    if (i > 0 || offset == 0 || offset >= L.sizeof_pthread) block = nullptr;
    else memset(template_image + offset + L.level2_data, 0, L.level2_count * L.sizeof_key_data);
  }
  // The resolver state starts empty, like that of a new thread.
  return nullptr;
}

void setxid_wrapper(int sig, siginfo_t* info, void* context) {
  if (reinterpret_cast<char*>(pthread_self()) == model_tcb) {
    memcpy(experiment.during, L.stack_user, kSearch);
    experiment.cancel_during = at<uint32_t>(model_tcb, L.cancelhandling);
    experiment.seen.store(true, std::memory_order_release);
  }
  OwnCalls calls;
  experiment.original->handler(sig, info, context);
}

// libc holds the lock of its stack lists while it signals the other threads to change ids. Changing none, we look which
// word is 1 only meanwhile. In each thread's cancelhandling it has set one bit then.
const char* find_list_lock() {
  kernel_sigaction old, wrapped;
  constexpr int kSetxid = 33;  // libc's SIGSETXID
  if (raw_syscall(SYS_rt_sigaction, kSetxid, 0, arg(&old), 8) != 0 || reinterpret_cast<uintptr_t>(old.handler) <= 1)
    return "no set*id handler";
  experiment.original = &old;
  wrapped = old;
  wrapped.handler = setxid_wrapper;
  int before[kSearch / sizeof(int)], after[kSearch / sizeof(int)];
  auto* real = reinterpret_cast<int (*)(uid_t, uid_t, uid_t)>(dlsym(RTLD_NEXT, "setresuid"));
  if (!real) return "no setresuid";
  raw_syscall(SYS_rt_sigaction, kSetxid, arg(&wrapped), 0, 8);
  memcpy(before, L.stack_user, kSearch);
  uint32_t cancel = at<uint32_t>(model_tcb, L.cancelhandling);
  real(-1, -1, -1);
  memcpy(after, L.stack_user, kSearch);
  raw_syscall(SYS_rt_sigaction, kSetxid, arg(&old), 0, 8);
  if (!experiment.seen.load(std::memory_order_acquire)) return "set*id did not signal";
  uint32_t bit = experiment.cancel_during & ~cancel;
  if (experiment.cancel_during != cancel + bit || __builtin_popcount(bit) != 1 || at<uint32_t>(model_tcb, L.cancelhandling) != cancel)
    return "cancelhandling is elsewhere";
  int found = -1;
  for (size_t i = 0; i < kSearch / sizeof(int); i++) {
    if (before[i] != 0 || experiment.during[i] != 1 || after[i] != 0) continue;
    if (found >= 0) return "the stack list's lock is not unique";
    found = static_cast<int>(i);
  }
  if (found < 0) return "the stack list's lock was not found";
  L.list_lock = reinterpret_cast<std::atomic<int>*>(L.stack_user + found * sizeof(int));
  return nullptr;
}

void* model_thread(void*) {
  tls_busy = 1;
  experiment.why = look_at_model();
  experiment.step.store(1, std::memory_order_release);
  futex_wake(&experiment.step, 1);
  uint32_t s;
  while ((s = experiment.step.load(std::memory_order_acquire)) == 1) futex_wait(&experiment.step, 1);
  if (s == 2) experiment.main();
  return nullptr;
}

// ---- libc's low-level lock: 0 free, 1 taken, 2 taken with waiters ----

void list_lock() {
  int zero = 0;
  if (L.list_lock->compare_exchange_strong(zero, 1, std::memory_order_acquire)) return;
  while (L.list_lock->exchange(2, std::memory_order_acquire) != 0) futex_wait(L.list_lock, 2);
}

void list_unlock() {
  if (L.list_lock->exchange(0, std::memory_order_release) == 2) futex_wake(L.list_lock, 1);
}

void fill(char* pd) {
  memcpy(pd, template_image, L.sizeof_pthread);
  for (unsigned i = 0; i < self_pointer_count; i++)
    at<uintptr_t>(pd, self_pointers[i]) += reinterpret_cast<uintptr_t>(pd);
  memset(pd + L.res, 0, kResWords);
  at<char*>(pd, L.list + L.list_next) = at<char*>(pd, L.list + L.list_prev) = pd + L.list;
  at<void*>(pd, L.dtv) = nullptr;
  at<uint32_t>(pd, L.cancelhandling) = 0;
}

RseqArea* rseq_area(char* tp) { return rseq_offset && *rseq_offset ? &at<RseqArea>(tp, *rseq_offset) : nullptr; }

// Says that the kernel writes nothing there. As libc does, also where no thread of the process has its area registered: to threads
// that libc makes from here a 0 would mean that it is.
void rseq_is_not_registered(char* tp) {
  RseqArea* area = rseq_area(tp);
  if (!area) return;
  memset(area, 0, rseq_bytes());
  area->cpu_id = -2;
}

void fill_tls(char* pd) {
  char* tp = thread_pointer_of(pd);
  at<char*>(tp, L.resp) = pd + L.res;
  rseq_is_not_registered(tp);
}

void link(char* pd) {
  char* node = pd + L.list;
  list_lock();
  char* first = at<char*>(L.stack_user, L.list_next);
  at<char*>(node, L.list_next) = first;
  at<char*>(node, L.list_prev) = L.stack_user;
  at<char*>(first, L.list_prev) = node;
  std::atomic_thread_fence(std::memory_order_release);  // libc walks the list forward without the lock in dlopen
  at<char*>(L.stack_user, L.list_next) = node;
  list_unlock();
}

void unlink(char* pd) {
  char* node = pd + L.list;
  list_lock();
  char* next = at<char*>(node, L.list_next);
  char* prev = at<char*>(node, L.list_prev);
  at<char*>(next, L.list_prev) = prev;
  at<char*>(prev, L.list_next) = next;
  list_unlock();
}

char* make(char* top) {
  char* pd = place(top);
  fill(pd);
  if (!dl_allocate_tls(thread_pointer_of(pd))) return nullptr;
  fill_tls(pd);
  return pd;
}

template <class T>
T& tls_of(void* tcb, T& mine) {
  return at<T>(thread_pointer_of(tcb), reinterpret_cast<char*>(&mine) - static_cast<char*>(thread_pointer()));
}

// ---- modules ----

// Where module `modid` has its static TLS, by the loader's own table. `check`: it is not yet known that the table is where libc says.
bool static_offset(size_t modid, ptrdiff_t& offset, bool check = false) {
  auto read = [check](char* p, auto& value) {
    if (check) return read_word(p, value);
    memcpy(&value, p, sizeof value);
    return true;
  };
  size_t first = 0, len, id;
  char *list, *map;
  for (bool ok = read(L.slotinfo_list, list); ok && list; ok = read(list + L.slotinfo_next, list)) {
    if (!read(list + L.slotinfo_len, len) || len == 0) return false;
    if (modid - first >= len) {
      first += len;
      continue;
    }
    ptrdiff_t o;
    if (!read(list + L.slotinfo_array + (modid - first) * L.sizeof_slotinfo + L.slotinfo_map, map) || !map ||
        !read(map + L.map_modid, id) || id != modid || !read(map + L.map_offset, o))
      return false;
#if defined(__x86_64__)
    if (o <= 0) return false;  // none, or forced to be dynamic
    offset = -o;
#else
    if (o <= 0) return false;  // none so far, or forced to be dynamic
    offset = o;
#endif
    return true;
  }
  return false;
}

// Calls visit(header, offset, info) for each module with static TLS that fibers must have set back.
template <class Visit>
void each_module(Visit visit) {
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto& v = *static_cast<Visit*>(data);
    v.generation(info->dlpi_adds + info->dlpi_subs);
    if (!info->dlpi_tls_modid) return 0;
    auto contains = [&](const void* p) {
      for (int i = 0; i < info->dlpi_phnum; i++) {
        auto& ph = info->dlpi_phdr[i];
        auto start = info->dlpi_addr + ph.p_vaddr;
        if (ph.p_type == PT_LOAD && reinterpret_cast<uintptr_t>(p) - start < ph.p_memsz) return true;
      }
      return false;
    };
    bool ours = contains(&L), libc = contains(L.keys);
    for (int i = 0; i < info->dlpi_phnum; i++) {
      auto& ph = info->dlpi_phdr[i];
      ptrdiff_t offset;
      if (ph.p_type != PT_TLS || !static_offset(info->dlpi_tls_modid, offset)) continue;
      Module m{offset, reinterpret_cast<void*>(info->dlpi_addr + ph.p_vaddr), ph.p_filesz, ph.p_memsz};
      if (libc) libc_tls = m;
      else if (!ours) v.module(m);
    }
    return 0;
  };
  dl_iterate_phdr(look, &visit);
}

// What the loader says of the calling thread's TLS is where its tables and the thread's dtv have it, by our descriptors.
const char* check_tls() {
  struct Check {
    char *tp, *dtv;
    size_t entries;
    bool ours = false, libc = false;
    const char* why = nullptr;
  } check{};
  check.tp = static_cast<char*>(thread_pointer());
  if (!read_word(reinterpret_cast<char*>(pthread_self()) + L.dtv, check.dtv) || !read_word(check.dtv - L.dtv_entry, check.entries))
    return "the dtv is elsewhere";
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto& c = *static_cast<Check*>(data);
    size_t id = info->dlpi_tls_modid;
    auto* tls = static_cast<char*>(info->dlpi_tls_data);
    if (!id || !tls) return 0;
    char *block, *to_free;
    char* entry = c.dtv + id * L.dtv_entry;
    ptrdiff_t offset;
    if (id > c.entries || !read_word(entry + L.dtv_val, block) || block != tls ||
        !read_word(entry + sizeof(void*) - L.dtv_val, to_free)) {
      c.why = "the dtv is elsewhere";
      return 1;
    }
    if (!static_offset(id, offset, true)) return 0;
    if (c.tp + offset != tls || to_free) {
      c.why = "static TLS is elsewhere";
      return 1;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
      auto& ph = info->dlpi_phdr[i];
      auto in = [&](const void* p) {
        return ph.p_type == PT_TLS && reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(tls) < ph.p_memsz;
      };
      c.ours |= in(&tls_current);
      c.libc |= in(c.tp + L.resp);
    }
    return 0;
  };
  dl_iterate_phdr(look, &check);
  return check.why ? check.why : check.ours && check.libc ? nullptr : "the loader's table of TLS is elsewhere";
}

}  // namespace

void tcb_look_at_modules() {
  if (modules_seen.load(std::memory_order_acquire) == modules_changes.load(std::memory_order_acquire) &&
      !loading.load(std::memory_order_relaxed))
    return;
  uint64_t changes = modules_changes.load(std::memory_order_acquire);
  bool whole = true;
  struct Measure {
    unsigned* out_count;
    size_t* out_bytes;
    void generation(unsigned long long) {}
    void module(const Module& m) {
      *out_count += 1;
      *out_bytes += m.file_size;
    }
  };
  unsigned count = 4;  // more may be loaded before the second look
  size_t bytes = 4096;
  each_module(Measure{&count, &bytes});
  size_t size = sizeof(Modules) + count * sizeof(Module) + bytes;
  long mem = raw_syscall(SYS_mmap, 0, static_cast<long>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mem < 0 && mem > -4096) return;
  auto* fresh = reinterpret_cast<Modules*>(mem);
  fresh->size = size;
  fresh->room = count;
  fresh->bytes = bytes;
  struct Copy {
    Modules* to;
    char* image;
    char* end;
    bool* whole;
    void generation(unsigned long long g) { to->generation = g; }
    void module(const Module& m) {
      if (to->count == to->room || static_cast<size_t>(end - image) < m.file_size) {
        *whole = false;  // more were loaded meanwhile
        return;
      }
      memcpy(image, m.image, m.file_size);
      to->module[to->count++] = {m.offset, image, m.file_size, m.mem_size};
      image += m.file_size;
    }
  };
  char* images = reinterpret_cast<char*>(&fresh->module[count]);
  each_module(Copy{fresh, images, images + bytes, &whole});
  Modules* old = fresh;
  {
    Busy busy;
    SpinGuard guard(modules_lock);
    if (!modules || fresh->generation >= modules->generation) {
      old = modules;
      modules = fresh;
    }
    if (whole && modules_seen.load(std::memory_order_relaxed) < changes) modules_seen.store(changes, std::memory_order_release);
  }
  if (old) raw_syscall(SYS_munmap, arg(old), static_cast<long>(old->size));
}

namespace {

// Not inlined: no address derived from another thread pointer may be known here.
__attribute__((noinline)) bool works_on(char* pd, char* room, size_t size) {
  ctype_init();
  errno = 77;
  char* e = reinterpret_cast<char*>(&errno);
  bool ok = e >= room && e < room + size && reinterpret_cast<char*>(pthread_self()) == pd && tls_current == nullptr;
  return ok && (*__ctype_b_loc())[int{'a'}] == (*__ctype_b_loc())[int{'b'}];
}

bool proven = false;

bool prove() {
  // A TCB like any fiber's, on which libc must work. Signals are blocked by the caller.
  alignas(64) static char room[65536];
  if (proven) return true;
  if (tcb_reserve() > sizeof room) return proven = true;  // large TLS; the layout itself was checked already
  char* pd = make(room + sizeof room);
  if (!pd) return false;
  void* mine = thread_pointer();
  set_thread_pointer(thread_pointer_of(pd));
  bool ok = works_on(pd, room, sizeof room);
  set_thread_pointer(mine);
  dl_deallocate_tls(thread_pointer_of(pd), false);
  proven = ok;
  return ok;
}

}  // namespace

namespace {
bool learn(void (*model_main)(), const char** why) {
  if ((*why = read_descriptors())) return false;
  rseq_size = static_cast<const unsigned*>(dlvsym(RTLD_DEFAULT, "__rseq_size", "GLIBC_2.35"));
  if (rseq_size) rseq_offset = static_cast<const ptrdiff_t*>(dlvsym(RTLD_DEFAULT, "__rseq_offset", "GLIBC_2.35"));
  experiment.main = model_main;
  experiment.step.store(0);
  experiment.seen.store(false);
  experiment.stack = static_cast<char*>(
      mmap(nullptr, kModelStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0));
  if (experiment.stack == MAP_FAILED) {
    *why = "no memory";
    return false;
  }
  auto* create = reinterpret_cast<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>(
      dlsym(RTLD_NEXT, "pthread_create"));
  auto* join = reinterpret_cast<int (*)(pthread_t, void**)>(dlsym(RTLD_NEXT, "pthread_join"));
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_t thread;
  if (!create || !join || pthread_attr_setstack(&attr, experiment.stack, kModelStack) != 0 ||
      create(&thread, &attr, model_thread, nullptr) != 0) {
    pthread_attr_destroy(&attr);
    munmap(experiment.stack, kModelStack);
    *why = "no kernel thread to be had";
    return false;
  }
  pthread_attr_destroy(&attr);
  while (experiment.step.load(std::memory_order_acquire) == 0) futex_wait(&experiment.step, 0);
  *why = experiment.why;
  if (!*why) *why = check_tls();
  if (!*why) *why = find_list_lock();
  if (!*why && !prove()) *why = "the self-check failed";
  // Last, as nothing has been changed so far. Should the initial thread get here later, it is asked then.
  if (!*why && tls_current->is_main && !tcb_adopt_main()) *why = "the kernel does not let go of the initial thread's rseq area";
  experiment.step.store(*why ? 3 : 2, std::memory_order_release);
  futex_wake(&experiment.step, 1);
  if (!*why) return true;
  join(thread, nullptr);
  munmap(experiment.stack, kModelStack);
  return false;
}
}  // namespace

bool tcb_init(void (*model_main)(), const char** why) {
  if (learn(model_main, why)) return true;
  if (!proven) L = {};  // native threads are asked for their words of cancellation all the same: nothing wrong may be used
  return false;
}

size_t tcb_size() { return L.sizeof_pthread; }
size_t tcb_reserve() {
#if defined(__x86_64__)
  return (L.tls_size + 2 * L.tls_align + 63) & ~size_t{63};
#else
  return (L.tls_size + L.sizeof_pthread + 2 * L.tls_align + 63) & ~size_t{63};
#endif
}

char* tcb_low(char* top) { return top - tcb_reserve(); }

bool tcb_make(FiberRecord& f, char* top) {
  char* pd = make(top);
  if (!pd) return false;
  f.tcb = pd;
  f.context.tp = thread_pointer_of(pd);
  tls_of(pd, tls_current) = &f;
  link(pd);
  return true;
}

void* tcb_make_worker(char* top, char* stack_low, char* stack_high, Worker* w) {
  // No libc lock may be taken here, and no code that needs the program's TLS runs in worker context: TCB, libc's variables and this
  // library's are enough.
  char* pd = place(top);
  fill(pd);
  // libc's own as well, should a function of its be called here all the same: zeros are no thread's state (2.43: malloc's cache).
  memcpy(thread_pointer_of(pd) + libc_tls.offset, libc_tls.image, libc_tls.file_size);
  fill_tls(pd);
  at<char*>(pd, L.stackblock) = stack_low;
  at<size_t>(pd, L.stackblock_size) = stack_high - stack_low;
  tls_of(pd, tls_worker) = w;
  tls_of(pd, tls_busy) = 1;
  return thread_pointer_of(pd);
}

void tcb_begin(FiberRecord& f) {
  tls_of(f.tcb, tls_busy) = 1;
  at<uint32_t>(f.tcb, L.tid) = f.id;
  at<char*>(f.tcb, L.stackblock) = f.stack_low;
  at<size_t>(f.tcb, L.stackblock_size) = f.stack_high - f.stack_low;
}

namespace {
constexpr uint32_t kMostLearned = 16;
uint32_t learned[kMostLearned];
std::atomic<uint32_t> learned_count{0};
SpinLock learn_lock;
}  // namespace

void tcb_learn(void (*use)()) {
  // 4 bytes each: the fields are libc's own small ones, and a pointer.
  char* pd = static_cast<char*>(self()->tcb);
  constexpr size_t kMostWords = 1024;
  uint32_t before[kMostWords];
  size_t words = L.sizeof_pthread / 4;
  if (words > kMostWords) return;
  memcpy(before, pd, words * 4);
  use();
  SpinGuard guard(learn_lock);
  if (learned_count.load(std::memory_order_relaxed)) return;
  uint32_t n = 0;
  for (uint32_t i = 0; i < words && n < kMostLearned; i++) {
    if (at<uint32_t>(pd, i * 4) == before[i]) continue;
    at<uint32_t>(pd, i * 4) = before[i];
    learned[n++] = i * 4;
  }
  learned_count.store(n, std::memory_order_release);
}

void tcb_end(FiberRecord& f) {
  char* tp = thread_pointer_of(f.tcb);
  char* dtv = at<char*>(f.tcb, L.dtv);
  size_t entries = *reinterpret_cast<size_t*>(dtv - L.dtv_entry);
  for (size_t i = 1; i <= entries; i++) {
    char* entry = dtv + i * L.dtv_entry;
    void*& to_free = *reinterpret_cast<void**>(entry + sizeof(void*) - L.dtv_val);
    if (!to_free) continue;
    void* p = to_free;
    to_free = nullptr;
    *reinterpret_cast<void**>(entry + L.dtv_val) = reinterpret_cast<void*>(-1);  // not allocated: made anew on use
    free(p);
  }
  uselocale(LC_GLOBAL_LOCALE);
  tcb_look_at_modules();  // a dlopen that is under way may have loaded some
  {
    SpinGuard guard(modules_lock);
    for (unsigned i = 0; modules && i < modules->count; i++) {
      auto& m = modules->module[i];
      memcpy(tp + m.offset, m.image, m.file_size);
      memset(tp + m.offset + m.file_size, 0, m.mem_size - m.file_size);
    }
  }
  for (uint32_t i = 0, n = learned_count.load(std::memory_order_acquire); i < n; i++)
    at<uint32_t>(f.tcb, learned[i]) = at<uint32_t>(template_image, learned[i]);
  at<uint32_t>(f.tcb, L.cancelhandling) = 0;
  at<void*>(f.tcb, L.cleanup_jmp_buf) = nullptr;
  if (L.cleanup) at<void*>(f.tcb, L.cleanup) = nullptr;
  // The state for random numbers stays with the block. libc marks it as in use by the lowest bit; should the thread have ended in a
  // signal handler meanwhile, nobody uses it any more.
  if (L.random) at<uintptr_t>(f.tcb, L.random) &= ~uintptr_t{1};
  dlerror();  // what the thread did not ask for is not for the next one
  h_errno = 0;
  errno = 0;
}

bool tcb_is_pristine(const FiberRecord& f) {
  if (!pristine_known.load(std::memory_order_acquire)) return false;
  char* tls = thread_pointer_of(f.tcb) + libc_tls.offset;
  char* resp = thread_pointer_of(f.tcb) + L.resp;
  for (size_t o = 0; o < libc_tls.mem_size; o += sizeof(long)) {
    if (tls + o == resp) continue;  // differs by where the block is
    if (memcmp(tls + o, pristine + o, sizeof(long)) != 0) return false;
  }
  if (L.random && at<void*>(f.tcb, L.random)) return false;
  for (uint32_t i = 1; i < L.level1_count; i++)
    if (at<char*>(f.tcb, L.specific + i * sizeof(char*))) return false;
  // The resolver state begins with zeros as long as it is not used.
  for (size_t o = 0; o < kResWords; o += sizeof(long))
    if (at<long>(f.tcb, L.res + o)) return false;
  return true;
}

void tcb_prepare_adoption(FiberRecord& f) {
  at<uint32_t>(f.tcb, L.cancelhandling) = 0;
  if (L.specific_used) at<uint8_t>(f.tcb, L.specific_used) = 1;  // or libc leaves blocks of keys' values where they are
}

void tcb_adopt(FiberRecord& f) {
  void* own = reinterpret_cast<void*>(pthread_self());
  // The end of a thread takes most from where the thread pointer points, and this from the TCB that the thread was made with.
  if (L.random && !at<void*>(own, L.random)) {
    at<void*>(own, L.random) = at<void*>(f.tcb, L.random);
    at<void*>(f.tcb, L.random) = nullptr;
  }
  set_thread_pointer(f.context.tp);
}

void tcb_release(FiberRecord& f) {
  char* pd = static_cast<char*>(f.tcb);
  unlink(pd);
  dl_deallocate_tls(thread_pointer_of(pd), false);
  f.tcb = nullptr;
}

void** tcb_cleanup_jmp_buf(void* tcb) { return &at<void*>(tcb, L.cleanup_jmp_buf); }
uint32_t* tcb_cancelhandling(void* tcb) {
  static uint32_t nobodys;  // where nothing is known of this libc, and threads are its own
  return L.sizeof_pthread ? &at<uint32_t>(tcb, L.cancelhandling) : &nobodys;
}
uint32_t* tcb_tid(void* tcb) { return &at<uint32_t>(tcb, L.tid); }
FiberRecord* tcb_fiber(void* tcb) { return tls_of(tcb, tls_current); }
void* tcb_robust_list(void* tcb) { return L.robust_head ? static_cast<char*>(tcb) + L.robust_head : nullptr; }
void* tcb_thread_pointer(void* tcb) { return thread_pointer_of(tcb); }

void tcb_run_key_destructors() {
  char* pd = reinterpret_cast<char*>(pthread_self());
  for (int round = 0; round < PTHREAD_DESTRUCTOR_ITERATIONS; round++) {
    if (L.specific_used) {
      auto& used = at<uint8_t>(pd, L.specific_used);
      if (!used) return;
      used = 0;
    }
    bool called = false;
    for (uint32_t i = 0; i < L.level1_count; i++) {
      char* block = at<char*>(pd, L.specific + i * sizeof(char*));
      if (!block) continue;
      for (size_t j = 0; j < L.level2_count; j++) {
        char* data = block + L.level2_data + j * L.sizeof_key_data;
        void*& value = at<void*>(data, L.key_data_data);
        if (!value) continue;
        void* v = value;
        value = nullptr;
        char* key = L.keys + (i * L.level2_count + j) * L.sizeof_key_struct;
        // A value set under a former use of the key number is not this key's.
        if (at<uintptr_t>(key, L.key_seq) != at<uintptr_t>(data, L.key_data_seq)) continue;
        if (auto* destructor = at<void (*)(void*)>(key, L.key_destr)) {
          destructor(v);
          called = true;
        }
      }
    }
    if (!called) return;
  }
  for (uint32_t i = 0; i < L.level1_count; i++)
    if (char* block = at<char*>(pd, L.specific + i * sizeof(char*)))
      for (size_t j = 0; j < L.level2_count; j++)
        at<void*>(block + L.level2_data + j * L.sizeof_key_data, L.key_data_data) = nullptr;
}

void tcb_first_steps() {
  ctype_init();
  if (__builtin_expect(pristine_known.load(std::memory_order_relaxed), 1)) return;
  static std::atomic<bool> taken{false};
  // The first fiber of all is the model, before it ran any code of the program.
  if (taken.exchange(true, std::memory_order_relaxed)) return;
  if (libc_tls.mem_size == 0 || libc_tls.mem_size > sizeof pristine) return;
  memcpy(pristine, static_cast<char*>(thread_pointer()) + libc_tls.offset, libc_tls.mem_size);
  pristine_known.store(true, std::memory_order_release);
}
void tcb_call_tls_destructors() { call_tls_dtors(); }

std::atomic<bool> tcb_go_found{false};

namespace {
std::atomic<uint64_t> go_looked_at{0};  // the value of modules_changes that was looked at last, plus one

// The note of Go's linker, of type 4 and name "Go".
int has_go(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& h = info->dlpi_phdr[i];
    if (h.p_type != PT_NOTE) continue;
    auto* p = reinterpret_cast<const char*>(info->dlpi_addr + h.p_vaddr);
    for (const char* end = p + h.p_memsz; p + sizeof(ElfW(Nhdr)) <= end;) {
      auto* note = reinterpret_cast<const ElfW(Nhdr)*>(p);
      if (note->n_type == 4 && note->n_namesz == 4 && memcmp(note + 1, "Go\0", 4) == 0) return 1;
      auto round = [](size_t n) { return (n + 3) & ~size_t{3}; };
      p += sizeof *note + round(note->n_namesz) + round(note->n_descsz);
    }
  }
  return 0;
}
}  // namespace

bool tcb_go_is_loaded() {
  if (tcb_go_found.load(std::memory_order_relaxed)) return true;
  uint64_t now = modules_changes.load(std::memory_order_acquire) + 1;
  if (__builtin_expect(!loading.load(std::memory_order_relaxed) && go_looked_at.load(std::memory_order_relaxed) == now, 1)) return false;
  if (dl_iterate_phdr(has_go, nullptr)) tcb_go_found.store(true, std::memory_order_relaxed);
  go_looked_at.store(now, std::memory_order_relaxed);
  return tcb_go_found.load(std::memory_order_relaxed);
}

void tcb_modules_change() { loading.fetch_add(1, std::memory_order_relaxed); }
void tcb_modules_changed() {
  // In this order: one of the two is seen.
  modules_changes.fetch_add(1, std::memory_order_release);
  loading.fetch_sub(1, std::memory_order_release);
}

bool tcb_adopt_main() {
  char* tp = static_cast<char*>(thread_pointer());
  RseqArea* area = rseq_area(tp);
  if (!area || __atomic_load_n(&area->cpu_id, __ATOMIC_RELAXED) < 0) return true;
#if defined(__x86_64__)
  constexpr long kSignature = 0x53053053;
#else
  constexpr long kSignature = 0xd428bc00;
#endif
  constexpr long kUnregister = 1, kMost = 1024;
  // The kernel wants the length that was registered, and nothing tells it: 32, or more where libc (2.41) goes by what the kernel has to
  // tell. So all are tried.
  long r = -EINVAL;
  for (long length = 32; r == -EINVAL && length <= kMost; length++) r = raw_syscall(SYS_rseq, arg(area), length, kUnregister, kSignature);
  if (r != 0) return false;
  rseq_is_not_registered(tp);
  return true;
}

void tcb_lock_for_fork() {
  if (L.list_lock) list_lock();
}
void tcb_unlock_after_fork() {
  if (L.list_lock) list_unlock();
}

void tcb_reset_after_fork() {
  modules_changes.fetch_add(1);
  modules_lock.reset();
  learn_lock.reset();
  // `loading` stays: a fork inside a constructor comes to its end in the child too. Those of other threads never do, which
  // costs the child time, not more.
}

}  // namespace fiberthread
