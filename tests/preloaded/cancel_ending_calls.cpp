// SPDX-License-Identifier: MIT
// Cancellation of threads whose system call ends by itself at the same time. Either the call's result is returned, or the call has done
// nothing. Also of threads that have cancellation disabled, or wait in a call that is no cancellation point.
// libs: -lrt
#include <sys/sem.h>

#include "cancel_calls.h"

namespace {

char memory[8192];
int semaphores;

// A call that ends by itself. Either its result is returned, or the call has done nothing.
struct Ending {
  const char* name;
  bool (*call)();  // returns true if the call has ended by itself
  void (*prepare)();
  void (*end)();        // makes the call end
  bool (*untouched)();  // returns true if the call has done nothing, and puts everything back as it was
};
pid_t short_lived;
int release_by;  // the child ends once this is closed
int second_file, third_file;
std::atomic<int> opened;
bool lock_file(int fd, int how, int type) {
  struct flock l = {};
  l.l_type = static_cast<short>(type);
  l.l_start = 20;
  l.l_len = 1;
  return fcntl(fd, how, &l) == 0;
}
int open_files() {
  int n = 0;
  for (int i = 0; i < 100; i++) n += fcntl(i, F_GETFD) >= 0;
  return n;
}
int files_before, fifo_writer;
message m_in, m_out;
const Ending endings[] = {
    {"mq_receive", [] { return mq_receive(mq_empty, memory, sizeof memory, nullptr) == 1; }, [] {}, [] { mq_send(mq_empty, "x", 1, 0); },
     [] {
       timespec now = {};
       return mq_timedreceive(mq_empty, memory, sizeof memory, nullptr, &now) == 1;
     }},
    {"mq_send", [] { return mq_send(mq_full, "y", 1, 0) == 0; }, [] {},
     [] { assert(mq_receive(mq_full, memory, sizeof memory, nullptr) == 1); },
     [] {
       timespec now = {};
       return mq_timedsend(mq_full, "x", 1, 0, &now) == 0;
     }},
    {"msgrcv", [] { return msgrcv(queue, &m_in, sizeof m_in.text, 0, 0) == 3; }, [] {},
     [] {
       m_out.type = 1;
       assert(msgsnd(queue, &m_out, 3, 0) == 0);
     },
     [] { return msgrcv(queue, &m_out, sizeof m_out.text, 0, IPC_NOWAIT) == 3; }},
    {"waitpid", [] { return waitpid(short_lived, nullptr, 0) == short_lived; },
     [] {
       int fds[2];
       assert(pipe(fds) == 0);
       short_lived = fork();
       if (short_lived == 0) {
         char c;
         close(fds[1]);
         read(fds[0], &c, 1);
         _exit(0);
       }
       close(fds[0]);
       release_by = fds[1];
     },
     [] { close(release_by); }, [] { return waitpid(short_lived, nullptr, 0) == short_lived; }},
    {"F_OFD_SETLKW",
     [] {
       bool r = lock_file(locked_file, F_OFD_SETLKW, F_WRLCK);
       if (r) lock_file(locked_file, F_OFD_SETLK, F_UNLCK);
       return r;
     },
     [] { assert(lock_file(second_file, F_OFD_SETLK, F_WRLCK)); }, [] { lock_file(second_file, F_OFD_SETLK, F_UNLCK); },
     [] {
       bool r = lock_file(third_file, F_OFD_SETLK, F_WRLCK);
       lock_file(locked_file, F_OFD_SETLK, F_UNLCK);
       lock_file(third_file, F_OFD_SETLK, F_UNLCK);
       return r;
     }},
    {"open of a FIFO",
     [] {
       int fd = open("fifo", O_RDONLY);
       opened = fd;
       return fd >= 0;
     },
     [] { files_before = open_files(); }, [] { fifo_writer = open("fifo", O_WRONLY | O_NONBLOCK); },
     [] {
       int n = open_files() - (fifo_writer >= 0);
       for (int i = 0; i < 50 && n != files_before; i++) {  // another thread may have a descriptor for a moment
         usleep(1000);
         n = open_files() - (fifo_writer >= 0);
       }
       if (fifo_writer >= 0) close(fifo_writer);
       if (opened >= 0) close(opened);
       opened = -1;
       return n == files_before;
     }},
};

void* may_end(void* p) {
  Guard g;
  stage = 1;
  bool r = static_cast<const Ending*>(p)->call();
  return r ? p : nullptr;  // there is no cancellation point between the call and this
}
void* lets_end(void* p) {
  while (stage < 2) {
  }
  static_cast<const Ending*>(p)->end();
  return nullptr;
}
void at_the_same_time() {
  for (const Ending& e : endings) {
    printf("%s, ending:", e.name);
    fflush(stdout);
    int lost = 0, wrong = 0;
    bool fifo = !strncmp(e.name, "open", 4);
    for (int i = 0; i < 100; i++) {
      stage = 0;
      opened = -1;
      fifo_writer = -1;
      e.prepare();
      pthread_t t, other;
      pthread_create(&t, nullptr, may_end, const_cast<Ending*>(&e));
      wait_for_stage(1);
      if (any() % 2) usleep(100);
      pthread_create(&other, nullptr, lets_end, const_cast<Ending*>(&e));
      stage = 2;
      pass_time();
      pthread_cancel(t);
      void* r = result_of(t);
      result_of(other);
      wrong += r != PTHREAD_CANCELED && r != &e;
      if (fifo) {
        int fd = opened;
        bool same = e.untouched();
        if (r == PTHREAD_CANCELED) lost += !same || fd >= 0;
      } else if (r == PTHREAD_CANCELED) {
        lost += !e.untouched();
        if (!strcmp(e.name, "mq_send")) {  // the next round begins with a full queue
          timespec now = {};
          while (mq_timedsend(mq_full, "x", 1, 0, &now) == 0) {
          }
        }
      }
    }
    if (loses_results()) lost = 0;
    printf(" %d lost, %d wrong\n", lost, wrong);
  }
}

// ---- cancellation disabled, and a call that is no cancellation point ----

void* disabled(void*) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  stage = 1;
  long r = waitpid(short_lived, nullptr, 0) == short_lived;
  r += 2 * (msgrcv(queue, &m_in, sizeof m_in.text, 0, 0) == 3);
  return reinterpret_cast<void*>(r);
}
void* in_semop(void*) {
  stage = 1;
  sembuf b = {0, -1, 0};
  semop(semaphores, &b, 1);
  stage = 2;
  pthread_testcancel();
  return nullptr;
}
void not_ended() {
  pthread_t t;
  stage = 0;
  endings[3].prepare();
  pthread_create(&t, nullptr, disabled, nullptr);
  wait_for_stage(1);
  usleep(5000);
  pthread_cancel(t);
  usleep(1000);
  close(release_by);
  usleep(5000);
  m_out.type = 1;
  msgsnd(queue, &m_out, 3, 0);
  printf("disabled: %ld\n", reinterpret_cast<long>(result_of(t)));
  stage = 0;
  pthread_create(&t, nullptr, in_semop, nullptr);
  wait_for_stage(1);
  usleep(5000);
  pthread_cancel(t);
  usleep(5000);
  sembuf up = {0, 1, 0};
  semop(semaphores, &up, 1);
  wait_for_stage(2);  // libc's signal ends semop() with EINTR, the library's does not
  printf("semop: %s after it\n", result_of(t) == PTHREAD_CANCELED ? "cancelled" : "returned");
}

}  // namespace

int main(int argc, char** argv) {
  begin(argc, argv);
  second_file = open("locked", O_RDWR);
  third_file = open("locked", O_RDWR);
  semaphores = semget(IPC_PRIVATE, 1, 0600);
  at_the_same_time();
  not_ended();
  semctl(semaphores, 0, IPC_RMID);
  end();
}
