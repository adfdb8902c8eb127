// SPDX-License-Identifier: MIT
// Threads of Rust that wait, one of them in a closure while it unwinds. Prints "ready", and ends when its stdin does.
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};

type Shared = Arc<(Mutex<u32>, Condvar)>;

#[inline(never)]
fn wait(shared: &Shared) {
    let mut count = shared.0.lock().unwrap();
    *count += 1;
    loop {
        count = shared.1.wait(count).unwrap();
    }
}

struct WaitsAtItsEnd(Shared);
impl Drop for WaitsAtItsEnd {
    fn drop(&mut self) {
        wait(&self.0);
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let shared: Shared = Arc::new((Mutex::new(0), Condvar::new()));
    let s = shared.clone();
    std::thread::spawn(move || [1, 2, 3].iter().for_each(|_| wait(&s)));
    let s = shared.clone();
    std::thread::spawn(move || {
        let _waits = WaitsAtItsEnd(s);
        panic!();
    });
    while *shared.0.lock().unwrap() < 2 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
