// SPDX-License-Identifier: MIT
// $ORIGIN in dlopen(), in a program without a search path of its own. What is opened is the program itself, which libc refuses.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void* opens(void* file) {
  void* handle = dlopen(file, RTLD_NOW);
  const char* error = handle ? ": opened" : dlerror();
  printf("%s%s\n", (char*)file, strstr(error, ": "));  // without the name, in which the library has replaced $ORIGIN
  return NULL;
}

int main() {
  const char* files[] = {"$ORIGIN/dlopen_origin", "${ORIGIN}/dlopen_origin", "$ORIGIN/none", "$ORIGIN", "$ORIGINAL/none"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    opens((void*)files[i]);
    pthread_t t;
    pthread_create(&t, NULL, opens, (void*)files[i]);
    pthread_join(t, NULL);
  }
  return 0;
}
