/* SPDX-License-Identifier: MIT */
/* The C interface of fibers. The man page is libfiberthread(3).
 *
 * A fiber is a thread. A thread that pthread_create makes and a fiber that is made here are the same thing, and each call below takes
 * either. So a fiber has its own errno, thread_local variables, pthread_self(), signal mask and pthread keys, and may call all of libc.
 * main and foreign threads (kernel threads that the library did not make) have handles as well.
 *
 * A handle is a value. The program may copy, compare and keep it. Once its fiber has been joined, or has ended without being joinable,
 * each call returns ESRCH. A later fiber has another handle.
 *
 * Functions return 0 or an errno value, unless their comment says otherwise, and leave errno alone. Times are nanoseconds of
 * CLOCK_MONOTONIC. ESRCH means that the handle names no fiber any more.
 *
 * "Any thread" below means fibers, main and foreign threads, also in the child of a fork. Signal handlers may call only
 * fiberthread_wakeup(), fiberthread_self() and fiberthread_id(). Where a fiber parks, a foreign thread sleeps in the kernel.
 *
 * With NPTL's threads (FIBERTHREAD_NPTL=1, or a libc that the library does not know) each fiber is a kernel thread. Then all calls work
 * as well, but slower. */
#ifndef FIBERTHREAD_FIBERTHREAD_H
#define FIBERTHREAD_FIBERTHREAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names a fiber. NULL names none. The program never dereferences it. */
typedef struct fiberthread_fiber* fiberthread_t;

/* A cord, from fiberthread_cord_new() to fiberthread_cord_join(). */
typedef struct fiberthread_cord* fiberthread_cord_t;

/* Options of a new fiber. A field that is zero asks for the default, so an all-zero struct does, too. */
typedef struct fiberthread_options {
  size_t stack_size;          /* bytes, at least 16384; 0: the size that a thread gets */
  const char* name;           /* at most 15 characters; NULL: the name of the fiber that makes it */
  int bound;                  /* not 0: the fiber gets a kernel thread of its own */
  int detached;               /* not 0: the fiber is not joinable */
  const pthread_attr_t* attr; /* guard, stack, affinity, policy, signal mask; NULL: the defaults */
  fiberthread_cord_t cord;    /* the cord that the fiber lives in; NULL: none */
  void* reserved[2];          /* NULL */
} fiberthread_options_t;

/* A timeout that never comes. */
#define FIBERTHREAD_FOREVER UINT64_MAX

/* ---- making and starting ---- */

/* Makes a fiber that runs start(argument), and makes it runnable. `*fiber` is set before the fiber runs. The fiber is joinable unless
 * the options say otherwise. Any thread. Never parks.
 * EAGAIN: no memory, or no kernel thread for a bound fiber. EINVAL: `start` is NULL, the stack is too small, or `cord` is combined with
 * options that require a kernel thread of its own. ERANGE: the name is too long. EPERM: the attributes ask for a policy or priority that
 * the caller may not have. EPIPE: the cord has ended. */
FIBERTHREAD_API int fiberthread_spawn(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*), void* argument);

/* Makes a fiber like fiberthread_spawn(), but it does not run until fiberthread_start() or fiberthread_call(). Errors as there. Any
 * thread. Never parks. */
FIBERTHREAD_API int fiberthread_new(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*));

/* Makes a new fiber runnable, behind the fibers that already are. It runs start(argument). EALREADY: the fiber is not new. ESRCH. Any
 * thread. Never parks. */
FIBERTHREAD_API int fiberthread_start(fiberthread_t fiber, void* argument);

/* Runs a new fiber at once, in place of the caller. The caller goes on when the fiber waits for the first time (in any call), yields or
 * ends. From then on the fiber is like one that was started. Other fibers may run meanwhile on other workers, or when the new fiber is
 * preempted. If the caller is a foreign thread or a bound fiber, or the new fiber is bound, the new fiber runs on another kernel thread
 * while the caller waits. On NPTL, the caller does not notice a wait inside libc.
 * EALREADY: the fiber is not new. ECANCELED: the caller was cancelled while it waited; the fiber runs all the same. EPERM: the caller is
 * a cord's callback. ESRCH. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_call(fiberthread_t fiber, void* argument);

/* Gives back a new fiber that will never run. EALREADY: the fiber is not new. ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_discard(fiberthread_t fiber);

/* ---- handles, ids and names ---- */

