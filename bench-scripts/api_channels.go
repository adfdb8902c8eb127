// SPDX-License-Identifier: MIT
package main

import "sync"

func sendReceive(room, pairs int) func() float64 {
	return func() float64 {
		c := make(chan int, room)
		return nsEach(400000, func(n int) {
			inThreads(2*pairs, func(who int) {
				for i := 0; i < n/pairs; i++ {
					if who%2 == 1 {
						c <- i
					} else {
						<-c
					}
				}
			})
		})
	}
}

func sendReceiveAlone() float64 {
	c := make(chan int, 8)
	return nsEach(1000000, func(n int) {
		for i := 0; i < n; i++ {
			c <- i
			<-c
		}
	})
}

func select8(room int) func() float64 {
	return func() float64 {
		var c [8]chan int
		for i := range c {
			c[i] = make(chan int, room)
		}
		return nsEach(100000, func(n int) {
			inThreads(2, func(who int) {
				for i := 0; i < n; i++ {
					if who == 1 {
						c[i%8] <- i
						continue
					}
					select {
					case <-c[0]:
					case <-c[1]:
					case <-c[2]:
					case <-c[3]:
					case <-c[4]:
					case <-c[5]:
					case <-c[6]:
					case <-c[7]:
					}
				}
			})
		})
	}
}

func select8Default() float64 {
	var c [8]chan int
	for i := range c {
		c[i] = make(chan int, 1)
	}
	return nsEach(100000, func(n int) {
		for i := 0; i < n; i++ {
			select {
			case <-c[0]:
			case <-c[1]:
			case <-c[2]:
			case <-c[3]:
			case <-c[4]:
			case <-c[5]:
			case <-c[6]:
			case <-c[7]:
			default:
			}
		}
	})
}

func readLock() float64 {
	var l sync.RWMutex
	return nsEach(1000000, func(n int) {
		for i := 0; i < n; i++ {
			l.RLock()
			l.RUnlock()
		}
	})
}

func init() {
	cases["channel-unbuffered"] = sendReceive(0, 1)
	cases["channel-buffered"] = sendReceive(128, 1)
	cases["channel-unbuffered-cpus"] = sendReceive(0, 1)
	cases["channel-buffered-cpus"] = sendReceive(128, 1)
	cases["channel-4x4-cpus"] = sendReceive(128, 4)
	cases["channel-alone"] = sendReceiveAlone
	cases["select-8"] = select8(0)
	cases["select-8-buffered"] = select8(1)
	cases["select-8-default"] = select8Default
	cases["fifo-mutex-uncontended"] = mutex(1)
	cases["fifo-mutex-8"] = mutex(8)
	cases["semaphore-ping-pong"] = futureSetWait
	cases["condition-ping-pong"] = condition
	cases["rwlock-read"] = readLock
}
