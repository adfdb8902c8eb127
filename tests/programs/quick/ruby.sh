#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: ruby
# Ruby's VM has a global lock, which it hands on by a timer thread and signals.
. "$(dirname "$0")/../lib.sh"
need ruby
cat >"$TMP/threads.rb" <<'R'
require 'timeout'
require 'socket'
$stdout.sync = true
queue, results = SizedQueue.new(5), Queue.new
workers = 32.times.map { Thread.new { while (x = queue.pop) != :end; results << x * x; end } }
1000.times { |i| queue << i }
32.times { queue << :end }
workers.each(&:join)
puts results.size.times.sum { results.pop }

# The VM takes the lock from threads that compute.
counts = Array.new(4, 0); stop = false
spin = 4.times.map { |i| Thread.new { counts[i] += 1 until stop } }
sleep 0.01 until counts.all? { |n| n > 0 }
stop = true; spin.each(&:join)
puts counts.all?(&:positive?)

m, c, turn = Mutex.new, ConditionVariable.new, 0
5.times.map { |i| Thread.new { 40.times { m.synchronize { c.wait(m) until turn % 5 == i; turn += 1; c.broadcast } } } }.each(&:join)
puts turn
puts((Timeout.timeout(0.05) { sleep } rescue $!.class))
puts((Thread.new { Thread.current.report_on_exception = false; raise 'in a thread' }.join rescue $!.message))
t = Thread.new { begin sleep; ensure puts 'ensured' end }
Thread.pass until t.stop?
t.kill; t.join
p 8.times.map { |i| Thread.new { `echo #{i}`.to_i } }.sum(&:value)
pid = fork { Thread.new { exit!(Thread.new { 7 }.value) }.join }
puts Process.wait2(pid)[1].exitstatus
server = TCPServer.new('127.0.0.1', 0)
echo = Thread.new { 8.times.map { s = server.accept; Thread.new { s.write(s.gets); s.close } }.each(&:join) }
puts 8.times.map { |i| Thread.new { s = TCPSocket.new('127.0.0.1', server.addr[1]); s.puts i; s.read.to_i } }.sum(&:value)
echo.join
got = 0
trap('USR1') { got += 1 }
Process.kill('USR1', $$); sleep 0.001 until got == 1
puts 'signal'
r = 2.times.map { |i| Ractor.new(i) { |n| (1..20000).sum * (n + 1) } } rescue []
puts r.sum(&:take)
Thread.new { sleep }
R
compare 30 ruby -W0 "$TMP/threads.rb"
