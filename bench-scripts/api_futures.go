// SPDX-License-Identifier: MIT
package main

import "sync"

// A future in Go is a channel with room for one.
func futureSetWait() float64 {
	to, fro := make(chan int, 1), make(chan int, 1)
	return nsEach(100000, func(n int) {
		inThreads(2, func(who int) {
			for i := 0; i < n/2; i++ {
				if who == 0 {
					to <- 1
					<-fro
				} else {
					<-to
					fro <- 1
				}
			}
		})
	})
}

func futureReady() float64 {
	return nsEach(1000000, func(n int) {
		for i := 0; i < n; i++ {
			f := make(chan int, 1)
			f <- i
			<-f
		}
	})
}

func condition() float64 {
	var m sync.Mutex
	c := sync.NewCond(&m)
	turn := 0
	return nsEach(50000, func(n int) {
		turn = 0
		inThreads(2, func(who int) {
			for i := 0; i < n/2; i++ {
				m.Lock()
				for turn != who {
					c.Wait()
				}
				turn = 1 - who
				c.Signal()
				m.Unlock()
			}
		})
	})
}

func mutex(threads int) func() float64 {
	return func() float64 {
		var m sync.Mutex
		count := 0
		return nsEach(400000, func(n int) {
			inThreads(threads, func(int) {
				for i := 0; i < n/threads; i++ {
					m.Lock()
					count++
					m.Unlock()
				}
			})
		})
	}
}

func init() {
	cases["future-set-wait"] = futureSetWait
	cases["future-ready"] = futureReady
	cases["sequencer-increment-wait"] = condition
	cases["event-set-wait"] = condition
	cases["mutex-uncontended"] = mutex(1)
	cases["mutex-8"] = mutex(8)
}
