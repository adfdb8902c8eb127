// SPDX-License-Identifier: MIT
// The process's first threads are made while the loader's lock is held, by code that dlopen() and dlclose() run. That code waits for the
// threads, which make calls of all kinds for the first time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char source[] =
    "#define _GNU_SOURCE\n"
    "#include <fcntl.h>\n#include <poll.h>\n#include <pthread.h>\n#include <sched.h>\n#include <semaphore.h>\n#include <signal.h>\n"
    "#include <stdio.h>\n#include <sys/socket.h>\n#include <sys/wait.h>\n#include <time.h>\n#include <unistd.h>\n"
    "static pthread_mutex_t robust; static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;\n"
    "static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER; static int came;\n"
    "static void* calls(void* p) {\n"
    "  int pipes[2], ends[2], status, good = 0; char c = 'x'; sem_t s; sigset_t set; cpu_set_t cpus; pthread_attr_t a; struct timespec t;\n"
    "  usleep(100); good += pipe(pipes) == 0; good += write(pipes[1], &c, 1) == 1; good += read(pipes[0], &c, 1) == 1;\n"
    "  struct pollfd f = {pipes[1], POLLOUT, 0}; good += poll(&f, 1, 1000) == 1; sigemptyset(&set); sigaddset(&set, SIGUSR1);\n"
    "  good += pthread_sigmask(SIG_BLOCK, &set, NULL) == 0; good += kill(getpid(), 0) == 0; good += sched_yield() == 0;\n"
    "  int fd = open(\"/dev/null\", O_RDWR); good += fd >= 0 && dup2(fd, pipes[0]) == pipes[0] && close(fd) == 0;\n"
    "  sem_init(&s, 0, 0); good += sem_post(&s) == 0; good += sem_wait(&s) == 0; good += clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0;\n"
    "  good += pthread_getattr_np(pthread_self(), &a) == 0; good += sched_getaffinity(0, sizeof cpus, &cpus) == 0;\n"
    "  good += pthread_mutex_lock(&robust) == 0; good += pthread_mutex_unlock(&robust) == 0;\n"
    "  good += socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0; good += send(ends[0], &c, 1, 0) == 1; good += recv(ends[1], &c, 1, 0) == "
    "1;\n"
    "  pid_t child = fork(); if (child == 0) _exit(3); good += waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3;\n"
    "  pthread_mutex_lock(&m); came++; pthread_cond_broadcast(&cond); while (came < 4) pthread_cond_wait(&cond, &m); "
    "pthread_mutex_unlock(&m);\n"
    "  return (void*)(long)good;\n"
    "}\n"
    "static void threads(const char* when) {\n"
    "  pthread_t t[4], lost; long good = 0; void* r; pthread_mutexattr_t a;\n"
    "  pthread_mutexattr_init(&a); pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST); pthread_mutex_init(&robust, &a); came = 0;\n"
    "  if (WAITS) { for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, calls, NULL);\n"
    "    for (int i = 0; i < 4; i++) pthread_join(t[i], &r), good += (long)r; }\n"
    "  else pthread_create(&lost, NULL, (void* (*)(void*))usleep, NULL), pthread_detach(lost);\n" /* no code of what is about to go */
    "  printf(\"%s: %ld\\n\", when, good); fflush(stdout);\n"
    "}\n"
    "__attribute__((constructor)) static void begin(void) { if (BEGIN) threads(\"constructor\"); }\n"
    "__attribute__((destructor)) static void end(void) { if (END) threads(\"destructor\"); }\n";

int main() {
  const char* tmp = getenv("TMPDIR");
  char path[256], c[300], command[1024];
  snprintf(path, sizeof path, "%s/libconstructor-%d.so", tmp ? tmp : "/tmp", getpid());
  snprintf(c, sizeof c, "%s.c", path);
  FILE* f = fopen(c, "w");
  fputs(source, f);
  fclose(f);
  for (int how = 0; how < 6; how++) {
    int waits = how & 1, begin = how / 2 != 1, end = how / 2 != 0;
    snprintf(command, sizeof command, "%s -w -shared -fPIC -O1 -DWAITS=%d -DBEGIN=%d -DEND=%d %s -o %s",
             getenv("CC") ? getenv("CC") : "gcc", waits, begin, end, c, path);
    if (system(command) != 0) return 1;
    printf("waits %d, in constructor %d, in destructor %d\n", waits, begin, end);
    fflush(stdout);
    pid_t pid = fork();  // each in a process without threads
    if (pid == 0) {
      void* h = dlopen(path, RTLD_NOW);
      puts(h ? "loaded" : dlerror());
      dlclose(h);
      puts("closed");
      exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("status %x\n", status);
  }
  unlink(c);
  unlink(path);
  return 0;
}
