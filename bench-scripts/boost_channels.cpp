// SPDX-License-Identifier: MIT
#include <boost/fiber/all.hpp>

#include "api.h"

namespace {

namespace fibers = boost::fibers;

template <class Body>
void in_fibers(int n, Body body) {
  std::vector<fibers::fiber> f;
  for (int i = 0; i < n; i++) f.emplace_back([&body, i] { body(i); });
  for (auto& one : f) one.join();
}

template <class Channel>
double send_receive(Channel& c, int pairs) {
  return ns_each(100'000, [&](long n) {
    in_fibers(2 * pairs, [&](int who) {
      long v;
      for (long i = 0; i < n / pairs; i++) {
        if (who % 2) c.push(i);
        else c.pop(v);
      }
    });
  });
}

double unbuffered() {
  fibers::unbuffered_channel<long> c;
  return send_receive(c, 1);
}

// Boost's ring has room for one value less than a power of two.
double buffered(int pairs) {
  fibers::buffered_channel<long> c(128);
  return send_receive(c, pairs);
}

double alone() {
  fibers::buffered_channel<long> c(8);
  return ns_each(1'000'000, [&](long n) {
    long v;
    for (long i = 0; i < n; i++) {
      c.push(i);
      c.pop(v);
    }
  });
}

double barrier_8() {
  fibers::barrier b(8);
  return ns_each(80'000, [&](long n) {
    in_fibers(8, [&](int) {
      for (long i = 0; i < n / 8; i++) b.wait();
    });
  });
}

CASE("channel-unbuffered", unbuffered);
CASE("channel-buffered", [] { return buffered(1); });
CASE("channel-4x4-cpus", [] { return buffered(4); });
CASE("channel-alone", alone);
CASE("fifo-mutex-uncontended", lock_unlock<fibers::mutex>);
CASE("barrier-8", barrier_8);

}  // namespace
