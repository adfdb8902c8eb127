// SPDX-License-Identifier: MIT
// A server with a thread for each connection, which sends lines back. Prints its port.
import java.io.*;
import java.net.*;

public class ThreadServer {
  static void serve(Socket s) {
    try (s) {
      s.setTcpNoDelay(true);
      InputStream in = s.getInputStream();
      OutputStream out = s.getOutputStream();
      byte[] b = new byte[4096];
      for (int n; (n = in.read(b)) > 0;) out.write(b, 0, n);
    } catch (IOException e) {
      // a reset
    }
  }
  public static void main(String[] args) throws Exception {
    ServerSocket listener = new ServerSocket(Integer.parseInt(args[0]), 4096, InetAddress.getByName("127.0.0.1"));
    for (;;) {
      Socket s = listener.accept();
      Thread t = new Thread(null, () -> serve(s), "connection", 256 * 1024);
      t.setDaemon(true);
      t.start();
    }
  }
}
