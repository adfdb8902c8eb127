// SPDX-License-Identifier: MIT
// 500 threads with garbage collection, implicit null checks, stack overflows, a process, parallel streams, hand-overs.
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Threads {
  static int depth;
  static void recurse() { depth++; recurse(); }

  public static void main(String[] args) throws Exception {
    AtomicLong sum = new AtomicLong();
    ConcurrentHashMap<Integer, Integer> map = new ConcurrentHashMap<>();
    Object lock = new Object();
    int[] guarded = new int[1];
    Thread[] threads = new Thread[500];
    for (int i = 0; i < threads.length; i++) {
      int k = i;
      threads[i] = new Thread(() -> {
        ArrayList<byte[]> garbage = new ArrayList<>();
        for (int j = 0; j < 100; j++) {
          garbage.add(new byte[2000]);
          map.merge(j, k, Integer::sum);
          sum.addAndGet(j);
          synchronized (lock) { guarded[0]++; }
        }
        try {
          Object o = k % 2 == 0 ? null : "x";
          o.hashCode();
        } catch (NullPointerException e) {
          sum.addAndGet(1);
        }
      });
      threads[i].start();
    }
    for (Thread t : threads) t.join();
    System.gc();
    System.out.println(sum + " " + map.values().stream().mapToInt(x -> x).sum() + " " + guarded[0]);
    try { recurse(); } catch (StackOverflowError e) { System.out.println("overflow " + (depth > 1000)); }
    Thread overflowing = new Thread(() -> {
      try { recurse(); } catch (StackOverflowError e) { System.out.println("overflow in a thread"); }
    });
    overflowing.start();
    overflowing.join();
    Process p = new ProcessBuilder("echo", "hi").start();
    System.out.println(new String(p.getInputStream().readAllBytes()).trim() + " " + p.waitFor());
    System.out.println(java.util.stream.IntStream.range(0, 1000000).parallel().mapToLong(x -> x).sum());
    SynchronousQueue<Integer> queue = new SynchronousQueue<>();
    Thread producer = new Thread(() -> {
      try { for (int i = 0; i < 2000; i++) queue.put(i); } catch (InterruptedException e) { }
    });
    producer.start();
    long taken = 0;
    for (int i = 0; i < 2000; i++) taken += queue.take();
    System.out.println(taken);
    Thread sleeper = new Thread(() -> {
      try { Thread.sleep(100000); } catch (InterruptedException e) { System.out.println("interrupted"); }
    });
    sleeper.start();
    sleeper.interrupt();
    sleeper.join();
    java.net.ServerSocket server = new java.net.ServerSocket(0);
    Thread accepting = new Thread(() -> {
      try { server.accept(); } catch (java.io.IOException e) { System.out.println("closed"); }
    });
    accepting.start();
    while (accepting.getState() != Thread.State.RUNNABLE) Thread.yield();
    Thread.sleep(20);
    server.close();
    accepting.join();
    new Thread(() -> System.exit(3)).start();
    Thread.sleep(100000);
  }
}