/* Returns the handle of the caller. Any thread and signal handlers. Never parks. */
FIBERTHREAD_API fiberthread_t fiberthread_self(void);

/* Returns the id of the fiber, which is what gettid() returns in it and what dumps and reports show. An id is not used again for a long
 * time. Returns 0 if there is no such fiber, or (on NPTL) if it has not begun yet. Any thread and signal handlers. Never parks. */
FIBERTHREAD_API uint64_t fiberthread_id(fiberthread_t fiber);

/* Returns the fiber with this id, or NULL. Looks at all fibers, which takes about a microsecond for each hundred (2026-11-21). Does not
 * find new fibers, nor foreign threads that have not used the library yet. Any thread. Never parks. */
FIBERTHREAD_API fiberthread_t fiberthread_find(uint64_t id);

/* Sets the name of a fiber, as pthread_setname_np() does. ERANGE: the name has more than 15 characters. ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_set_name(fiberthread_t fiber, const char* name);
/* Writes the name of a fiber to `name`. A fiber without a name of its own has that of the process. ERANGE: the name and its NUL do not
 * fit into `size` bytes (16 always suffice). ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_get_name(fiberthread_t fiber, char* name, size_t size);

/* Calls visit(fiber, data) for each fiber that has begun and not ended, main included, and for each foreign thread that has used the
 * library. Stops when visit() returns other than 0. Returns that, else 0. No lock is held meanwhile, so visit() may make, end and wait
 * for fibers. Fibers that begin or end meanwhile may be missed. On NPTL, visits the threads that have used the library. Any thread.
 * Never parks by itself. */
FIBERTHREAD_API int fiberthread_each(int (*visit)(fiberthread_t fiber, void* data), void* data);

/* Stores the POSIX thread that is this fiber. pthread_join() and pthread_detach() on it count as fiberthread_join() and
 * fiberthread_set_joinable(). ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_pthread(fiberthread_t fiber, pthread_t* thread);
/* Returns the handle of a thread that pthread_create made, or NULL if there is no such fiber. Any thread. Never parks. */
FIBERTHREAD_API fiberthread_t fiberthread_of(pthread_t thread);

/* ---- letting other fibers run, waiting, waking ---- */

/* Waits until fiberthread_wakeup() is called for the caller. A wake-up that came since the last yield, while the fiber did something
 * else, ends the wait at once. A fiber keeps one wake-up, however many come. The caller sees what the waking thread did before the
 * wake-up. To let other fibers run and go on, call fiberthread_reschedule().
 * ECANCELED: the caller was cancelled. EPERM: the caller is a cord's callback. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_yield(void);
/* Waits like fiberthread_yield(), but for `timeout_ns` nanoseconds at most. ETIMEDOUT: no wake-up has come. With 0, lets other fibers
 * run once. Other errors as there. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_yield_timeout(uint64_t timeout_ns);

/* Ends the yield of a fiber, or its next one. Does not switch to it. Fibers that are woken run in the order of their wake-ups, before
 * the worker looks for I/O. Where several workers search for work, the woken fibers begin in that order. Does nothing, and returns 0,
 * for the caller itself, for a fiber that already has a wake-up, for a new fiber, and for a fiber that has ended and was not joined yet.
 * ESRCH. Any thread and signal handlers. Never parks. */
FIBERTHREAD_API int fiberthread_wakeup(fiberthread_t fiber);

/* Lets other fibers run. The caller goes to the end of the queue of runnable fibers. Any thread. Does not park: the caller stays
 * runnable. */
FIBERTHREAD_API void fiberthread_reschedule(void);

/* Waits for `timeout_ns` nanoseconds. Wake-ups and signals do not end the wait. With 0, lets other fibers run once. ECANCELED: the
 * caller was cancelled. EPERM: the caller is a cord's callback. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_sleep(uint64_t timeout_ns);

/* ---- cancelling ---- */

