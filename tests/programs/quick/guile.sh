#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: guile-3.0
# Guile's garbage collector stops threads by signals: its handlers wait in sigsuspend.
. "$(dirname "$0")/../lib.sh"
need guile
cat >"$TMP/threads.scm" <<'P'
(use-modules (ice-9 threads))
(define (work n)
  (let loop ((i 0) (kept '()))
    (cond ((= i n) (length kept))
          ((zero? (modulo i 1000)) (loop (+ i 1) '()))
          (else (loop (+ i 1) (cons (make-vector 20 i) kept))))))
(display (map join-thread (map (lambda (k) (call-with-new-thread (lambda () (work 100000)))) (iota 8))))
(newline)
(define m (make-mutex))
(define c (make-condition-variable))
(define turn 0)
(define (play me)
  (lambda ()
    (do ((i 0 (+ i 1))) ((= i 100) me)
      (with-mutex m
        (while (not (= (modulo turn 4) me)) (wait-condition-variable c m))
        (set! turn (+ turn 1))
        (make-vector 10000 me)
        (broadcast-condition-variable c)))))
(display (map join-thread (map (lambda (k) (call-with-new-thread (play k))) (iota 4))))
(display turn)
(newline)
(gc)
(display (par-map (lambda (x) (work (* x 500))) (iota 20)))
(newline)
P
export GUILE_AUTO_COMPILE=0
compare 12 guile "$TMP/threads.scm"
