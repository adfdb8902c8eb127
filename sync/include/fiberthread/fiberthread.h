/* SPDX-License-Identifier: MIT */
/* The C interface of fibers. The man page is libfiberthread(3).
 *
 * A fiber is a thread: what pthread_create makes and what is made here are the same, and each call below takes either. So a fiber
 * has its own errno, thread_local variables, pthread_self(), signal mask and pthread keys, and may call all of libc. main and kernel
 * threads that the library did not make (foreign threads) have handles as well.
 *
 * A handle is a value: it may be copied, compared and kept. Once its fiber has been joined, or has ended without being
 * joinable, each call answers ESRCH; a later fiber has another handle.
 *
 * Results are 0 or an errno value; errno is left alone. Times are nanoseconds of CLOCK_MONOTONIC. Every call may come from fibers,
 * main and foreign threads, also in the child of a fork; from signal handlers only fiberthread_wakeup, _self and _id.
 *
 * Where threads are NPTL's (FIBERTHREAD_NPTL=1, or a libc that is not known), each fiber is a kernel thread, and all works the same
 * but slower. */
#ifndef FIBERTHREAD_FIBERTHREAD_H
#define FIBERTHREAD_FIBERTHREAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names a fiber; NULL names none. Never to be dereferenced. */
typedef struct fiberthread_fiber* fiberthread_t;

/* A cord, from fiberthread_cord_new() to fiberthread_cord_join(). */
typedef struct fiberthread_cord* fiberthread_cord_t;

/* How a fiber is to be. All zero is the default, and so are fields that are not known yet. */
typedef struct fiberthread_options {
  size_t stack_size;          /* bytes, at least 16384; 0: as that of a thread */
  const char* name;           /* at most 15 characters; NULL: its maker's */
  int bound;                  /* not 0: it gets a kernel thread of its own */
  int detached;               /* not 0: it is not joinable */
  const pthread_attr_t* attr; /* all else (guard, stack, affinity, policy, signal mask); NULL: the default */
  fiberthread_cord_t cord;    /* that it shall live in; NULL: none */
  void* reserved[2];          /* NULL */
} fiberthread_options_t;

/* Waits for ever. */
#define FIBERTHREAD_FOREVER UINT64_MAX

/* ---- making and starting ---- */

/* Makes a fiber that runs start(argument), and lets it run. It is joinable unless the options say otherwise. Does not wait.
 * EAGAIN: no memory, or no kernel thread for a bound one. EINVAL: the stack is too small, or what is to live in a cord has a kernel
 * thread of its own by its other options. ERANGE: the name is too long. EPERM: the attributes ask for what the caller may not
 * have. EPIPE: the cord has ended. */
FIBERTHREAD_API int fiberthread_spawn(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*), void* argument);

/* The same, but it does not run until it is started or called. */
FIBERTHREAD_API int fiberthread_new(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*));

/* Lets a new fiber run start(argument), after those that are ready already. Does not wait. EALREADY: it is not new. ESRCH. */
FIBERTHREAD_API int fiberthread_start(fiberthread_t fiber, void* argument);

/* Runs a new fiber at once, in place of the caller, who goes on when it waits for the first time (in whatever call), yields or ends.
 * From then on it is as if it had been started. Others may run meanwhile on other workers, or if it is preempted. From a foreign
 * thread or a bound fiber it runs on a worker, while the caller waits. (On NPTL, a wait inside libc is not seen.)
 * EALREADY: it is not new. ECANCELED: the caller was cancelled meanwhile; the fiber runs all the same. ESRCH. */
FIBERTHREAD_API int fiberthread_call(fiberthread_t fiber, void* argument);

/* Gives back a new fiber that shall never run. EALREADY: it is not new. ESRCH. */
FIBERTHREAD_API int fiberthread_discard(fiberthread_t fiber);

/* ---- who is it ---- */

/* The caller. */
FIBERTHREAD_API fiberthread_t fiberthread_self(void);

/* Its number, as gettid() gives it there, and as dumps and reports show it; not used again for a long time. 0: there is no such
 * fiber (or, on NPTL, it has not begun yet). */
FIBERTHREAD_API uint64_t fiberthread_id(fiberthread_t fiber);

/* The fiber with this number, or NULL. It looks at all fibers: about a microsecond for each hundred. New ones are not found, nor
 * foreign threads but the caller. */
FIBERTHREAD_API fiberthread_t fiberthread_find(uint64_t id);

