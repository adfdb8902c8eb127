# SPDX-License-Identifier: MIT
import concurrent.futures as cf, multiprocessing, os, queue, signal, socket, subprocess, threading, time

def squares():
    q, results = queue.Queue(), []
    def work():
        while (x := q.get()) is not None:
            results.append(x * x)
    threads = [threading.Thread(target=work) for _ in range(64)]
    for t in threads: t.start()
    for i in range(2000): q.put(i)
    for _ in threads: q.put(None)
    for t in threads: t.join()
    return sum(results)

def pool():
    with cf.ThreadPoolExecutor(64) as ex:
        return sum(ex.map(lambda x: (time.sleep(0.001), x)[1], range(500)))

def processes():
    with cf.ThreadPoolExecutor(8) as ex:
        return list(ex.map(lambda i: subprocess.check_output(["echo", str(i)]), range(16)))

def double(x): return 2 * x

def forked_in_thread():
    out = []
    def work():
        pid = os.fork()
        if pid == 0:
            t = threading.Thread(target=lambda: os._exit(5)); t.start(); t.join(); os._exit(1)
        out.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    return out

def waits():
    c, e = threading.Condition(), threading.Event()
    with c: timed_out = c.wait(0.02)
    threading.Timer(0.02, e.set).start()
    b = threading.Barrier(8)
    order = []
    def meet(): order.append(b.wait())
    threads = [threading.Thread(target=meet) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    return timed_out, e.wait(60), sorted(order)

def alarms():
    n = 0
    def on_alarm(*_):
        nonlocal n
        assert threading.current_thread() is threading.main_thread()
        n += 1
    signal.signal(signal.SIGALRM, on_alarm)
    stop = False
    def spin():
        while not stop: pass
    t = threading.Thread(target=spin); t.start()
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    while n < 10: time.sleep(0.001)
    signal.setitimer(signal.ITIMER_REAL, 0)
    stop = True; t.join()
    return n >= 10

def sockets():
    s = socket.create_server(("127.0.0.1", 0))
    def echo(c):
        while d := c.recv(100): c.sendall(d)
        c.close()
    def serve():
        for _ in range(16): threading.Thread(target=echo, args=(s.accept()[0],)).start()
    t = threading.Thread(target=serve); t.start()
    def client(i):
        c = socket.create_connection(s.getsockname()); r = []
        for k in range(20):
            c.sendall(b"%d " % (i * k)); r.append(c.recv(100))
        c.close(); return sum(int(x) for x in b"".join(r).split())
    with cf.ThreadPoolExecutor(16) as ex: total = sum(ex.map(client, range(16)))
    t.join(); return total

def locals_():
    l, out = threading.local(), []
    def work(i):
        l.x = i
        for _ in range(5): time.sleep(0)
        out.append(l.x == i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for t in threads: t.start()
    for t in threads: t.join()
    return all(out)

if __name__ == "__main__":
    print(squares(), pool(), processes())
    with multiprocessing.get_context("fork").Pool(4) as p: print(p.map(double, range(20)))
    print(forked_in_thread(), waits(), alarms(), sockets(), locals_())
    print(threading.get_native_id() == os.getpid())
    threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
