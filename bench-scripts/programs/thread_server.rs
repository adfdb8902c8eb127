// SPDX-License-Identifier: MIT
// A server with a thread for each connection, which counts the bytes that come and sends them back.
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

fn main() {
    let port: u16 = std::env::args().nth(1).unwrap().parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let total = Arc::new(Mutex::new(0u64));
    for stream in listener.incoming() {
        let mut stream = match stream {
            Ok(s) => s,
            Err(_) => continue,
        };
        let total = total.clone();
        thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let mut buffer = [0u8; 4096];
            while let Ok(n) = stream.read(&mut buffer) {
                if n == 0 || stream.write_all(&buffer[..n]).is_err() {
                    break;
                }
                *total.lock().unwrap() += n as u64;
            }
        });
    }
}
