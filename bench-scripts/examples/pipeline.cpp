// SPDX-License-Identifier: MIT
// A pipeline: fibers in stages, with channels between them, and a select at its end. It shows stages that end by themselves when the
// channel that feeds them is closed, and work that is shared among the receivers of one channel. It shows a select over channels with a
// time limit, and a nursery that holds all of it.
//
//   build/examples/pipeline [NUMBERS [WORKERS [ROOM]]]    default 200000 4 64; ROOM is that of each channel
//
//     numbers ──▶ worker ──▶ primes ────▶ select: counts and sums up
//            └──▶ worker ──▶ composites ─┘
//
// Prints the count and the sum of each kind, and the time that a value takes through the pipeline.
#include <fiberthread/channel.h>
#include <fiberthread/nursery.h>

#include <cstdio>
#include <cstdlib>

using fiberthread::Channel;
using fiberthread::ClosedChannel;
using fiberthread::Receiver;
using fiberthread::Sender;

static bool is_prime(uint64_t n) {
  if (n < 2) return false;
  for (uint64_t d = 2; d * d <= n; d++)
    if (n % d == 0) return false;
  return true;
}

struct Total {
  uint64_t count = 0, sum = 0;
  void add(uint64_t n) { count++, sum += n; }
};

int main(int argc, char** argv) {
  uint64_t numbers = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200000;
  int workers = argc > 2 ? std::atoi(argv[2]) : 4;
  size_t room = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 64;
  if (workers < 1) {
    std::fprintf(stderr, "usage: %s [NUMBERS [WORKERS [ROOM]]]\n", argv[0]);
    return 2;
  }

  fiberthread::Nursery nursery;
  auto [all, to_do] = Channel<uint64_t>::make(room);
  auto [to_primes, primes] = Channel<uint64_t>::make(room);
  auto [to_composites, composites] = Channel<uint64_t>::make(room);
  uint64_t start = fiberthread::deadline_after(0);

  nursery.spawn([tx = std::move(all), numbers] {
    for (uint64_t n = 1; n <= numbers; n++)
      if (int e = tx.send(n)) return e;
    return 0;  // this destroys the Sender, and so closes the channel
  });
  for (int i = 0; i < workers; i++)
    nursery.spawn([rx = to_do, primes = to_primes, composites = to_composites] {
      while (auto n = rx.receive())
        if (int e = (is_prime(*n) ? primes : composites).send(*n)) return e;
      return 0;
    });
  // Only the workers' handles count from now on.
  to_do.reset();
  to_primes.reset();
  to_composites.reset();

  Total prime, composite;
  uint64_t n, ticks = 0;
  for (bool more[] = {true, true}; more[0] || more[1];) {
    fiberthread::ReceiveCase from_primes(more[0] ? primes : Receiver<uint64_t>(), n);
    fiberthread::ReceiveCase from_composites(more[1] ? composites : Receiver<uint64_t>(), n);
    auto chosen = fiberthread::select_for(1'000'000'000, from_primes, from_composites);
    if (chosen.error == ETIMEDOUT) ticks++;  // a second without a value
    else if (chosen.error == ClosedChannel) more[chosen.index] = false;
    else if (chosen.error) return chosen.error;
    else (chosen.index == 0 ? prime : composite).add(n);
  }
  if (int e = nursery.wait()) {
    std::fprintf(stderr, "the pipeline has failed: error %d\n", e);
    return 1;
  }
  double seconds = static_cast<double>(fiberthread::deadline_after(0) - start) / 1e9;
  std::printf("primes: %llu, sum %llu\n", static_cast<unsigned long long>(prime.count), static_cast<unsigned long long>(prime.sum));
  std::printf("composites and 1: %llu, sum %llu\n", static_cast<unsigned long long>(composite.count),
              static_cast<unsigned long long>(composite.sum));
  std::fprintf(stderr, "%.3f s, %.0f ns each, %llu seconds idle\n", seconds, seconds * 1e9 / static_cast<double>(numbers ? numbers : 1),
               static_cast<unsigned long long>(ticks));
  return 0;
}