/* Asks a fiber to end. The fiber itself is not ended. Each of its waits in this interface that can fail, the present one and all later
 * ones, returns ECANCELED, unless the awaited event has come already. In fibers that are not bound, the waits of libc that park end as
 * well: read, write, accept, connect, poll, select, epoll_wait and similar calls, sleep, sem_wait, sigwait, pause. They return -1 with
 * errno ECANCELED, or what they return for errors. A pthread_cond_wait returns once, as after a spurious wake-up. Waits for locks and
 * pthread_join() go on.
 * A new fiber that is cancelled begins cancelled. ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_cancel(fiberthread_t fiber);

/* Returns 1 if the caller's waits end with ECANCELED now, else 0. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_cancelled(void);

/* With 0, cancelling does not end the caller's waits until it calls this with 1. That lets a cancelled fiber tidy up. Returns the
 * previous setting, which is 1 at first. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_set_cancellable(int cancellable);

/* ---- the end ---- */

/* Makes a fiber joinable (1), or not (0). A fiber that is not joinable is given back when it ends, or at once if it has ended. EBUSY:
 * another thread is joining it. EINVAL: the fiber is a foreign thread, or main. ESRCH. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_set_joinable(fiberthread_t fiber, int joinable);

/* Waits until the fiber has ended, stores its result in `*result` (unless `result` is NULL) and gives the fiber back. A fiber can be
 * joined once.
 * ECANCELED: the caller was cancelled; the fiber can be joined later. EDEADLK: the fiber is the caller, or is joining the caller and
 * has not been cancelled.
 * EINVAL: the fiber is not joinable or a foreign thread, or another thread is joining it. ESRCH: the fiber was joined, or was not
 * joinable and has ended. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_join(fiberthread_t fiber, void** result);
/* Waits like fiberthread_join(), but for `timeout_ns` nanoseconds at most. ETIMEDOUT: the fiber can be joined later. Other errors as
 * there. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_join_timeout(fiberthread_t fiber, void** result, uint64_t timeout_ns);

/* ---- fiber-local storage ---- */

/* A key stands for one value in each fiber, NULL at first. When a fiber ends with another value, destructor(value) is called in that
 * fiber. These are the keys of POSIX. EAGAIN: there are PTHREAD_KEYS_MAX keys. EINVAL: no such key. ENOMEM: no memory for the value. Any
 * thread may call the four functions, and none of them parks. */
typedef pthread_key_t fiberthread_key_t;
FIBERTHREAD_API int fiberthread_key_create(fiberthread_key_t* key, void (*destructor)(void* value));
FIBERTHREAD_API int fiberthread_key_delete(fiberthread_key_t key);
FIBERTHREAD_API int fiberthread_set_local(fiberthread_key_t key, const void* value);
FIBERTHREAD_API void* fiberthread_get_local(fiberthread_key_t key);

/* ---- cords ---- */

/* A cord is a kernel thread with fibers of its own. It has a name, a scheduler fiber, an event loop, a list of runnable fibers and a
 * registry of its fibers by their ids. The fibers of a cord never leave it. They run strictly one at a time, in the order in which they
 * become runnable, and are not preempted. So between two waits a fiber has exclusive access to the data that only fibers of this cord
 * use, without a lock. In all else they are ordinary fibers: they have thread_local variables and pthread_self(), can be joined, share
 * locks with other fibers, and wait for descriptors and time. A call that waits in the kernel without parking (regular files, DNS) makes
 * the whole cord wait.
 *
 * The event loop runs the fibers that are runnable. Then it looks at timers and descriptors, those of the process as well as its own,
 * runs callbacks on the scheduler fiber, and sleeps. A callback must not wait or let other fibers run. In a callback,
 * fiberthread_yield(), _yield_timeout(), _sleep(), _call() and fiberthread_cord_receive() return EPERM. The other waits of this
 * interface that can fail return ECANCELED there. In a wait that cannot fail, such as one for a lock, the whole cord stands still.
 *
 * The queues of callbacks and messages have no bound. A program that could send faster than the cord receives uses a Channel. */

/* Makes a cord without fibers. Programs make its fibers with fiberthread_options_t::cord, from any thread. `name`, of at most 15
 * characters, is the name of its kernel thread and of its scheduler fiber.
 * EAGAIN: no memory, or no kernel thread. ERANGE: the name is too long. ENOTSUP: threads are NPTL's. Any thread. May park until the
 * kernel thread runs. */