/* At most 15 characters, else ERANGE; pthread_setname_np() sets the same. ESRCH. */
FIBERTHREAD_API int fiberthread_set_name(fiberthread_t fiber, const char* name);
/* ERANGE: `size` is too small; 16 always suffice. One without a name gives that of the process. ESRCH. */
FIBERTHREAD_API int fiberthread_get_name(fiberthread_t fiber, char* name, size_t size);

/* Calls visit(fiber, data) for every fiber, main included, that has begun and not ended, until it returns other than 0, and returns
 * that, else 0. Nothing is locked meanwhile: visit may make, end and wait for fibers, and those that begin or end meanwhile
 * may be missed. Without foreign threads; on NPTL main and the caller only. */
FIBERTHREAD_API int fiberthread_each(int (*visit)(fiberthread_t fiber, void* data), void* data);

/* As POSIX knows it. pthread_join() and pthread_detach() on it count as fiberthread_join() and fiberthread_set_joinable(). EAGAIN:
 * a new one that NPTL has not made yet. ESRCH. */
FIBERTHREAD_API int fiberthread_pthread(fiberthread_t fiber, pthread_t* thread);
/* The handle of a fiber that pthread_create made; NULL: there is no such fiber. */
FIBERTHREAD_API fiberthread_t fiberthread_of(pthread_t thread);

/* ---- letting others run, waiting, waking ---- */

/* Waits until fiberthread_wakeup(). One that came since the last yield, while the fiber did something else, ends it at once; there
 * is at most one. What was done before the wake-up is seen. To let others run and go on, see fiberthread_reschedule().
 * ECANCELED. */
FIBERTHREAD_API int fiberthread_yield(void);
/* ETIMEDOUT after `timeout_ns`. ECANCELED. */
FIBERTHREAD_API int fiberthread_yield_timeout(uint64_t timeout_ns);

/* Ends a fiber's yield, or its next one. Does not wait and does not switch: woken fibers run in the order of the wake-ups (where
 * several workers look for work, they begin in that order), before the worker looks for I/O. On the caller itself, and on one that
 * was woken already, it does nothing; on one that has ended it does nothing and is ESRCH. Signal handlers may call it. */
FIBERTHREAD_API int fiberthread_wakeup(fiberthread_t fiber);

/* Lets others run: the caller goes to the end of the ready ones. */
FIBERTHREAD_API void fiberthread_reschedule(void);

/* Waits. Wake-ups and signals do not end it. ECANCELED. */
FIBERTHREAD_API int fiberthread_sleep(uint64_t timeout_ns);

/* ---- cancelling ---- */

/* Asks a fiber to end. It is not ended: each wait of this interface that can fail, the present one and all that follow, ends with
 * ECANCELED, unless what it waits for has come already. So do, in fibers that are not bound, the waits of libc that park: read, write,
 * accept, connect, poll, select, epoll_wait and their kin, sleep, sem_wait, sigwait, pause (-1 and errno, or what they return for
 * errors). A pthread_cond_wait ends once, as a wake-up for no reason. Waits for locks and pthread_join() go on.
 * A new one begins cancelled. ESRCH. */
FIBERTHREAD_API int fiberthread_cancel(fiberthread_t fiber);

/* 1 if the caller's waits end with ECANCELED now, else 0. Does not wait. */
FIBERTHREAD_API int fiberthread_cancelled(void);

/* With 0 the caller's waits are not ended by cancelling, until it is called with 1: for tidying up. Returns what it was. */
FIBERTHREAD_API int fiberthread_set_cancellable(int cancellable);

/* ---- the end ---- */

/* Whether somebody shall join it. One that is not joinable is given back when it ends, at once if it has ended. EBUSY: somebody is
 * joining it. EINVAL: a foreign thread, or main. ESRCH: it does not exist any more. */
FIBERTHREAD_API int fiberthread_set_joinable(fiberthread_t fiber, int joinable);

/* Waits until the fiber has ended, takes its result (NULL: it is not wanted) and gives the fiber back. Once.
 * ESRCH: it was joined, or was not joinable and has ended. EINVAL: it is not joinable, or somebody else is joining it. EDEADLK: the caller
 * itself, or one that joins the caller. ECANCELED: the caller was cancelled; it may be joined later. */
FIBERTHREAD_API int fiberthread_join(fiberthread_t fiber, void** result);
/* ETIMEDOUT after `timeout_ns`: it may be joined later. */
FIBERTHREAD_API int fiberthread_join_timeout(fiberthread_t fiber, void** result, uint64_t timeout_ns);

/* ---- fiber-local storage ---- */

