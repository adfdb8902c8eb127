// SPDX-License-Identifier: MIT
#include "shim/fibers/job_queue_inside.h"

#include <errno.h>

#include <new>

#include "sched/chaos.h"
#include "sched/life/fork.h"
#include "sched/scheduler.h"
#include "fiberthread/deadline.h"
#include "fiberthread/fiberthread.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

namespace {

std::atomic<unsigned> forks{0};  // even: see kResetting
constinit thread_local JobFiber* tls_job __attribute__((tls_model("initial-exec"))) = nullptr;

JobFiber* const kWithdrawn = reinterpret_cast<JobFiber*>(8);  // Task::fiber_
constexpr int kLooks = 16;                                    // fibers with a task that a scout looks at
constexpr uint64_t kPatienceNs = 100'000'000;
constexpr unsigned kKept = 32;      // fibers that the queue of the process keeps: as many as other queues do by default
constexpr unsigned kResetting = 1;  // JobQueueInside::fork: a thread makes it this number

class QueueLock {
 public:
  explicit QueueLock(JobQueueInside* q) : q_(q) {
    q->check_fork();
    q->lock.lock();
  }
  ~QueueLock() { q_->lock.unlock(); }
  QueueLock(const QueueLock&) = delete;

 private:
  Busy busy_;
  JobQueueInside* q_;
};

void link_in(JobFiber*& list, JobFiber& f) {
  f.next = list;
  f.link = &list;
  if (list) list->link = &f.next;
  list = &f;
}
void link_out(JobFiber& f) {
  *f.link = f.next;
  if (f.next) f.next->link = f.link;
}

void wake(JobFiber* f) {
  FiberRecord* record = f->fiber;
  f->woken.store(1, std::memory_order_release);  // from here on it may be gone
  unpark(record);
}
void wait_until_woken(JobFiber& me) {
  while (!me.woken.load(std::memory_order_acquire)) park_if(&me.woken, 0, {"job", me.queue});
  me.woken.store(0, std::memory_order_relaxed);
}

}  // namespace

FIBERTHREAD_IN_FORK_CHILD(Waits, job_queues,
                          [](FiberRecord*) { forks.store(forks.load(std::memory_order_relaxed) + 2, std::memory_order_relaxed); })

// Called at each use. At the first one in the child of a fork, this makes the queue empty: its fibers and its tasks are the parent's. The
// thread that held the lock is the parent's too, and so is a thread that was resetting the queue for an earlier number.
void JobQueueInside::check_fork() {
  unsigned now = forks.load(std::memory_order_relaxed), seen;
  while (__builtin_expect((seen = fork.load(std::memory_order_acquire)) != now, 0)) {
    if (seen == (now | kResetting)) {
      cpu_relax();
      continue;
    }
    if (!fork.compare_exchange_strong(seen, now | kResetting, std::memory_order_relaxed)) continue;
    lock.reset();
    scout = Scout::None;
    idle_count = 0;
    fibers.store(0, std::memory_order_relaxed);
    looking = 0;
    first = last = nullptr;
    idle = busy = nullptr;
    fork.store(now, std::memory_order_release);
  }
}

// ---- under the lock ----

void JobQueueInside::push(Task& t) {
  t.next_ = nullptr;
  t.prev_ = last;
  if (last) last->next_ = &t;
  else first = &t;
  last = &t;
}

void JobQueueInside::remove(Task& t) {
  if (t.next_) t.next_->prev_ = t.prev_;
  else last = t.prev_;
  if (t.prev_) t.prev_->next_ = t.next_;
  else first = t.next_;
}

// Without a look at the task itself, which may be done and gone.
bool JobQueueInside::holds(const Task& t) const {
  for (Task* p = first; p; p = p->next_)
    if (p == &t) return true;
  return false;
}