FIBERTHREAD_API int fiberthread_cord_new(fiberthread_cord_t* cord, const char* name);

/* Returns the cord that the caller lives in, or NULL. Any thread. Never parks. */
FIBERTHREAD_API fiberthread_cord_t fiberthread_cord_self(void);
/* Returns the name of the cord. It is valid until the cord is given back. Any thread. Never parks. */
FIBERTHREAD_API const char* fiberthread_cord_name(fiberthread_cord_t cord);

/* Returns the fiber of this cord that has this id, or NULL. Any thread. Never parks. */
FIBERTHREAD_API fiberthread_t fiberthread_cord_find(fiberthread_cord_t cord, uint64_t id);
/* Calls visit(fiber, data) like fiberthread_each(), but for the fibers of the cord only. Its scheduler fiber is not among them. Returns
 * -1 if there is no memory. Any thread. Never parks by itself. */
FIBERTHREAD_API int fiberthread_cord_each(fiberthread_cord_t cord, int (*visit)(fiberthread_t fiber, void* data), void* data);

/* Sends a message and wakes a fiber of the cord that waits for one. The message belongs to the receiver then. Messages of one sender
 * arrive in the order in which they were sent.
 * EPIPE: the cord was closed. ENOMEM. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_cord_send(fiberthread_cord_t cord, void* message);

/* Takes the oldest message to the caller's cord, or waits for one. Fibers that wait get their messages in the order in which they came.
 * ETIMEDOUT: no message has come within `timeout_ns` nanoseconds (FIBERTHREAD_FOREVER: no limit). EPIPE: the cord was closed, and all
 * messages were taken. ECANCELED: the caller was cancelled, and no message was taken. EPERM: the caller lives in no cord, or is a
 * callback. Fibers of a cord. May park. */
FIBERTHREAD_API int fiberthread_cord_receive(void** message, uint64_t timeout_ns);

/* Has the cord run callback(argument) on its scheduler fiber. Callbacks run in the order of the calls, and before messages that are sent
 * later are received. EPIPE: the cord was closed. ENOMEM. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_cord_call(fiberthread_cord_t cord, void (*callback)(void* argument), void* argument);

/* Closes the cord to messages and callbacks. Fibers of the cord still receive the messages that were sent before, and then EPIPE. The
 * cord ends when its callbacks have run and its last fiber has ended. Until then fibers can be made in it. Any thread. Never parks. */
FIBERTHREAD_API void fiberthread_cord_close(fiberthread_cord_t cord);

/* Closes the cord, waits until it has ended, and gives it back. Messages that no fiber took are lost. A cord is joined once.
 * EDEADLK: the caller is a fiber of the cord. ETIMEDOUT: the cord has not ended within `timeout_ns` nanoseconds. ECANCELED: the caller
 * was cancelled. After these two the cord can be joined later. ESRCH: the cord was the parent's, and the caller is in the child of a
 * fork; the cord is given back. Any thread. Parks. */
FIBERTHREAD_API int fiberthread_cord_join(fiberthread_cord_t cord, uint64_t timeout_ns);

/* ---- jobs ---- */

/* A task for the job queue of the process. JobQueue(3) is the C++ form. The memory of a task is its owner's, all zero at first. It must
 * stay until fiberthread_task_wait() or fiberthread_task_withdraw() has returned for it. */
typedef struct fiberthread_task {
  void* inside[8];
} fiberthread_task_t;

/* Has a fiber of the queue run function(argument). EAGAIN: no memory for a fiber. EBUSY: the task is in the queue already, or runs. Any
 * thread. Does not wait for the task. */
FIBERTHREAD_API int fiberthread_task_run(fiberthread_task_t* task, void* (*function)(void* argument), void* argument);
/* Waits until the task is done and stores its result in `*result`, unless `result` is NULL. ETIMEDOUT: the task was not done within
 * `timeout_ns` nanoseconds. ECANCELED: the caller was cancelled, and the task goes on. EINVAL: the task was not run. Any thread. May
 * park. */
