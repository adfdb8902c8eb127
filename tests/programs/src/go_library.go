// SPDX-License-Identifier: MIT
package main

import "C"

import (
	"runtime"
	"sync"
)

//export Work
func Work(n C.int) C.int {
	var wg sync.WaitGroup
	var lock sync.Mutex
	sum := 0
	for i := 0; i < 10; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			garbage := make([]int, 10000)
			garbage[i] = i
			runtime.Gosched()
			lock.Lock()
			sum += garbage[i] + int(n)
			lock.Unlock()
		}(i)
	}
	wg.Wait()
	return C.int(sum)
}

func main() {}
