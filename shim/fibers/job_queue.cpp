#include "fiberthread/job_queue.h"

#include <errno.h>

#include <new>

#include "sched/chaos.h"
#include "sched/life/fork.h"
#include "sched/worker.h"
#include "fiberthread/deadline.h"
#include "fiberthread/fiberthread.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

// A fiber of the ring. On its own stack; everything but `woken` under the queue's lock.
struct JobFiber {
  JobQueueInside* queue = nullptr;
  FiberRecord* fiber = self();
  std::atomic<uint32_t> woken{0};
  bool scout = true;         // it is the scout, and its own to look at then; one is made to be
  Task* task = nullptr;      // that it has begun
  JobFiber* next = nullptr;  // of the idle ones, or of those with a task, the latest first
  JobFiber** link = nullptr;
  unsigned fork = 0;         // of which process it is
};

// Who runs tasks. At most one fiber of the queue is the *scout*: it has been woken, or is being made, to look for a task. Whoever
// leaves tasks behind sees to it that there is one. So as long as tasks wait, a fiber that could begin one is running or in a queue
// of the scheduler, and it does not matter what the others wait for, and how. A scout does not begin a task while one that has
// begun is preempted: there is enough to do then, and a job that takes long would only share its time with others.
struct JobQueueInside {
  // Before those of `sched`. Under it no more than some instructions; wakes and births come after it.
  SpinLock lock;
  bool scout = false;
  bool closing = false;
  unsigned kept = 0;                // idle ones that stay, at most
  unsigned idle_count = 0;
  std::atomic<unsigned> fork{0};    // `forks` when it was last used: what is older is the parent's
  std::atomic<uint32_t> fibers{0};  // and one about to be made
  uint32_t looking = 0;             // of these, those that will look for a task again
  bool making = false;              // the scout is one about to be made, for which there may be no memory
  Task* first = nullptr;
  Task* last = nullptr;
  JobFiber* idle = nullptr;
  JobFiber* busy = nullptr;
  FiberRecord* closer = nullptr;

  static JobQueueInside* of(JobQueue& q) { return reinterpret_cast<JobQueueInside*>(q.inside_); }
  static void call_all(JobQueue& q, const JobQueue::Call& mine, const JobQueue::Call* others, size_t n);
  void push(Task& t);
  void remove(Task& t);
  bool holds(const Task& t) const;
  JobFiber* need_scout(bool& make);
  int send_scout(JobFiber* found, bool make);
  bool preempted_ones() const;
  static void settle(Task& t, uint32_t to);
  static int run(JobQueue& queue, Task& t, void* (*function)(void*), void* argument);
  static int wait(Task& t, void** result, uint64_t timeout_ns, uint32_t interrupts);
  void run_fiber(JobFiber& me);
  void check_fork();
  static void* fiber_main(void* p);
};

