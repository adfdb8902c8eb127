// SPDX-License-Identifier: MIT
// Go and C threads in one process: goroutines call C code that waits for C threads, and C threads call Go.
package main

/*
#cgo CFLAGS: -O1
#cgo LDFLAGS: -pthread
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern int called(int, int);

static __thread int local = 5;
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int turn;

struct job { int id, rounds, sum; };

static void* thread(void* p) {
	struct job* j = p;
	local += j->id;
	for (int i = 0; i < j->rounds; i++) {
		j->sum += called(j->id, i);
		if (i % 4 == 0) usleep(100);
	}
	if (local != 5 + j->id) j->sum = -1;
	return NULL;
}
// C threads that call Go.
static int run_threads(int n, int rounds) {
	pthread_t t[n];
	struct job j[n];
	int sum = 0;
	for (int i = 0; i < n; i++) {
		j[i] = (struct job){i, rounds, 0};
		if (pthread_create(&t[i], NULL, thread, &j[i]) != 0) return -1;
	}
	for (int i = 0; i < n; i++) {
		pthread_join(t[i], NULL);
		sum += j[i].sum;
	}
	return sum;
}
// Goroutines that take turns by C's synchronization objects, each on a thread of Go's.
static void take_turns(int me, int of, int rounds) {
	for (int i = 0; i < rounds; i++) {
		pthread_mutex_lock(&m);
		while (turn % of != me) pthread_cond_wait(&c, &m);
		turn++;
		pthread_cond_broadcast(&c);
		pthread_mutex_unlock(&m);
	}
}
static int turns(void) { return turn; }
static int fails(int e) { errno = e; return -1; }
static int timed_out(void) {
	sem_t s;
	struct timespec t;
	sem_init(&s, 0, 0);
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 5000000;
	if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
	return sem_timedwait(&s, &t) == -1 && errno == ETIMEDOUT;
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

//export called
func called(id, round C.int) C.int {
	if round%8 == 0 {
		runtime.Gosched()
	}
	garbage := make([]byte, 1000)
	garbage[999] = byte(round)
	return C.int(garbage[999]%2) + id
}

func threadsOfC() {
	var wg sync.WaitGroup
	sums := make([]int, 8)
	for g := range sums {
		wg.Add(1)
		go func(g int) {
			defer wg.Done()
			sums[g] = int(C.run_threads(6, 40))
		}(g)
	}
	wg.Wait()
	fmt.Println(sums)
}

func turnsInC() {
	var wg sync.WaitGroup
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			C.take_turns(C.int(i), 4, 50)
		}(i)
	}
	wg.Wait()
	fmt.Println("turns", C.turns(), "timed out", C.timed_out())
}

func errnoOfEachCall() {
	var wg sync.WaitGroup
	wrong := 0
	var lock sync.Mutex
	for i := 1; i <= 40; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			if _, err := C.fails(C.int(i)); err != syscall.Errno(i) {
				lock.Lock()
				wrong++
				lock.Unlock()
			}
		}(i)
	}
	wg.Wait()
	fmt.Println("wrong errors", wrong)
}

// Go's own signals preempt spinning goroutines, while C threads go on.
func besideSpinners() {
	stop := make(chan bool)
	spun := make(chan int)
	for i := 0; i < 4; i++ {
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					spun <- n
					return
				default:
					n++
				}
			}
		}()
	}
	fmt.Println("beside spinners", C.run_threads(4, 20))
	runtime.GC()
	close(stop)
	for i := 0; i < 4; i++ {
		if <-spun == 0 {
			fmt.Println("one never ran")
		}
	}
}

func ownSignals() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	for i := 0; i < 5; i++ {
		syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		select {
		case s := <-signals:
			fmt.Println(s)
		case <-time.After(30 * time.Second):
			fmt.Println("no signal")
		}
	}
}

func main() {
	threadsOfC()
	turnsInC()
	errnoOfEachCall()
	besideSpinners()
	ownSignals()
	out, err := exec.Command("echo", "a process").Output()
	fmt.Print(string(out), err, "\n")
	func() {
		defer func() { fmt.Println("recovered:", recover() != nil) }()
		var p *int
		fmt.Println(*p)
	}()
}
