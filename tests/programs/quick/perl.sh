#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: perl
# Perl's interpreter copies its whole state for each thread.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/threads.pl" <<'P'
use strict; use warnings; use threads; use threads::shared; use Thread::Queue; use Thread::Semaphore;
$| = 1;
my $in = Thread::Queue->new; my $out = Thread::Queue->new; my $tokens = Thread::Semaphore->new(3); my $sum :shared = 0;
my @threads = map { threads->create(sub {
  while (defined(my $x = $in->dequeue)) {
    $tokens->down; threads->yield if $x % 7 == 0; $tokens->up;
    { lock $sum; $sum += $x; }
    $out->enqueue($x * $x);
  }
  return threads->tid;
}) } 1 .. 16;
$in->enqueue(1 .. 2000); $in->end;
my $tids = 0; $tids += $_->join for @threads;
my $squares = 0; while (defined(my $x = $out->dequeue_nb)) { $squares += $x }
print "$sum $squares $tids\n";

# A ping-pong by conditions, a wait that times out, an exception, a process from each thread.
my $turn :shared = 0;
@threads = map { my $i = $_; threads->create(sub { for (1 .. 50) { lock $turn; cond_wait($turn) until $turn % 4 == $i; $turn++; cond_broadcast($turn) } }) } 0 .. 3;
$_->join for @threads;
print "$turn\n";
{ lock $turn; print cond_timedwait($turn, time + 1) ? "woken" : "timed out", "\n"; }
my $thread = threads->create(sub { eval { die "inside\n" }; print $@; die "thread\n" }); { local *STDERR; open STDERR, '>', '/dev/null'; $thread->join; } print "error: ", $thread->error;
print join(',', sort map { $_->join } map { my $i = $_; threads->create(sub { my $o = `echo process $i`; chomp $o; $o }) } 1 .. 8), "\n";
threads->create(sub { sleep 1000 })->detach;
P
compare 30 perl "$TMP/threads.pl"
