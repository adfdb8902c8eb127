// SPDX-License-Identifier: MIT
// A program is a list of operations. Each operation names the threads that take part in it, and every thread runs its operations in the
// order of the list. So operations that join several threads cannot deadlock, and a list without some of its operations is a program, too.
// An operation looks at the state that its own threads have left behind and leaves out what POSIX does not define in that state.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 8, kArguments = 4, kMostOperations = 400, kText = 1 << 16 };

// What a thread has printed. It lies in memory that is shared with children and with the process that shows it.
struct text {
  atomic_uint length;
  atomic_uint operation;  // the one that it is in, counted from 1; for reports of hangs
  char text[kText];
};

struct operation;
struct kind {
  const char* name;
  void (*run)(struct operation*);
  int weight;             // how often the generator chooses it
  int threads;            // how many take part at least; 1: exactly one
  int below[kArguments];  // the generator's arguments are less than these
  void (*prepare)(struct operation*);
};
struct operation {
  const struct kind* kind;
  unsigned threads;  // a bit for each
  int a[kArguments];
  void* shared;  // what its threads share, zero at first; in memory that a child shares, too
};
extern const struct kind object_kinds[], lock_kinds[], thread_kinds[], wait_kinds[], signal_kinds[], descriptor_kinds[], process_kinds[],
    together_kinds[], exchange_kinds[];

// A thread of the program. Helpers that it makes have the same, and print only while it waits for their end.
struct thread {
  int number;
  pthread_t handle;
  struct text* out;
  struct objects* objects;
  struct locks* locks;
  sigset_t own_signal;
  unsigned random;
};
extern _Thread_local struct thread* me;

// Appends to the caller's text.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The name of an error number. fails() takes the result of a call that sets errno.
const char* error_name(int e);
#define SAY_ERROR(what, e) say(" %s=%s", what, error_name(e))
#define SAY_ERRNO(what, r) say(" %s=%s", what, (r) == -1 ? error_name(errno) : "0")

// The part of this thread in the operation, and how many there are.
int rank_in(const struct operation* o);
int members(const struct operation* o);
// Waits for all threads of the operation.
void meet(struct operation* o);
// The operation's memory behind what meet() needs.
void* shared_of(const struct operation* o);
enum { kShared = 8192 };

// Runs f(p) on a thread of its own and waits for its end. start_helper() returns at once.
void elsewhere(void* (*f)(void*), void* p);
pthread_t start_helper(void* (*f)(void*), void* p, const pthread_attr_t* attr);
void* join(pthread_t t);
// Runs f(p) in a child. Returns its wait status.
int in_child(void (*f)(void*), void* p);
// A child keeps descriptors open that its parent closes at the same time. So each phase has either children, or operations that notice
// the last close.
extern bool has_children;
// NPTL has a thread for timers from the first SIGEV_THREAD on. It never ends, and so no thread of the program is the last one.
extern bool has_timer_thread;

// Moments: 0 has passed, 1 is before 1970, 2 and 3 have a wrong tv_nsec, 4 is about a millisecond away.
enum { kMoments = 5, kSoon = 4 };
struct timespec moment(int which, clockid_t clock);
extern const char* const moment_names[];
extern const struct timespec far_away;  // by all clocks
clockid_t clock_of(int i);
void nap(long microseconds);

// Signals. Every thread blocks the signals of kOwn, and one of them is its own.
enum { kInterrupts = 0, kRestarts = 1 };
#define PLAIN_SIGNAL(i) ((i) ? SIGUSR2 : SIGUSR1)  // interrupts a call, or lets it go on
#define OWN_SIGNAL(thread) (SIGRTMIN + 3 + (thread))
void say_caught(void);
int caught_signals(void);
void forget_caught(void);
// Where the handler of SIGURG jumps to, if not null.
#include <setjmp.h>
extern _Thread_local sigjmp_buf* jump_to;
void install_handlers(void);

// At the begin and the end of a thread's part of a phase.
void objects_begin(void);
void objects_end(bool detached);
void locks_begin(void);
void locks_end(bool detached);
void* locks_new(void);
void* objects_new(void);
extern pthread_key_t keys[4];
void make_keys(void);
void fork_handlers(void);

// Waits that only another thread ends; waits.c.
int wait_count(void);
// Lets a thread wait for ever in wait `which`.
pthread_t start_waiting_for_ever(int which);

// program.c
struct program {
  int count;
  struct operation operations[kMostOperations];
};
void generate(struct program* p, unsigned seed);
bool parse(struct program* p, FILE* f);
void print(const struct program* p, FILE* f);
_Noreturn void run_program(struct program* p, struct text* texts);