/* A value for each fiber, NULL at first. When a fiber ends with another, destructor(value) is called there. POSIX's keys are the same,
 * and as many (EAGAIN: there are PTHREAD_KEYS_MAX). EINVAL: no such key. ENOMEM. */
typedef pthread_key_t fiberthread_key_t;
FIBERTHREAD_API int fiberthread_key_create(fiberthread_key_t* key, void (*destructor)(void* value));
FIBERTHREAD_API int fiberthread_key_delete(fiberthread_key_t key);
FIBERTHREAD_API int fiberthread_set_local(fiberthread_key_t key, const void* value);
FIBERTHREAD_API void* fiberthread_get_local(fiberthread_key_t key);

/* ---- cords ---- */

/* A cord is a kernel thread with fibers of its own: with a name, a scheduler fiber, an event loop, a list of ready fibers and a
 * registry of them by their ids. Its fibers never leave it and run strictly one at a time, in the order in which they become ready, and
 * are not preempted: between two waits, one has what only they use to itself, without a lock. They are fibers as all are:
 * thread_local variables, pthread_self(), joining, locks that they share with others, waits for descriptors and time. What waits
 * in the kernel without parking (regular files, DNS) makes the whole cord wait.
 *
 * The event loop runs what is ready; sees what time and descriptors there are to be served, the process's as well as its own; runs
 * callbacks, on the scheduler fiber; and sleeps. A callback must not wait or give way. In it fiberthread_yield(),
 * _yield_timeout(), _sleep() and _call() are EPERM, as is fiberthread_cord_receive(); the other waits of this interface that can fail are
 * ECANCELED; and in those that cannot, locks for example, the whole cord stands still.
 *
 * Callbacks and messages go to a cord in queues without a bound: who could be too fast for it uses a Channel. */

/* Makes a cord. `name`, at most 15 characters, is its kernel thread's and its scheduler fiber's. It has no fibers: they are made with
 * fiberthread_options_t::cord, by whomever. May wait until its kernel thread runs.
 * EAGAIN: no memory, or no kernel thread. ERANGE: the name is too long. ENOTSUP: threads are NPTL's. */
FIBERTHREAD_API int fiberthread_cord_new(fiberthread_cord_t* cord, const char* name);

/* That of the caller, NULL if it lives in none. */
FIBERTHREAD_API fiberthread_cord_t fiberthread_cord_self(void);
FIBERTHREAD_API const char* fiberthread_cord_name(fiberthread_cord_t cord);

/* The fiber of this cord that has this id; NULL: it has none. */
FIBERTHREAD_API fiberthread_t fiberthread_cord_find(fiberthread_cord_t cord, uint64_t id);
/* As fiberthread_each(), for the cord's fibers only; its scheduler fiber is none of them. -1: no memory. */
FIBERTHREAD_API int fiberthread_cord_each(fiberthread_cord_t cord, int (*visit)(fiberthread_t fiber, void* data), void* data);

/* Sends a message, which is the receiver's then, and wakes a fiber of the cord that waits for one. Does not wait. Those of one sender
 * arrive in the order in which they were sent. From everywhere but signal handlers.
 * EPIPE: the cord was closed. ENOMEM. */
FIBERTHREAD_API int fiberthread_cord_send(fiberthread_cord_t cord, void* message);

/* Takes the oldest message to the caller's cord, or waits for one; fibers that wait get theirs in the order in which they came.
 * ETIMEDOUT after `timeout_ns` (FIBERTHREAD_FOREVER: never). EPIPE: the cord was closed, and all messages were taken. ECANCELED: none was
 * taken. EPERM: the caller lives in no cord. */
FIBERTHREAD_API int fiberthread_cord_receive(void** message, uint64_t timeout_ns);

/* Has callback(argument) run on the scheduler fiber, in the order of the calls, and before messages that are sent later are received.
 * Does not wait. From everywhere but signal handlers. EPIPE: the cord was closed. ENOMEM. */
FIBERTHREAD_API int fiberthread_cord_call(fiberthread_cord_t cord, void (*callback)(void* argument), void* argument);

/* Nothing is sent to it any more. What was sent is still delivered, then receivers get EPIPE. It ends when its callbacks have run
 * and its last fiber has ended; until then fibers may be made in it. Does not wait. */
FIBERTHREAD_API void fiberthread_cord_close(fiberthread_cord_t cord);

/* Closes it, waits until it has ended, and gives it back; messages that nobody took are lost. Once, and not by its own fibers (EDEADLK).
 * ETIMEDOUT after `timeout_ns`, and ECANCELED: it may be joined later. ESRCH: in the child of a fork; it is given back. */
