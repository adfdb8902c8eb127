// SPDX-License-Identifier: MIT
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Barrier, Condvar, Mutex, Once, RwLock};
use std::thread;
use std::time::Duration;

thread_local!(static LOCAL: std::cell::Cell<usize> = std::cell::Cell::new(0));
struct Guard;
static DROPPED: AtomicUsize = AtomicUsize::new(0);
impl Drop for Guard {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}
thread_local!(static GUARD: Guard = Guard);

fn main() {
    let (tx, rx) = mpsc::channel();
    for i in 0..200 {
        let tx = tx.clone();
        thread::spawn(move || {
            for k in 0..50 {
                tx.send(i * k).unwrap();
            }
        });
    }
    drop(tx);
    println!("{}", rx.iter().sum::<usize>());

    let mut v = vec![0u64; 1000];
    thread::scope(|s| {
        for c in v.chunks_mut(100) {
            s.spawn(move || c.iter_mut().enumerate().for_each(|(i, x)| *x = i as u64));
        }
    });
    println!("{}", v.iter().sum::<u64>());

    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    let lock = Arc::new(RwLock::new(0));
    let barrier = Arc::new(Barrier::new(16));
    static ONCE: Once = Once::new();
    static INITS: AtomicUsize = AtomicUsize::new(0);
    let threads: Vec<_> = (0..16)
        .map(|i| {
            let (pair, lock, barrier) = (pair.clone(), lock.clone(), barrier.clone());
            thread::spawn(move || {
                GUARD.with(|_| ());
                ONCE.call_once(|| {
                    INITS.fetch_add(1, Ordering::SeqCst);
                });
                let leader = barrier.wait().is_leader();
                for k in 0..100 {
                    LOCAL.with(|l| l.set(i * 1000 + k));
                    if k % 10 == 0 {
                        *lock.write().unwrap() += 1;
                    } else {
                        let _ = *lock.read().unwrap();
                    }
                    thread::yield_now();
                    LOCAL.with(|l| assert_eq!(l.get(), i * 1000 + k));
                }
                let mut turn = pair.0.lock().unwrap();
                while *turn != i {
                    turn = pair.1.wait(turn).unwrap();
                }
                *turn += 1;
                pair.1.notify_all();
                leader
            })
        })
        .collect();
    let leaders = threads.into_iter().map(|t| t.join().unwrap()).filter(|l| *l).count();
    println!("{} {} {} {}", leaders, *lock.read().unwrap(), INITS.load(Ordering::SeqCst), DROPPED.load(Ordering::SeqCst));

    let t = thread::spawn(|| {
        if LOCAL.with(|l| l.get()) == 0 {
            std::panic::panic_any(42)
        }
    });
    std::panic::set_hook(Box::new(|_| ()));
    println!("{:?}", t.join().unwrap_err().downcast_ref::<i32>());
    thread::park_timeout(Duration::from_millis(5));
    let main = thread::current();
    let t = thread::spawn(move || main.unpark());
    thread::park();
    t.join().unwrap();
    let (m, c) = (Mutex::new(()), Condvar::new());
    println!("{}", c.wait_timeout(m.lock().unwrap(), Duration::from_millis(5)).unwrap().1.timed_out());
}