// If a scout is needed, an idle fiber is it from now on, or one has to be made.
JobQueueInside::Errand JobQueueInside::need_scout() {
  if (scout != Scout::None || !first) return {};
  JobFiber* f = idle;
  if (f) {
    scout = Scout::Sent;
    link_out(*f);
    idle_count--;
    f->scout = true;
    return Errand::wake(f);
  }
  scout = Scout::BeingMade;
  looking++;
  fibers.fetch_add(1, std::memory_order_relaxed);
  return Errand::make_scout();
}

// Is a task that has begun only waiting for a worker? The latest are the likeliest.
bool JobQueueInside::preempted_ones() const {
  int looks = kLooks;
  for (JobFiber* f = busy; f && looks--; f = f->next)
    if (f->fiber->turns.preempted.load(std::memory_order_relaxed) && f->fiber->run.state.load(std::memory_order_relaxed) == State::Queued)
      return true;
  return false;
}

// ---- the fibers ----

// Returns 0, or why no fiber could be made. Then there is no scout.
int JobQueueInside::run_errand(Errand errand) {
  if (errand.is_nothing()) return 0;
  if (!errand.is_to_make()) {
    wake(errand.to_wake());
    return 0;
  }
  fiberthread_options_t options{};
  options.name = "job";
  options.detached = 1;
  fiberthread_t fiber;
  int e = fiberthread_new(&fiber, &options, fiber_main);
  Errand other;
  {
    QueueLock l(this);
    scout = e ? Scout::None : Scout::Sent;
    if (e) {
      looking--;
      fibers.fetch_sub(1, std::memory_order_relaxed);
      if (idle) other = need_scout();  // one that has come to rest meanwhile
    }
  }
  if (e == 0) return fiberthread_start(fiber, this);  // from here on the queue may be gone
  if (!other.to_wake()) return e;
  wake(other.to_wake());
  return 0;
}

// This is the last touch of the task. The waiters are taken out before it, because afterwards another object with waiters of its own may
// be at this address.
void JobQueueInside::settle(Task& t, uint32_t to) {
  uint32_t s = t.state_.load(std::memory_order_relaxed);
  while (!(s & Task::kWaited))
    if (t.state_.compare_exchange_weak(s, to, std::memory_order_acq_rel, std::memory_order_relaxed)) return;
  WakeList list;
  {
    LockedQueue q(&t.state_);
    while (Waiter* w = q.first()) list.add(q, *w);
    t.state_.store(to, std::memory_order_release);  // nobody else changes it any more: the bit is set, and the task is ours
  }
  list.wake_all();
}

inline __attribute__((always_inline)) JobQueueInside::Turn JobQueueInside::take_turn(JobFiber& me, Manner manner) {
  QueueLock l(this);
  if (me.fork != fork.load(std::memory_order_relaxed)) return {Step::Leave};
  if (me.task) link_out(me);
  me.task = nullptr;
  if (me.scout && manner == Manner::LetThemGoOn && first && preempted_ones()) return {Step::LookAgain};
  if (me.scout) {
    scout = Scout::None;
    me.scout = false;
  }
  Task* t = first;
  if (t) {
    remove(*t);
    t->state_.fetch_add(Task::kRunning - Task::kQueued, std::memory_order_relaxed);
  }
  if (t && !t->fiber_) {
    t->fiber_ = &me;
    me.task = t;
    link_in(busy, me);
    return {Step::BeginTask, need_scout()};
  }
  Errand errand;
  if (t) errand = Errand::wake(t->fiber_);
  if (first && scout == Scout::None) {  // after what the woken one does now
    scout = Scout::Sent;
    me.scout = true;
    return {Step::LookAgain, errand};
  }
  if (closing || idle_count >= kept) {
    looking--;
    return {Step::End, errand};
  }
  link_in(idle, me);
  idle_count++;
  return {Step::Rest, errand};
}

