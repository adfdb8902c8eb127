// SPDX-License-Identifier: MIT
// Calls that wait in the kernel for what cannot be polled: children, locks, queues, semaphores, futexes. The event is there before the call
// or comes later. Or the wait is interrupted, is cancelled or times out.
#include "waiting.h"

#include <mqueue.h>
#include <netdb.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>

struct what {
  struct job j;
  int fd, other, id;
  pid_t child;
  atomic_int* word;
  mqd_t queue;
  char path[40];
};
struct message {
  long type;
  char text[8];
};

// ---- a child, which may hold a lock until it ends ----

static void make_child(struct what* w, void (*hold)(int fd)) {
  int ready[2];
  char c;
  assert(pipe2(ready, O_CLOEXEC) == 0);
  w->child = fork();
  if (w->child == 0) {
    if (hold) hold(w->other);
    write(ready[1], "x", 1);
    for (;;) pause();
  }
  assert(w->child > 0 && read(ready[0], &c, 1) == 1);
  close(ready[0]), close(ready[1]);
}
static void end_child(struct what* w) { kill(w->child, SIGKILL); }
static void reap_child(struct what* w) {
  kill(w->child, SIGKILL);
  waitpid(w->child, NULL, 0);
}
static void only_child(struct what* w) { make_child(w, NULL); }
#define OF(j) ((struct what*)(j))
static long do_waitpid(struct job* j) {
  int s = 0;
  return waitpid(OF(j)->child, &s, 0) == OF(j)->child ? s : -1;
}
static long do_wait4(struct job* j) {
  int s = 0;
  struct rusage u = {.ru_maxrss = -1};
  return wait4(OF(j)->child, &s, 0, &u) == OF(j)->child ? s + (u.ru_maxrss < 0) : -1;
}
static long do_wait4_number(struct job* j) {
  int s = 0;
  return syscall(SYS_wait4, OF(j)->child, &s, 0, NULL) == OF(j)->child ? s : -1;
}
static long do_waitid(struct job* j) {
  siginfo_t s = {.si_pid = -1};
  return waitid(P_PID, OF(j)->child, &s, WEXITED) == 0 ? s.si_status * 100 + (s.si_pid == OF(j)->child) : -1;
}

// ---- locks ----

static void new_file(struct what* w) {
  strcpy(w->path, "blockingXXXXXX");
  w->fd = mkostemp(w->path, O_CLOEXEC);
  w->other = open(w->path, O_RDWR | O_CLOEXEC);
  assert(w->fd >= 0 && w->other >= 0);
}
static void no_file(struct what* w) {
  close(w->fd), close(w->other);
  unlink(w->path);
}
static void held_by_flock(struct what* w) {
  new_file(w);
  assert(flock(w->other, LOCK_EX) == 0);
}
static void free_flock(struct what* w) { assert(flock(w->other, LOCK_UN) == 0); }
static long do_flock(struct job* j) { return flock(OF(j)->fd, LOCK_EX); }
static long do_flock_number(struct job* j) { return syscall(SYS_flock, OF(j)->fd, LOCK_SH); }
static long do_flock_nb(struct job* j) { return flock(OF(j)->fd, LOCK_EX | LOCK_NB); }
static void set_lock(int fd, int type, int command) {
  struct flock l = {.l_type = type, .l_len = 10};
  assert(fcntl(fd, command, &l) == 0);
}
static void held_by_description(struct what* w) {
  new_file(w);
  set_lock(w->other, F_WRLCK, F_OFD_SETLK);
}
static void free_description(struct what* w) { set_lock(w->other, F_UNLCK, F_OFD_SETLK); }
static void hold_lock(int fd) { set_lock(fd, F_WRLCK, F_SETLK); }
static void held_by_child(struct what* w) {
  new_file(w);
  make_child(w, hold_lock);
}
static void no_child_no_file(struct what* w) {
  reap_child(w);
  no_file(w);
}
static long lock_by(int fd, int command, int type) {
  struct flock l = {.l_type = type, .l_len = 10};
  return fcntl(fd, command, &l);
}
static long do_ofd_setlkw(struct job* j) { return lock_by(OF(j)->fd, F_OFD_SETLKW, F_WRLCK); }
static long do_setlkw(struct job* j) { return lock_by(OF(j)->fd, F_SETLKW, F_RDLCK); }
static long do_setlk(struct job* j) { return lock_by(OF(j)->fd, F_SETLK, F_RDLCK); }
static long do_lockf(struct job* j) { return lockf(OF(j)->fd, F_LOCK, 10); }
static long do_lockf_try(struct job* j) { return lockf(OF(j)->fd, F_TLOCK, 10); }