FIBERTHREAD_API int fiberthread_task_wait(fiberthread_task_t* task, void** result, uint64_t timeout_ns);
/* Takes a task that has not begun out of the queue. Returns 1 if it did: the task will not run. Returns 0 if the task has begun or is
 * done. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_task_withdraw(fiberthread_task_t* task);
/* Puts the task of the caller back to the end of the queue, and waits for its turn. EPERM: the caller runs no task. EAGAIN: no memory
 * for a fiber that could run other tasks. Tasks only. May park. */
FIBERTHREAD_API int fiberthread_task_yield(void);

/* Calls body(context, first, last) for parts [first, last) that make up [begin, end). Idle workers take part, and so does the caller.
 * Each part except the last has at least `grain` indices. 0 lets the library choose. Returns when all parts are done. Calls may be
 * nested. Any thread. May park. */
FIBERTHREAD_API void fiberthread_parallel_for(size_t begin, size_t end, size_t grain,
                                              void (*body)(void* context, size_t first, size_t last), void* context);
/* Calls functions[i](arguments[i]) for each i below n, perhaps at the same time. Returns when all have returned. Calls may be nested.
 * Any thread. May park. */
FIBERTHREAD_API void fiberthread_parallel_invoke(void (*const* functions)(void*), void* const* arguments, size_t n);

/* ---- nurseries ---- */

/* A nursery: its fibers end before it does. Nursery(3) is the C++ form. It lies in its owner's memory, from _init() to _end(). */
typedef struct fiberthread_nursery {
  void* inside[12];
} fiberthread_nursery_t;

/* Makes a nursery. With a parent (or NULL), it is cancelled when the parent is. Any thread. May park for the parent's mutex. */
FIBERTHREAD_API void fiberthread_nursery_init(fiberthread_nursery_t* nursery, fiberthread_nursery_t* parent);
/* Runs function(argument) in a fiber, which is a child of the nursery. A result other than 0 is an error and cancels the nursery. The
 * options may be NULL, and may be all but `detached` (EINVAL). ECANCELED: the nursery is cancelled. ENOMEM, or what fiberthread_spawn()
 * returns. Any thread. May park while another thread uses the nursery, or while a child that has ended is given back. */
FIBERTHREAD_API int fiberthread_nursery_spawn(fiberthread_nursery_t* nursery, const fiberthread_options_t* options,
                                              int (*function)(void* argument), void* argument);
/* Waits until all children have ended. Returns 0, the first error, or ECANCELED if the nursery was cancelled without an error. If the
 * caller is cancelled, it cancels the nursery, and the wait goes on. Only the owner may call it. Parks. */
FIBERTHREAD_API int fiberthread_nursery_wait(fiberthread_nursery_t* nursery);
/* Cancels all children, later children too, and all nurseries that have this one as their parent. An `error` other than 0 counts like
 * that of a child. Any thread. Does not wait for the children; may park for the nursery's mutex. */
FIBERTHREAD_API void fiberthread_nursery_cancel(fiberthread_nursery_t* nursery, int error);
/* Waits like fiberthread_nursery_wait(), returns its result, and ends the nursery. Only the owner may call it. Parks. */
FIBERTHREAD_API int fiberthread_nursery_end(fiberthread_nursery_t* nursery);

/* ---- attributes and statistics ---- */

/* Makes the threads that pthread_create() and fiberthread_spawn() make with these attributes bound (1), or not (0). A bound fiber has a
 * kernel thread of its own. EINVAL: `bound` is neither 0 nor 1. ENOMEM. Any thread. Never parks. */
FIBERTHREAD_API int fiberthread_attr_setbound(pthread_attr_t* attr, int bound);

typedef struct fiberthread_statistics {
  uint64_t spawned; /* fibers that were started, without main */
  uint64_t ended;
  uint64_t recycled; /* fibers that got the memory of a fiber that had ended */
  uint64_t workers;  /* kernel threads that run fibers */
} fiberthread_statistics_t;
/* Stores the counts since the process began, or was forked. On NPTL all are 0. Any thread. Never parks. */
FIBERTHREAD_API void fiberthread_get_statistics(fiberthread_statistics_t* statistics);

#ifdef __cplusplus
}
#endif

#endif
