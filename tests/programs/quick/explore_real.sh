#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc pigz python3
# fiberthread explore has nothing to say of programs that do what they should: Python's threads, pigz, and a server and its clients.
. "$(dirname "$0")/../lib.sh"
need pigz
cd "$TMP" || exit 1
passes() { # OPTION… PROGRAM…
  timeout -k 5 200 "$BUILD/fiberthread" explore -q "$@" >out 2>&1 || fail "$*: $(cat out)"
  grep -q ' distinct, .*: no failure$' out && ! grep -q 'no thread' out || fail "$*: $(cat out)"
}

cat >threads.py <<'END'
import concurrent.futures, queue, threading
tasks, done = queue.Queue(2), queue.Queue()
def works():
    while (n := tasks.get()) is not None:
        done.put(n * n)
threads = [threading.Thread(target=works) for _ in range(3)]
for t in threads:
    t.start()
for n in [*range(10), None, None, None]:
    tasks.put(n)
for t in threads:
    t.join()
print(sorted(done.get() for _ in range(10)))
lock, total = threading.Lock(), 0
def adds(n):
    global total
    for _ in range(20):
        with lock:
            total += n
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(adds, range(6)))
print(total)
ready, changed = False, threading.Condition()
def tells():
    global ready
    with changed:
        ready = True
        changed.notify_all()
timer = threading.Timer(0.05, tells)
timer.start()
with changed:
    print(changed.wait_for(lambda: ready, 5000))
timer.join()
END
python=$(python3 -c 'import sys; print(sys.executable)') || skip "python3 is not installed"
passes -n 10 --same-output "$python" -S -E -s threads.py

head -c 1500000 "$(readlink -f /proc/$$/exe)" >plain
passes -n 30 --check 'gzip -dc | cmp - plain' "$(command -v pigz)" -p 4 -c plain

# Signals that main awaits come, too.
cat >sockets.c <<'END'
#include <arpa/inet.h>
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
enum { kClients = 3 };
static int listener, served;
static struct sockaddr_in address = {AF_INET};
static void* serves(void* p) {
  for (int i = 0; i < kClients; i++) {
    char text[100];
    int fd = accept(listener, 0, 0), n = (int)recv(fd, text, sizeof text, 0);
    assert(n > 0 && send(fd, text, n, 0) == n);
    close(fd);
    served++;
  }
  return p;
}
static void* asks(void* p) {
  char text[100];
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert(connect(fd, (void*)&address, sizeof address) == 0);
  assert(send(fd, "hello", 5, 0) == 5);
  assert(recv(fd, text, sizeof text, MSG_WAITALL) == 5);
  close(fd);
  return p;
}
static void* interrupts(void* p) {
  usleep(50000);
  kill(getpid(), SIGHUP);
  return p;
}
int main() {
  pthread_t t[kClients + 2];
  socklen_t size = sizeof address;
  sigset_t set;
  int got;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = socket(AF_INET, SOCK_STREAM, 0);
  assert(bind(listener, (void*)&address, size) == 0 && listen(listener, 9) == 0);
  getsockname(listener, (void*)&address, &size);
  for (int i = 0; i < kClients + 2; i++) pthread_create(&t[i], 0, i < kClients ? asks : i == kClients ? serves : interrupts, 0);
  assert(sigwait(&set, &got) == 0 && got == SIGHUP);
#ifdef ALL_ARE_SERVED
  assert(served == kClients);
#endif
  for (int i = 0; i < kClients + 2; i++) pthread_join(t[i], 0);
}
END
gcc -O1 -g -w -pthread -o sockets sockets.c || fail "gcc failed"
passes -n 40 ./sockets
# What fails because a signal comes early does so again.
gcc -O1 -g -w -pthread -DALL_ARE_SERVED -o early sockets.c || fail "gcc failed"
timeout -k 5 200 "$BUILD/fiberthread" explore -q -n 1000 ./early >out 2>&1
[ $? = 1 ] && [ -s early-1.explored ] || fail "early: $(cat out)"
for i in {1..10}; do
  timeout -k 5 60 "$BUILD/fiberthread" replay early-1.explored >again 2>&1
  [ $? = 1 ] || fail "early: replay $i: $(cat again) after $(cat out)"
done
exit 0
