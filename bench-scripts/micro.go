// SPDX-License-Identifier: MIT
// The cases of micro.c in Go 1.19, with goroutines and the usual means of Go for each purpose: channels, sync.Mutex, sync.Cond,
// sync.WaitGroup. The names and the output are the same.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var size int

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "micro.go:", err)
		os.Exit(1)
	}
}

func measure(batch func(int), n int) {
	batch(n)
	start := time.Now()
	done := 0
	for time.Since(start) < 300*time.Millisecond {
		batch(n)
		done += n
	}
	fmt.Printf("ns=%.2f\n", float64(time.Since(start))/float64(done))
}

var stop atomic.Bool
var sum atomic.Int64

func measureCrowd(body func()) {
	var all sync.WaitGroup
	all.Add(size)
	start := time.Now()
	for i := 0; i < size; i++ {
		go func() {
			body()
			all.Done()
		}()
	}
	time.Sleep(400 * time.Millisecond)
	stop.Store(true)
	all.Wait()
	fmt.Printf("ns=%.2f\n", float64(time.Since(start))/float64(sum.Load()))
}

func createJoin() {
	measure(func(n int) {
		for i := 0; i < n; i++ {
			done := make(chan struct{})
			go func() { close(done) }()
			<-done
		}
	}, 500)
}

func createMany() {
	measure(func(n int) {
		var all sync.WaitGroup
		all.Add(n)
		for i := 0; i < n; i++ {
			go all.Done()
		}
		all.Wait()
	}, size)
}

func node(result chan<- int, first, leaves int) {
	if leaves == 1 {
		result <- first
		return
	}
	below := make(chan int)
	for i := 0; i < 10; i++ {
		go node(below, first+i*(leaves/10), leaves/10)
	}
	total := 0
	for i := 0; i < 10; i++ {
		total += <-below
	}
	result <- total
}

func skynet() {
	leaves := 1
	for leaves < size {
		leaves *= 10
	}
	result := make(chan int)
	start := time.Now()
	go node(result, 0, leaves)
	if <-result != leaves*(leaves-1)/2 {
		panic("skynet: wrong sum")
	}
	fmt.Printf("s=%.4f\n", time.Since(start).Seconds())
}

func semPingPong() {
	ping, pong := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			<-ping
			pong <- struct{}{}
		}
	}()
	measure(func(n int) {
		for i := 0; i < n; i++ {
			ping <- struct{}{}
			<-pong
		}
	}, 5000)
}

var turnsPerUs = 1000

//go:noinline
func compute(us int) int {
	n := 0
	for i := us * turnsPerUs; i > 0; i-- {
		n ^= i * n
	}
	return n
}

var computed int

func halves() {
	for i := 0; i < 3; i++ {
		start := time.Now()
		computed += compute(10000)
		turnsPerUs = int(int64(turnsPerUs) * 10000000 / time.Since(start).Nanoseconds())
	}
	ping, pong := make(chan struct{}), make(chan int)
	go func() {
		for {
			<-ping
			pong <- compute(size)
		}
	}()
	measure(func(n int) {
		for i := 0; i < n; i++ {
			ping <- struct{}{}
			computed += compute(size)
			computed += <-pong
		}
	}, 10000/size+1)
}

var mutex sync.Mutex

func condPingPong() {
	ping, pong := sync.NewCond(&mutex), sync.NewCond(&mutex)
	partnersTurn := false
	go func() {
		mutex.Lock()
		for {
			for !partnersTurn {
				ping.Wait()
			}
			partnersTurn = false
			pong.Signal()
		}
	}()
	measure(func(n int) {
		mutex.Lock()
		for i := 0; i < n; i++ {
			partnersTurn = true
			ping.Signal()
			for partnersTurn {
				pong.Wait()
			}
		}
		mutex.Unlock()
	}, 2000)
}

func socketpairPingPong() {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	check(err)
	var ends [2]*os.File
	for i := range ends { // non-blocking, so that the runtime's poller takes them
		check(syscall.SetNonblock(fds[i], true))
		ends[i] = os.NewFile(uintptr(fds[i]), "socketpair")
	}
	go func() {
		c := make([]byte, 1)
		for {
			if _, err := ends[1].Read(c); err != nil {
				return
			}
			ends[1].Write(c)
		}
	}()
	c := make([]byte, 1)
	measure(func(n int) {
		for i := 0; i < n; i++ {
			_, err := ends[0].Write(c)
			check(err)
			_, err = ends[0].Read(c)
			check(err)
		}
	}, 500)
}

func yield() {
	measureCrowd(func() {
		n := 0
		for ; !stop.Load(); n++ {
			runtime.Gosched()
		}
		sum.Add(int64(n))
	})
}

