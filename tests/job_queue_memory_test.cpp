// SPDX-License-Identifier: MIT
// JobQueue when there is no memory for its fibers.
#include "fiberthread/job_queue.h"

#include "tests/test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "fiberthread/fiber.h"
#include "tests/jobs.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

#if defined(__x86_64__)
// Memory for a fiber comes and goes. A task that run() took is done, and no later call is needed for that.
Test(job_queue_memory, without_memory_no_task_is_forgotten, .timeout = 120) {
  constexpr int kThreads = 3, kRounds = 200;
  chaos_seed = 5;
  auto q = std::make_unique<JobQueue>(0);
  std::atomic<int> done{0}, taken{0}, refused{0};
  std::atomic<bool> over{false};
  std::vector<Fiber> hoard;
  Rounds rounds(kThreads + 1);
  Threads t;
  for (int i = 0; i < kThreads; i++)
    t.kernel([&] {
      (void)self();  // the thread's record takes memory too
      rounds.meet();
      for (int r = 0; r < kRounds; r++) {
        rounds.meet();
        Task task([](void* p) -> void* { return (*static_cast<std::atomic<int>*>(p))++, nullptr; }, &done);
        int e = q->run(task);
        cr_assert(e == 0 || e == EAGAIN);
        e ? refused++ : taken++;
        if (e == 0) cr_assert_eq(q->wait(task), 0);
        rounds.meet();
      }
    });
  // A kernel thread without fibers makes and discards them. A worker would keep what it discards for itself at first, and the others would
  // get none of it.
  t.kernel([&] {
    (void)self();
    rounds.meet();
    rlimit all{}, little{};
    getrlimit(RLIMIT_AS, &all);
    long pages = 0;
    FILE* f = fopen("/proc/self/statm", "r");
    cr_assert(fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    little = all;
    little.rlim_cur = static_cast<rlim_t>(pages) * 4096;
    hoard.reserve(100'000);
    setrlimit(RLIMIT_AS, &little);
    for (int r = 0; r < kRounds; r++) {
      while (hoard.size() < hoard.capacity()) {
        Fiber one = Fiber::create([] {});
        if (!one) break;
        hoard.push_back(std::move(one));
      }
      for (int n = r % 3; n && !hoard.empty(); n--) hoard.pop_back();
      rounds.meet();
      rounds.meet();
    }
    setrlimit(RLIMIT_AS, &all);
    over = true;
  });
  // Waits here and not in libc's join. That would keep the only worker, and there is no memory for another.
  while (!over) give_way();
  t.join();
  q.reset();
  cr_assert_eq(done, taken);
  cr_assert(taken > 0 && refused > 0, "%d taken, %d refused", taken.load(), refused.load());
}

// After enter(), each mmap() of the calling kernel thread fails. Before that, another thread does something first, in answer().
class NoMemory {
 public:
  bool enter() {  // false: the kernel cannot
    sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog program = {4, code};
    raw_syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener_ = static_cast<int>(raw_syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, arg(&program)));
    return listener_ >= 0;
  }
  template <class F>
  void answer(const std::atomic<bool>& over, F before) {
    for (pollfd p{listener_, POLLIN, 0}; !over;) {
      seccomp_notif asked{};
      if (raw_syscall(SYS_poll, arg(&p), 1, 20) != 1 || raw_syscall(SYS_ioctl, listener_, SECCOMP_IOCTL_NOTIF_RECV, arg(&asked)) != 0)
        continue;
      before();
      seccomp_notif_resp answer{asked.id, 0, -ENOMEM, 0};
      raw_syscall(SYS_ioctl, listener_, SECCOMP_IOCTL_NOTIF_SEND, arg(&answer));
    }
    raw_syscall(SYS_close, listener_);
  }

 private:
  int listener_ = -1;
};

// A task comes while another thread makes the first fiber, for which there turns out to be no memory. Either there is no other fiber, or
// one has come to rest meanwhile.
void comes_while_the_first_is_made(bool one_rests) {
  cr_assert_eq(Fiber::spawn([] {}).join(), 0);
  static FiberRecord* resting = nullptr;
  static Gate gate;
  JobQueue q(1);
  Task before([](void* p) -> void* { return resting = self(), Gate::pass(p); }, &gate);
  Task makes(twice, number(1)), comes(twice, number(2)), never(twice, nullptr);
  NoMemory memory;
  std::atomic<int> entered{0};
  std::atomic<bool> makes_it{false}, let_come{false}, came{false}, over{false};
  if (one_rests) {
    cr_assert_eq(q.run(before), 0);
    while (gate.inside == 0) give_way();
  }
  Threads t;
  t.kernel([&] {
    std::vector<Fiber> hoard;
    hoard.reserve(100'000);
    (void)self();
    int can = memory.enter() ? 1 : -1;
    entered = can;
    while (can == 1 && hoard.size() < hoard.capacity()) {
      Fiber one = Fiber::create([] {});
      if (!one) break;
      hoard.push_back(std::move(one));
    }
    makes_it = true;
    if (can == 1) cr_assert_eq(q.run(makes), one_rests ? 0 : EAGAIN);
    over = true;
  });
  t.kernel([&] {
    (void)self();
    while (!let_come && !over) give_way();
    if (let_come) cr_assert_eq(q.run(comes), 0);
    came = true;
  });
  while (!entered) give_way();
  memory.answer(over, [&] {
    if (!makes_it || let_come) return;
    if (one_rests) {
      cr_assert(q.withdraw(makes));
      gate.open.post();
      cr_assert_eq(q.wait(before), 0);
      while (resting->run.state.load() != State::Parked) give_way();
    }
    let_come = true;
    while (q.wait(comes, nullptr, 0) == EINVAL) give_way();
    cr_assert(!q.withdraw(never));  // the thread that has queued `comes` has left the lock
  });
  if (entered == 1) {
    cr_assert(let_come);
    while (!came) give_way();
    void* result;
    cr_assert_eq(q.wait(comes, &result, 60'000 * kMs), 0);
    cr_assert_eq(result, number(4));
  }
  t.join();
  if (entered != 1) cr_skip_test("no seccomp with a listener");
}
Test(job_queue_memory, no_task_is_forgotten_if_the_first_fiber_cannot_be_made, .timeout = 120) { comes_while_the_first_is_made(false); }
Test(job_queue_memory, no_task_is_forgotten_if_a_fiber_rests_meanwhile, .timeout = 120) { comes_while_the_first_is_made(true); }
#endif

}  // namespace