// ---- queues and semaphores ----

static void new_messages(struct what* w) { assert((w->id = msgget(IPC_PRIVATE, 0600)) >= 0); }
static void full_messages(struct what* w) {
  struct msqid_ds d;
  new_messages(w);
  assert(msgctl(w->id, IPC_STAT, &d) == 0);
  d.msg_qbytes = 16;
  assert(msgctl(w->id, IPC_SET, &d) == 0);
  for (struct message m = {1}; msgsnd(w->id, &m, 8, IPC_NOWAIT) == 0;) {
  }
}
static void no_messages(struct what* w) { msgctl(w->id, IPC_RMID, NULL); }
static void send_message(struct what* w) {
  struct message m = {1, "hello"};
  assert(msgsnd(w->id, &m, 5, 0) == 0);
}
static void take_message(struct what* w) {
  struct message m;
  assert(msgrcv(w->id, &m, 8, 0, 0) == 8);
}
static long do_msgrcv(struct job* j) {
  struct message m;
  return msgrcv(OF(j)->id, &m, 8, 0, 0);
}
// A caller that comes after the removal gets EINVAL.
static long removed(long r) {
  if (r < 0 && errno == EINVAL) errno = EIDRM;
  return r;
}
static long do_msgrcv_removed(struct job* j) { return removed(do_msgrcv(j)); }
static long do_msgrcv_nowait(struct job* j) {
  struct message m;
  return msgrcv(OF(j)->id, &m, 8, 0, IPC_NOWAIT);
}
static long do_msgsnd(struct job* j) {
  struct message m = {1};
  return msgsnd(OF(j)->id, &m, 8, 0);
}
static void new_semaphore(struct what* w) { assert((w->id = semget(IPC_PRIVATE, 2, 0600)) >= 0); }
static void no_semaphore(struct what* w) { semctl(w->id, 0, IPC_RMID); }
static void post(struct what* w) {
  struct sembuf s = {0, 1, 0};
  assert(semop(w->id, &s, 1) == 0);
}
static long do_semop(struct job* j) {
  struct sembuf s[2] = {{0, -1, 0}, {1, 1, 0}};
  long r = semop(OF(j)->id, s, 2);
  return r == 0 ? 10 + semctl(OF(j)->id, 1, GETVAL) : r;
}
static long do_semop_removed(struct job* j) { return removed(do_semop(j)); }
static long do_semop_nowait(struct job* j) {
  struct sembuf s = {0, -1, IPC_NOWAIT};
  return semop(OF(j)->id, &s, 1);
}
static long do_semtimedop(struct job* j) {
  struct sembuf s = {0, -1, 0};
  struct timespec t = {100, 0};
  return semtimedop(OF(j)->id, &s, 1, &t);
}
static long do_semtimedop_short(struct job* j) {
  struct sembuf s = {0, -1, 0};
  struct timespec t = {0, 20000000};
  return semtimedop(OF(j)->id, &s, 1, &t);
}
static void new_queue(struct what* w) {
  static atomic_int n;
  struct mq_attr a = {.mq_maxmsg = 2, .mq_msgsize = 8};
  snprintf(w->path, sizeof w->path, "/blocking-%d-%d", (int)getpid(), n++);
  w->queue = mq_open(w->path, O_RDWR | O_CREAT | O_EXCL, 0600, &a);
  assert(w->queue >= 0);
}
static void full_queue(struct what* w) {
  new_queue(w);
  assert(mq_send(w->queue, "1", 1, 0) == 0 && mq_send(w->queue, "2", 1, 0) == 0);
}
static void no_queue(struct what* w) {
  mq_close(w->queue);
  mq_unlink(w->path);
}
static void queue_one(struct what* w) { assert(mq_send(w->queue, "hello", 5, 7) == 0); }
static void take_one(struct what* w) {
  char b[8];
  assert(mq_receive(w->queue, b, 8, NULL) == 1);
}
static long do_mq_receive(struct job* j) {
  char b[8];
  unsigned p = 0;
  long r = mq_receive(OF(j)->queue, b, 8, &p);
  return r < 0 ? r : r * 10 + p;
}
static struct timespec in_ms(int ms) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += ms / 1000, t.tv_nsec += ms % 1000 * 1000000;
  if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
  return t;
}
static long do_mq_timedreceive(struct job* j) {
  char b[8];
  struct timespec t = in_ms(100000);
  return mq_timedreceive(OF(j)->queue, b, 8, NULL, &t);
}
static long do_mq_timedreceive_short(struct job* j) {
  char b[8];
  struct timespec t = in_ms(20);
  return mq_timedreceive(OF(j)->queue, b, 8, NULL, &t);
}
static long do_mq_send(struct job* j) { return mq_send(OF(j)->queue, "3", 1, 0); }
static long do_mq_timedsend(struct job* j) {
  struct timespec t = in_ms(100000);
  return mq_timedsend(OF(j)->queue, "3", 1, 0, &t);
}