var guarded int64

func mutexCrowd() {
	measureCrowd(func() {
		n := 0
		for ; !stop.Load(); n++ {
			mutex.Lock()
			guarded++
			mutex.Unlock()
		}
		sum.Add(int64(n))
	})
	if guarded != sum.Load() {
		panic("the mutex let two in at once")
	}
}

func mutexUncontended() {
	measure(func(n int) {
		for i := 0; i < n; i++ {
			mutex.Lock()
			mutex.Unlock()
		}
	}, 1000000)
}

func broadcast() {
	cond, allDone := sync.NewCond(&mutex), sync.NewCond(&mutex)
	waiting, woken, generation := 0, 0, 0
	for i := 0; i < size; i++ {
		go func() {
			mutex.Lock()
			for {
				seen := generation
				if waiting++; waiting == size {
					allDone.Signal()
				}
				for generation == seen {
					cond.Wait()
				}
				if woken++; woken == size {
					allDone.Signal()
				}
			}
		}()
	}
	var total time.Duration
	const rounds = 20
	for round := -1; round < rounds; round++ {
		mutex.Lock()
		for waiting < size {
			allDone.Wait()
		}
		waiting, woken = 0, 0
		start := time.Now()
		generation++
		cond.Broadcast()
		for woken < size {
			allDone.Wait()
		}
		if round >= 0 {
			total += time.Since(start)
		}
		mutex.Unlock()
	}
	fmt.Printf("ns=%.2f\n", float64(total)/rounds/float64(size))
}

func sleepers() {
	var all sync.WaitGroup
	all.Add(size)
	start := time.Now()
	for i := 0; i < size; i++ {
		go func() {
			time.Sleep(100 * time.Millisecond)
			all.Done()
		}()
	}
	all.Wait()
	fmt.Printf("s=%.4f\n", time.Since(start).Seconds())
}

func field(path, name string) float64 {
	f, err := os.Open(path)
	check(err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), name) {
			kb, _ := strconv.ParseFloat(strings.Fields(lines.Text())[1], 64)
			return kb
		}
	}
	return 0
}

func memory() (own, kernel, available float64) {
	own = field("/proc/self/status", "VmRSS:") + field("/proc/self/status", "VmPTE:")
	kernel = field("/proc/meminfo", "KernelStack:") + field("/proc/meminfo", "SUnreclaim:")
	return own, kernel, field("/proc/meminfo", "MemAvailable:")
}

func blocked() {
	end := make(chan struct{})
	var started, ended sync.WaitGroup
	started.Add(size)
	ended.Add(size)
	n := float64(size)
	own, kernel, available := memory()
	start := time.Now()
	for i := 0; i < size; i++ {
		go func() {
			started.Done()
			<-end
			ended.Done()
		}()
	}
	started.Wait()
	s := time.Since(start).Seconds()
	own1, kernel1, available1 := memory()
	if kernel1 < kernel { // as in micro.c
		kernel1 = kernel
	}
	start = time.Now()
	close(end)
	ended.Wait()
	endS := time.Since(start).Seconds()
	debug.FreeOSMemory()
	time.Sleep(time.Second)
	own2, _, _ := memory()
	fmt.Printf("s=%.4f kb=%.2f own_kb=%.2f available_kb=%.2f end_s=%.4f left_mb=%.1f\n", s, (own1-own+kernel1-kernel)/n,
		(own1-own)/n, (available-available1)/n, endS, (own2-own)/1024)
}

var cases = map[string]struct {
	run  func()
	size int
}{
	"create-join":          {createJoin, 1},
	"create":               {createMany, 500},
	"sem-ping-pong":        {semPingPong, 2},
	"cond-ping-pong":       {condPingPong, 2},
	"halves":               {halves, 100},
	"yield":                {yield, 16},
	"mutex-uncontended":    {mutexUncontended, 1},
	"mutex":                {mutexCrowd, 8},
	"broadcast":            {broadcast, 1000},
	"socketpair-ping-pong": {socketpairPingPong, 2},
	"sleepers":             {sleepers, 100000},
	"blocked":              {blocked, 1000000},
	"skynet":               {skynet, 1000000},
}

func main() {
	name, number := "", 0
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if len(os.Args) > 2 {
		number, _ = strconv.Atoi(os.Args[2])
	}
	c, known := cases[name]
	if i := strings.LastIndex(name, "-"); !known && i >= 0 { // its end may be the size
		number, _ = strconv.Atoi(name[i+1:])
		c, known = cases[name[:i]]
	}
	if !known {
		fmt.Fprintln(os.Stderr, "usage: micro.go CASE [SIZE]")
		os.Exit(2)
	}
	if size = c.size; number > 0 {
		size = number
	}
	c.run()
}