FIBERTHREAD_API int fiberthread_cord_join(fiberthread_cord_t cord, uint64_t timeout_ns);

/* ---- jobs ---- */

/* What JobQueue(3) is in C++, on the queue that the process has. A task is its owner's memory, all zero at first; it stays until
 * fiberthread_task_wait() or _withdraw() has returned for it. */
typedef struct fiberthread_task {
  void* inside[8];
} fiberthread_task_t;

/* Has function(argument) run by a fiber of the queue. Does not wait. EAGAIN: no memory for a fiber. EBUSY: the task is with the queue. */
FIBERTHREAD_API int fiberthread_task_run(fiberthread_task_t* task, void* (*function)(void* argument), void* argument);
/* Waits until it is done, and takes what it returned (NULL: it is not wanted). ETIMEDOUT after `timeout_ns`. ECANCELED: it goes on.
 * EINVAL: it was not run. */
FIBERTHREAD_API int fiberthread_task_wait(fiberthread_task_t* task, void** result, uint64_t timeout_ns);
/* 1: it had not begun, and does not run. 0: it has begun, or is done. */
FIBERTHREAD_API int fiberthread_task_withdraw(fiberthread_task_t* task);
/* In a task: goes to the end of the queue. EPERM: the caller is none. EAGAIN. */
FIBERTHREAD_API int fiberthread_task_yield(void);

/* Calls body(context, first, last) for parts that make up begin to end, on as many workers as have nothing else to do, the caller's among
 * them. A part has at least `grain` members; 0: as many as is good. Waits until all is done; may be nested. */
FIBERTHREAD_API void fiberthread_parallel_for(size_t begin, size_t end, size_t grain,
                                              void (*body)(void* context, size_t first, size_t last), void* context);
/* Calls functions[i](arguments[i]) for n of them, perhaps at once. Waits until all have returned; may be nested. */
FIBERTHREAD_API void fiberthread_parallel_invoke(void (*const* functions)(void*), void* const* arguments, size_t n);

/* ---- nurseries ---- */

/* What Nursery(3) is in C++: fibers that end before it does. In its owner's memory, from _init() to _end(). */
typedef struct fiberthread_nursery {
  void* inside[12];
} fiberthread_nursery_t;

/* With a parent (or NULL), it is cancelled when that is. */
FIBERTHREAD_API void fiberthread_nursery_init(fiberthread_nursery_t* nursery, fiberthread_nursery_t* parent);
/* Runs function(argument) in a fiber. What it returns, other than 0, is an error, and cancels the nursery. Options: all but `detached`
 * (EINVAL), or NULL. ECANCELED: the nursery is cancelled. ENOMEM, or as fiberthread_spawn(). */
FIBERTHREAD_API int fiberthread_nursery_spawn(fiberthread_nursery_t* nursery, const fiberthread_options_t* options,
                                              int (*function)(void* argument), void* argument);
/* Waits until all children have ended: 0, the first error, or ECANCELED if it was cancelled without one. If the caller is cancelled, so
 * is the nursery, and the wait goes on. By its owner. */
FIBERTHREAD_API int fiberthread_nursery_wait(fiberthread_nursery_t* nursery);
/* Cancels all children, those that come later, and nurseries of which it is the parent. `error`, if not 0, counts as that of a
 * child. By anybody; does not wait. */
FIBERTHREAD_API void fiberthread_nursery_cancel(fiberthread_nursery_t* nursery, int error);
/* As _wait(); afterwards it is no more. */
FIBERTHREAD_API int fiberthread_nursery_end(fiberthread_nursery_t* nursery);

/* ---- surroundings ---- */

/* Makes the threads that pthread_create makes with these attributes bound (1), or not (0): bound ones have a kernel thread each.
 * EINVAL, ENOMEM. */
FIBERTHREAD_API int fiberthread_attr_setbound(pthread_attr_t* attr, int bound);

typedef struct fiberthread_statistics {
  uint64_t spawned; /* fibers that were started, main not included */
  uint64_t ended;
  uint64_t recycled; /* of those that were made, how many got the memory of one that had ended */
  uint64_t workers;  /* kernel threads that run fibers */
} fiberthread_statistics_t;
/* Since the process began, or was forked. On NPTL all are 0. */
FIBERTHREAD_API void fiberthread_get_statistics(fiberthread_statistics_t* statistics);

#ifdef __cplusplus
}
#endif

#endif