// A fiber of the ring, from its birth or from when it was woken as a scout.
void JobQueueInside::run_fiber(JobFiber& me) {
  Manner manner = Manner::LetThemGoOn;
  uint64_t since = 0;  // it has let others go on
  for (;;) {
    Turn turn = take_turn(me, manner);
    if (turn.step == Step::Leave) return;
    Task* begun = me.task;
    chaos_delay();
    run_errand(turn.errand);  // without memory for it: we look again when we are done
    switch (turn.step) {
      case Step::BeginTask:
        begun->result_ = begun->function_(begun->argument_);
        settle(*begun, Task::kDone);
        break;
      case Step::Rest:
        wait_until_woken(me);
        if (!me.scout) return;  // the queue ends
        break;
      case Step::LookAgain:
        // If no other fiber could run here, beginning a task is best. Tasks that are preempted again and again may be spinning for a
        // task that has not begun.
        if (since == 0) since = now_ns();
        manner = fiberthread::give_way() && now_ns() - since < kPatienceNs ? Manner::LetThemGoOn : Manner::BeginAnother;
        continue;
      case Step::End:
      case Step::Leave: return;
    }
    manner = Manner::LetThemGoOn;
    since = 0;
  }
}

void* JobQueueInside::fiber_main(void* p) {
  auto* q = static_cast<JobQueueInside*>(p);
  JobFiber me;
  me.queue = q;
  me.fork = q->fork.load(std::memory_order_relaxed);
  tls_job = &me;
  q->run_fiber(me);
  tls_job = nullptr;
  Busy busy;
  if (me.fork != q->fork.load(std::memory_order_relaxed)) return nullptr;
  q->lock.lock();
  FiberRecord* closer = q->fibers.fetch_sub(1, std::memory_order_release) == 1 ? q->closer : nullptr;
  q->lock.unlock();  // the thread that destroys the queue waits for this
  if (closer) unpark(closer);
  return nullptr;
}

// ---- JobQueue ----

static_assert(sizeof(JobQueueInside) <= 192 && alignof(JobQueueInside) <= 64);