namespace {

std::atomic<unsigned> forks{0};
constinit thread_local JobFiber* tls_job __attribute__((tls_model("initial-exec"))) = nullptr;

JobFiber* const kWithdrawn = reinterpret_cast<JobFiber*>(8);  // Task::fiber_
constexpr int kLooks = 16;        // fibers with a task that a scout looks at
constexpr uint64_t kPatienceNs = 100'000'000;
constexpr unsigned kResetting = ~0u;  // JobQueueInside::fork

class Locked {
 public:
  explicit Locked(JobQueueInside* q) : q_(q) {
    q->check_fork();
    q->lock.lock();
  }
  ~Locked() { q_->lock.unlock(); }
  Locked(const Locked&) = delete;

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

FIBERTHREAD_IN_FORK_CHILD(JobQueues, [](FiberRecord*) { forks.store(forks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); })

// In the child of a fork, at its first use: its fibers, and the tasks that it had, are the parent's. Whoever held the lock is, too.
void JobQueueInside::check_fork() {
  unsigned now = forks.load(std::memory_order_relaxed), seen;
  while (__builtin_expect((seen = fork.load(std::memory_order_acquire)) != now, 0)) {
    if (seen == kResetting || !fork.compare_exchange_strong(seen, kResetting, std::memory_order_relaxed)) continue;
    lock.reset();
    scout = false;
    idle_count = 0;
    fibers.store(0, std::memory_order_relaxed);
    looking = 0;
    making = false;
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

// If a scout is needed: an idle fiber, that is it now, or `make`: one has to be made. Either goes to send_scout() after the lock.
JobFiber* JobQueueInside::need_scout(bool& make) {
  if (scout || !first) return nullptr;
  scout = true;
  JobFiber* f = idle;
  if (f) {
    link_out(*f);
    idle_count--;
    f->scout = true;
    return f;
  }
  make = making = true;
  looking++;
  fibers.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// Is a task that has begun only waiting for a worker? The latest are the likeliest.
bool JobQueueInside::preempted_ones() const {
  int looks = kLooks;
  for (JobFiber* f = busy; f && looks--; f = f->next)
    if (f->fiber->preempted.load(std::memory_order_relaxed) && f->fiber->state.load(std::memory_order_relaxed) == State::Queued) return true;
  return false;
}

// ---- the fibers ----

// 0, or why no fiber could be made; then there is no scout.
int JobQueueInside::send_scout(JobFiber* found, bool make) {
  if (found) wake(found);
  if (!make) return 0;
  fiberthread_options_t options{};
  options.name = "job";
  options.detached = 1;
  fiberthread_t fiber;
  int e = fiberthread_new(&fiber, &options, fiber_main);
  {
    Locked l(this);
    making = false;
    if (e) {
      scout = false;
      looking--;
      fibers.fetch_sub(1, std::memory_order_relaxed);
      found = idle ? need_scout(make) : nullptr;  // one that has come to rest meanwhile
    }
  }
  if (e == 0) return fiberthread_start(fiber, this);  // from here on the queue may be gone
  if (!found) return e;
  wake(found);
  return 0;
}

// The last touch of the task. Who waits is taken out before: afterwards another object may be there, with its own waiters.
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

// A fiber of the ring, from its birth or from when it was woken as a scout.
void JobQueueInside::run_fiber(JobFiber& me) {
  bool patient = true;  // as a scout, to let those go on first that were preempted
  uint64_t since = 0;   // it does
  for (;;) {
    Task* begun = nullptr;
    JobFiber* woken = nullptr;
    bool make = false, rests = false, ends = false;
    {
      Locked l(this);
      if (me.fork != fork.load(std::memory_order_relaxed)) return;  // its task has forked, and this is the child
      if (me.task) link_out(me);
      me.task = nullptr;
      if (!(me.scout && patient && first && preempted_ones())) {
        if (me.scout) scout = me.scout = false;
        Task* t = first;
        if (t) {
          remove(*t);
          t->state_.fetch_add(Task::kRunning - Task::kQueued, std::memory_order_relaxed);
        }
        if (t && !t->fiber_) {
          t->fiber_ = &me;
          me.task = begun = t;
          link_in(busy, me);
          woken = need_scout(make);
        } else {
          if (t) woken = t->fiber_;
          if (first && !scout) {
            scout = me.scout = true;  // after what `woken` does now
          } else if (closing || idle_count >= kept) {
            ends = true;
            looking--;
          } else {
            rests = true;
            link_in(idle, me);
            idle_count++;
          }
        }
      }
    }
    chaos_delay();
    send_scout(woken, make);  // without memory for it: we look again when we are done
    if (ends) return;
    if (begun) {
      begun->result_ = begun->function_(begun->argument_);
      settle(*begun, Task::kDone);
      patient = true;
      since = 0;
    } else if (rests) {
      wait_until_woken(me);
      if (!me.scout) return;  // the queue ends
      patient = true;
      since = 0;
    } else {
      // If nobody else could run here, there is nothing better to do than to begin a task; and those that are preempted all the
      // time may be spinning, for what has not begun.
      if (since == 0) since = now_ns();
      patient = fiberthread::yield() && now_ns() - since < kPatienceNs;
    }
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
  q->lock.unlock();  // whoever destroys the queue waits for this
  if (closer) unpark(closer);
  return nullptr;
}

// ---- JobQueue ----

static_assert(sizeof(JobQueueInside) <= 192 && alignof(JobQueueInside) <= 64);

JobQueue::JobQueue(unsigned fibers_kept) {
  auto* q = new (inside_) JobQueueInside;
  q->kept = fibers_kept;
  q->fork.store(forks.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

JobQueue::~JobQueue() {
  auto* q = JobQueueInside::of(*this);
  JobFiber* idle;
  {
    Locked l(q);
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
  // Not destroyed: jobs may run until the process is gone.
  alignas(JobQueue) static unsigned char memory[sizeof(JobQueue)];
  static std::atomic<uint32_t> made{0};
  if (__builtin_expect(made.load(std::memory_order_acquire) != 2, 0)) {
    Busy busy;
    uint32_t none = 0;
    if (made.compare_exchange_strong(none, 1, std::memory_order_relaxed)) {
      new (memory) JobQueue;
      made.store(2, std::memory_order_release);
    }
    while (made.load(std::memory_order_acquire) != 2) cpu_relax();
  }
  return *reinterpret_cast<JobQueue*>(memory);
}

int JobQueue::run(Task& t) { return JobQueueInside::run(*this, t, t.function_, t.argument_); }

int JobQueueInside::run(JobQueue& queue, Task& t, void* (*function)(void*), void* argument) {
  auto* q = of(queue);
  for (bool queued = false;; queued = true) {
    JobFiber* woken;
    bool make = false, open;
    {
      Locked l(q);
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
      woken = q->need_scout(make);
      open = !woken && !make && q->making && q->looking == 1;
    }
    if (!open) return q->send_scout(woken, make) == 0 || !queue.withdraw(t) ? 0 : EAGAIN;
    // Another is making the only fiber that there would be. If that fails it is our turn to.
    fiberthread::yield();
  }
}

bool JobQueue::withdraw(Task& t) {
  auto* q = JobQueueInside::of(*this);
  {
    Locked l(q);
    if ((t.state_.load(std::memory_order_relaxed) & 3) != Task::kQueued || t.fiber_) return false;
    q->remove(t);  // from here on it is ours alone: it stays Queued, which run() and we ourselves, called again, must not take for
    t.fiber_ = kWithdrawn;
  }
  JobQueueInside::settle(t, Task::kIdle);
  return true;
}

int JobQueueInside::wait(Task& t, void** result, uint64_t timeout_ns, uint32_t interrupts) {
  uint64_t deadline = plain_deadline(deadline_after(timeout_ns));
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
  JobFiber* woken = nullptr;
  bool make = false, waits;
  {
    Locked l(q);
    if (me->fork != q->fork.load(std::memory_order_relaxed)) return EPERM;
    waits = q->first != nullptr;
    if (waits) {
      t.state_.fetch_sub(Task::kRunning - Task::kQueued, std::memory_order_relaxed);
      q->push(t);
      woken = q->need_scout(make);
    }
  }
  if (!waits) {
    fiberthread::yield();  // others than jobs
    return 0;
  }
  int e = q->send_scout(woken, make);
  if (e) {
    Locked l(q);
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

// ---- parallel_for, invoke ----

namespace {

struct Loop {
  std::atomic<size_t> next;
  size_t end, grain, width;
  void (*body)(void*, size_t, size_t);
  void* context;

  void work() {
    constexpr size_t kShare = 4;  // parts that everybody would still get, if they all were as large as the next
    for (size_t first = next.load(std::memory_order_relaxed);;) {
      size_t left, size;
      do {
        if (first >= end) return;
        left = end - first;
        size = left / (kShare * width);
        if (size < grain) size = grain;
        if (size > left) size = left;
        // Relaxed: what the loop is about was published with the task.
      } while (!next.compare_exchange_weak(first, first + size, std::memory_order_relaxed));
      body(context, first, first + size);
      first = next.load(std::memory_order_relaxed);
    }
  }
};

}  // namespace

void JobQueue::parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void*, size_t, size_t), void* context) {
  if (begin >= end) return;
  if (grain == 0) grain = 1;
  size_t helpers = (end - begin - 1) / grain, width = JobQueue::width();
  if (helpers > width - 1) helpers = width - 1;
  Loop loop{begin, end, grain, helpers + 1, body, context};
  auto* tasks = static_cast<Task*>(__builtin_alloca(helpers * sizeof(Task)));
  for (size_t i = 0; i < helpers; i++) {
    new (&tasks[i]) Task(
        [](void* p) -> void* {
          static_cast<Loop*>(p)->work();
          return nullptr;
        },
        &loop);
    if (run(tasks[i]) != 0) helpers = i;  // without more of them
  }
  loop.work();
  for (size_t i = helpers; i-- > 0;)
    if (!withdraw(tasks[i])) JobQueueInside::wait(tasks[i], nullptr, kNever, 0);
}

void JobQueueInside::call_all(JobQueue& queue, const JobQueue::Call& mine, const JobQueue::Call* others, size_t n) {
  auto* tasks = static_cast<Task*>(__builtin_alloca(n * sizeof(Task)));
  auto call = [](void* p) -> void* {
    auto* c = static_cast<const JobQueue::Call*>(p);
    c->function(c->object);
    return nullptr;
  };
  for (size_t i = 0; i < n; i++) {
    new (&tasks[i]) Task(call, const_cast<JobQueue::Call*>(&others[i]));
    queue.run(tasks[i]);  // one that is not taken is called here
  }
  mine.function(mine.object);
  for (size_t i = n; i-- > 0;) {
    bool here = queue.withdraw(tasks[i]) || (tasks[i].state_.load(std::memory_order_relaxed) & 3) == Task::kIdle;
    if (here) others[i].function(others[i].object);
    else wait(tasks[i], nullptr, kNever, 0);
  }
}

void JobQueue::call_all(const Call& mine, const Call* others, size_t n) { JobQueueInside::call_all(*this, mine, others, n); }

void JobQueue::invoke_all(void (*const* functions)(void*), void* const* arguments, size_t n) {
  constexpr size_t kMost = 256;  // on the stack at once; nobody was promised that all run side by side
  for (; n > kMost; n -= kMost, functions += kMost, arguments += kMost) invoke_all(functions, arguments, kMost);
  if (n == 0) return;
  auto* calls = static_cast<Call*>(__builtin_alloca(n * sizeof(Call)));
  for (size_t i = 0; i < n; i++) calls[i] = {functions[i], arguments[i]};
  call_all(calls[0], calls + 1, n - 1);
}

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
FIBERTHREAD_API void fiberthread_parallel_for(size_t begin, size_t end, size_t grain, void (*body)(void*, size_t, size_t), void* context) {
  JobQueue::common().parallel_for(begin, end, grain, body, context);
}
FIBERTHREAD_API void fiberthread_parallel_invoke(void (*const* functions)(void*), void* const* arguments, size_t n) {
  JobQueue::common().invoke_all(functions, arguments, n);
}

}  // extern "C"