// ---- a futex that processes may share ----

static void new_word(struct what* w) {
  w->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(w->word != MAP_FAILED);
}
static void no_word(struct what* w) { munmap(w->word, 4096); }
static void change_word(struct what* w) {
  *w->word = 1;
  syscall(SYS_futex, w->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
static long do_futex(struct job* j) {
  long r = syscall(SYS_futex, OF(j)->word, FUTEX_WAIT, 0, NULL, NULL, 0);
  return r < 0 && errno == EAGAIN ? 0 : r;  // the word had changed before the wait
}

// ---- the calls ----

enum { READY, COMES, EINTR_, RESTARTED, CANCEL, ALONE, kEvents };
static const char* const event_names[] = {"ready", "comes", "signal", "signal, restarts", "cancel", "alone"};
#define ANY (1 << READY | 1 << COMES | 1 << EINTR_ | 1 << RESTARTED | 1 << CANCEL)
#define RESTARTS_NOT (ANY & ~(1 << RESTARTED))
#define BY_ITSELF (1 << ALONE)
static const struct call {
  const char* name;
  void (*begin)(struct what*);
  long (*call)(struct job*);
  void (*happen)(struct what*);
  void (*end)(struct what*);
  int events;
} calls[] = {
    {"waitpid", only_child, do_waitpid, end_child, reap_child, ANY},
    {"wait4", only_child, do_wait4, end_child, reap_child, ANY},
    {"syscall wait4", only_child, do_wait4_number, end_child, reap_child, ANY & ~(1 << CANCEL)},
    {"waitid", only_child, do_waitid, end_child, reap_child, ANY},
    {"flock", held_by_flock, do_flock, free_flock, no_file, ANY & ~(1 << CANCEL)},
    {"syscall flock", held_by_flock, do_flock_number, free_flock, no_file, ANY & ~(1 << CANCEL)},
    {"flock, LOCK_NB", held_by_flock, do_flock_nb, free_flock, no_file, BY_ITSELF | 1 << READY},
    {"F_OFD_SETLKW", held_by_description, do_ofd_setlkw, free_description, no_file, ANY},
    {"F_SETLKW", held_by_child, do_setlkw, end_child, no_child_no_file, ANY},
    {"F_SETLK", held_by_child, do_setlk, end_child, no_child_no_file, BY_ITSELF},
    {"lockf", held_by_child, do_lockf, end_child, no_child_no_file, ANY},
    {"lockf, F_TLOCK", held_by_child, do_lockf_try, end_child, no_child_no_file, BY_ITSELF},
    {"msgrcv", new_messages, do_msgrcv, send_message, no_messages, RESTARTS_NOT},
    {"msgrcv, IPC_NOWAIT", new_messages, do_msgrcv_nowait, send_message, no_messages, BY_ITSELF},
    {"msgrcv, removed", new_messages, do_msgrcv_removed, no_messages, no_messages, 1 << COMES},
    {"msgsnd", full_messages, do_msgsnd, take_message, no_messages, RESTARTS_NOT},
    {"semop", new_semaphore, do_semop, post, no_semaphore, RESTARTS_NOT & ~(1 << CANCEL)},
    {"semop, IPC_NOWAIT", new_semaphore, do_semop_nowait, post, no_semaphore, BY_ITSELF},
    {"semop, removed", new_semaphore, do_semop_removed, no_semaphore, no_semaphore, 1 << COMES},
    {"semtimedop", new_semaphore, do_semtimedop, post, no_semaphore, RESTARTS_NOT & ~(1 << CANCEL)},
    {"semtimedop, short", new_semaphore, do_semtimedop_short, post, no_semaphore, BY_ITSELF},
    {"mq_receive", new_queue, do_mq_receive, queue_one, no_queue, ANY},
    {"mq_timedreceive", new_queue, do_mq_timedreceive, queue_one, no_queue, ANY},
    {"mq_timedreceive, short", new_queue, do_mq_timedreceive_short, queue_one, no_queue, BY_ITSELF},
    {"mq_send", full_queue, do_mq_send, take_one, no_queue, ANY},
    {"mq_timedsend", full_queue, do_mq_timedsend, take_one, no_queue, ANY},
    {"shared futex", new_word, do_futex, change_word, no_word, (ANY & ~(1 << CANCEL))},
};

static void run_call(const struct item* i, char* out) {
  const struct call* c = i->call;
  struct what w;
  memset(&w, 0, sizeof w);
  c->begin(&w);
  w.j.call = c->call;
  if (i->event == READY) c->happen(&w);
  if (i->event == READY && c->happen == end_child) pause_ms(2);
  start_job(&w.j);
  switch (i->event) {
    case EINTR_: interrupt_job(&w.j, kInterrupts); break;
    case RESTARTED: signal_job(&w.j, kRestarts); break;
    case CANCEL: pthread_cancel(w.j.thread); break;
  }
  if (i->event == COMES || i->event == RESTARTED) c->happen(&w);
  end_job(&w.j, out);
  c->end(&w);
}

// ---- calls that end by themselves ----

#define SAY(call) \
  do { \
    errno = 0; \
    long r_ = (call); \
    if (r_ < 0) at += sprintf(at, " %s", error_name(errno)); \
    else at += sprintf(at, " %ld", r_); \
  } while (0)
static void run_processes(const struct item* i, char* out) {
  char* at = out;
  SAY(system("exit 3"));
  SAY(system(NULL) != 0);
  SAY(system("kill -9 $$"));
  FILE* f = popen("cat >/dev/null; exit 4", "w");
  fputs("hello", f);
  SAY(pclose(f));
  SAY(waitpid(-2, NULL, 0) < 0 ? -1 : 0);
  SAY(waitpid(getpid(), NULL, WNOHANG));
  SAY(waitpid(getpid(), NULL, 0x4000));
  SAY(waitid(P_PID, getpid(), NULL, WEXITED));
  SAY(waitid(P_PID, getpid(), NULL, 0));
}

static void* volatile nowhere = (void*)8;  // volatile, since compilers warn of an address that they can see
static volatile int less = -1;

static char* synchronise_and_copy(struct what* w, char* at) {
  off64_t from = 0, to = 50;
  SAY(write(w->fd, "0123456789", 10));
  SAY(fsync(w->fd));
  SAY(fdatasync(w->fd));
  SAY(syncfs(w->fd));
  SAY(sync_file_range(w->fd, 0, 10, 7));
  SAY(copy_file_range(w->fd, &from, w->other, &to, 5, 0));
  SAY(from * 1000 + to);
  return at;
}
static char* read_and_write_at(struct what* w, char* at) {
  char name[200];
  SAY(pread(w->fd, name, 10, 3));
  SAY(pread(w->fd, name, 100, 50));
  SAY(memcmp(name, "01234", 5));
  SAY(pread(w->fd, name, 10, 1000));
  SAY(pread(w->fd, name, 10, -1));
  struct iovec two[2] = {{name, 3}, {name + 3, 4}};
  SAY(preadv(w->fd, two, 2, 2));
  SAY(memcmp(name, "2345678", 7));
  SAY(preadv(w->fd, two, 2, -1));
  SAY(preadv(w->fd, two, less, 0));
  SAY(pwritev(w->fd, two, 2, 200));
  SAY(lseek(w->fd, 0, SEEK_CUR));
  SAY(pread(w->fd, nowhere, 10, 0));
  SAY(pwrite(w->fd, "ab", 2, 100));
  SAY(lseek(w->fd, 0, SEEK_CUR));
  SAY(read(w->fd, name, 3));
  SAY(read(w->fd, nowhere, 3));
  SAY(flock(w->fd, 77));
  SAY(lockf(w->fd, 77, 0));
  return at;
}
static char* synchronise_memory(struct what* w, char* at) {
  void* m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
  SAY(msync(m, 4096, MS_SYNC));
  SAY(msync(m, 4096, MS_ASYNC));
  SAY(msync(m, 4096, MS_SYNC | MS_ASYNC));
  munmap(m, 4096);
  SAY(msync((void*)4096, 4096, MS_SYNC));  // never mapped. At the place of m, another thread may have memory by now.
  return at;
}
static void run_files(const struct item* i, char* out) {
  struct what w;
  char name[1], *at = out;
  new_file(&w);
  at = synchronise_and_copy(&w, at);
  at = read_and_write_at(&w, at);
  at = synchronise_memory(&w, at);
  no_file(&w);
  SAY(fsync(-1));
  SAY(pread(-1, name, 1, 0));
  SAY(flock(-1, LOCK_EX));
  SAY(syncfs(-1));
}

// Once a read was slow, the library makes the next ones in another way. The answers must be the same.
static void run_slow_files(const struct item* i, char* out) {
  struct what w;
  new_file(&w);
  void* aligned = aligned_alloc(4096, 1 << 20);
  assert(write(w.fd, aligned, 1 << 20) == 1 << 20 && fsync(w.fd) == 0);
  int direct = open(w.path, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct >= 0) {  // not every file system has it
    assert(pread(direct, aligned, 1 << 20, 0) == 1 << 20 && pread(direct, aligned, 4096, 8192) == 4096);
    close(direct);
  }
  free(aligned);
  no_file(&w);
  run_files(i, out);
}

static void run_names(const struct item* i, char* out) {
  struct addrinfo *a = NULL, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  struct hostent h, *found = NULL;
  char name[200], *at = out;
  int error = 0;
  SAY(getaddrinfo("127.0.0.1", "80", &hints, &a));
  freeaddrinfo(a);
  SAY(getaddrinfo("localhost", "80", &hints, &a));
  SAY(((struct sockaddr_in*)a->ai_addr)->sin_addr.s_addr == in.sin_addr.s_addr);
  freeaddrinfo(a);
  SAY(getaddrinfo("localhost", "no such service", &hints, &a) != 0);
  SAY(getnameinfo((void*)&in, sizeof in, name, sizeof name, NULL, 0, NI_NUMERICHOST));
  SAY(strcmp(name, "127.0.0.1"));
  SAY(gethostbyname_r("localhost", &h, name, sizeof name, &found, &error));
  SAY(found && *(unsigned*)h.h_addr == in.sin_addr.s_addr);
  SAY(gethostbyaddr_r(&in.sin_addr, 4, AF_INET, &h, name, sizeof name, &found, &error) == 0 && found);
}

static void run_terminals(const struct item* i, char* out) {
  char* at = out;
  struct termios t;
  struct ends e = open_ends(PTY, 0);
  SAY(tcdrain(e.a));
  SAY(tcgetattr(e.a, &t));
  SAY(tcsetattr(e.a, TCSADRAIN, &t));
  SAY(tcsetattr(e.a, TCSAFLUSH, &t));
  SAY(tcsetattr(e.a, 77, &t));
  SAY(tcdrain(-1));
  close_ends(&e);
}

int main(int argc, char** argv) {
  begin(argc, argv);
  for (int n = 0; n < (int)(sizeof calls / sizeof *calls); n++)
    for (int e = 0; e < kEvents; e++)
      if (calls[n].events >> e & 1) {
        struct item* i = add_item(run_call, calls[n].name, "", event_names[e]);
        i->call = &calls[n], i->event = e;
      }
  add_item(run_processes, "at once:", "processes", "");
  add_item(run_files, "at once:", "files", "");
  add_item(run_names, "at once:", "names", "");
  add_item(run_terminals, "at once:", "lines", "");
  add_item(run_slow_files, "at once:", "files that are slow", "");
  return run_items();
}