JobQueue::JobQueue(unsigned fibers_kept) {
  auto* q = new (inside_) JobQueueInside(fibers_kept);
  q->fork.store(forks.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

JobQueue::~JobQueue() {
  auto* q = JobQueueInside::of(*this);
  JobFiber* idle;
  {
    QueueLock l(q);
    q->closing = true;
    q->closer = self();
    idle = q->idle;
    q->idle = nullptr;
    q->idle_count = 0;
  }
  while (idle) {
    JobFiber* f = idle;
    idle = f->next;
    wake(f);
  }
  for (uint32_t n; (n = q->fibers.load(std::memory_order_acquire)) != 0;) park_if(&q->fibers, n, {"job queue", this});
  q->lock.wait_until_free();
}

JobQueue& JobQueue::common() {
  // No thread makes it, so no fork can come while it is half made. It is not destroyed: jobs may run until the process is gone.
  struct alignas(JobQueue) Whole {
    JobQueueInside inside{kKept};
    unsigned char rest[sizeof(JobQueue) - sizeof(JobQueueInside)]{};
  };
  static_assert(sizeof(Whole) == sizeof(JobQueue));
  static constinit Whole whole;
  return reinterpret_cast<JobQueue&>(whole);
}

int JobQueue::run(Task& t) { return JobQueueInside::run(*this, t, t.function_, t.argument_); }

int JobQueueInside::run(JobQueue& queue, Task& t, void* (*function)(void*), void* argument) {
  auto* q = of(queue);
  for (bool queued = false;; queued = true) {
    Errand errand;
    bool open;
    {
      QueueLock l(q);
      if (!queued) {
        uint32_t s = t.state_.load(std::memory_order_relaxed) & 3;
        if (s == Task::kQueued || s == Task::kRunning) return EBUSY;
        t.function_ = function;
        t.argument_ = argument;
        t.fiber_ = nullptr;
        t.state_.store(Task::kQueued, std::memory_order_relaxed);
        q->push(t);
      } else if (!q->holds(t)) {
        return 0;
      }
      errand = q->need_scout();
      open = errand.is_nothing() && q->scout == Scout::BeingMade && q->looking == 1;
    }
    if (!open) return q->run_errand(errand) == 0 || !queue.withdraw(t) ? 0 : EAGAIN;
    // Another thread is making the only fiber that there would be. If it fails, this thread tries.
    fiberthread::give_way();
  }
}

bool JobQueue::withdraw(Task& t) {
  auto* q = JobQueueInside::of(*this);
  {
    QueueLock l(q);
    if ((t.state_.load(std::memory_order_relaxed) & 3) != Task::kQueued || t.fiber_) return false;
    q->remove(t);
    // From here on the task is ours alone. Its state stays Queued. `kWithdrawn` keeps run(), and a second withdraw(), from taking the task
    // for one in the queue.
    t.fiber_ = kWithdrawn;
  }
  JobQueueInside::settle(t, Task::kIdle);
  return true;
}

int JobQueueInside::wait(Task& t, void** result, uint64_t timeout_ns, uint32_t interrupts) {
  uint64_t deadline = deadline_in(timeout_ns);
  for (;;) {
    uint32_t s = t.state_.load(std::memory_order_acquire) & 3;
    if (s == Task::kDone) {
      if (result) *result = t.result_;
      return 0;
    }
    if (s == Task::kIdle) return EINVAL;
    Waiter w;
    auto mark = [&] {
      uint32_t now = t.state_.load(std::memory_order_relaxed);
      do
        if ((now & 3) == Task::kDone || (now & 3) == Task::kIdle) return false;
      while (!t.state_.compare_exchange_weak(now, now | Task::kWaited, std::memory_order_relaxed));
      return true;
    };
    switch (park(&t.state_, w, mark, {"job", &t}, deadline, interrupts)) {
      case WakeReason::TimedOut: return ETIMEDOUT;
      case WakeReason::Interrupted: return ECANCELED;
      default: break;
    }
  }
}

int JobQueue::wait(Task& t, void** result, uint64_t timeout_ns) { return JobQueueInside::wait(t, result, timeout_ns, kInterruptEnd); }

int JobQueue::yield() {
  JobFiber* me = tls_job;
  if (!me || !me->task) return EPERM;
  JobQueueInside* q = me->queue;
  Task& t = *me->task;
  JobQueueInside::Errand errand;
  bool waits;
  {
    QueueLock l(q);
    if (me->fork != q->fork.load(std::memory_order_relaxed)) return EPERM;
    waits = q->first != nullptr;
    if (waits) {
      t.state_.fetch_sub(Task::kRunning - Task::kQueued, std::memory_order_relaxed);
      q->push(t);
      errand = q->need_scout();
    }
  }
  if (!waits) {
    fiberthread::give_way();  // others than jobs
    return 0;
  }
  int e = q->run_errand(errand);
  if (e) {
    QueueLock l(q);
    if ((t.state_.load(std::memory_order_relaxed) & 3) == Task::kQueued) {
      q->remove(t);
      t.state_.fetch_add(Task::kRunning - Task::kQueued, std::memory_order_relaxed);
      return e;
    }
  }
  wait_until_woken(*me);
  return 0;
}

unsigned JobQueue::width() { return sched_started() ? base_slots() : cpu_count(); }

}  // namespace fiberthread

using namespace fiberthread;

static_assert(sizeof(Task) <= sizeof(fiberthread_task_t) && alignof(Task) <= alignof(fiberthread_task_t));

namespace {
// All zero is an idle one.
Task& in(fiberthread_task_t* task) { return *reinterpret_cast<Task*>(task); }
}  // namespace

extern "C" {

FIBERTHREAD_API int fiberthread_task_run(fiberthread_task_t* task, void* (*function)(void*), void* argument) {
  return JobQueueInside::run(JobQueue::common(), in(task), function, argument);
}
FIBERTHREAD_API int fiberthread_task_wait(fiberthread_task_t* task, void** result, uint64_t timeout_ns) {
  return JobQueue::common().wait(in(task), result, timeout_ns);
}
FIBERTHREAD_API int fiberthread_task_withdraw(fiberthread_task_t* task) { return JobQueue::common().withdraw(in(task)); }
FIBERTHREAD_API int fiberthread_task_yield(void) { return JobQueue::yield(); }

}  // extern "C"
