// SPDX-License-Identifier: MIT
package main

import (
	"runtime"
	"sync"
)

// Joining is a channel that the goroutine closes.
func spawnJoin() float64 {
	return nsEach(100000, func(n int) {
		for i := 0; i < n; i++ {
			done := make(chan struct{})
			go func() { close(done) }()
			<-done
		}
	})
}

func spawn500() float64 {
	return nsEach(500*100, func(n int) {
		for i := 0; i < n; i += 500 {
			var all sync.WaitGroup
			all.Add(500)
			for k := 0; k < 500; k++ {
				go func() { all.Done() }()
			}
			all.Wait()
		}
	})
}

func yieldWakeup() float64 {
	return nsEach(200000, func(n int) {
		to, fro := make(chan struct{}), make(chan struct{})
		go func() {
			for i := 0; i < n/2; i++ {
				<-to
				fro <- struct{}{}
			}
		}()
		for i := 0; i < n/2; i++ {
			to <- struct{}{}
			<-fro
		}
	})
}

func gosched16() float64 {
	return nsEach(200000, func(n int) {
		inThreads(16, func(int) {
			for i := 0; i < n/16; i++ {
				runtime.Gosched()
			}
		})
	})
}

func init() {
	cases["spawn-join"] = spawnJoin
	cases["spawn-join-500"] = spawn500
	cases["yield-wakeup"] = yieldWakeup
	cases["reschedule-16"] = gosched16
}
