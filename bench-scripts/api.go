// SPDX-License-Identifier: MIT
// The frame of api.cpp, in Go: each api_*.go adds its cases to the map in an init().
package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

var cases = map[string]func() float64{}

// Returns the ns of one operation. batch(n) does n operations. It is called once to warm up, and then again and again for a tenth of a
// second.
func nsEach(n int, batch func(int)) float64 {
	batch(n)
	start := time.Now()
	done := 0
	for time.Since(start) < 100*time.Millisecond {
		batch(n)
		done += n
	}
	return float64(time.Since(start)) / float64(done)
}

// Runs body(i) in each of n goroutines at once, and waits for them.
func inThreads(n int, body func(int)) {
	var all sync.WaitGroup
	all.Add(n)
	for i := 0; i < n; i++ {
		go func(i int) {
			body(i)
			all.Done()
		}(i)
	}
	all.Wait()
}

func main() {
	if len(os.Args) == 2 {
		if run, ok := cases[os.Args[1]]; ok {
			fmt.Printf("ns=%.2f\n", run())
			return
		}
	}
	fmt.Println("–")
	os.Exit(3)
}
