#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: clang cmake gdb libc++-dev pkg-config
# Tests what `make install` installs. Each public header compiles by itself and all together, in both languages, under both compilers, with
# both C++ libraries. A C program built by pkg-config and a C++ program built by CMake run on the library. The library is loaded once in a
# program that is linked with it, even if it is preloaded as well, by any name. gdb finds its script, and the launcher finds the library.
# Pages are found by each name.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
unset MAKEFLAGS MFLAGS MAKELEVEL CDPATH
prefix=/opt/fibers
at=$TMP/dest$prefix
make -C "$top" --no-print-directory -j1 install DESTDIR="$TMP/dest" PREFIX=$prefix >"$TMP/install" 2>&1 || { cat "$TMP/install"; fail "make install failed"; }
find "$TMP/dest" -type f | sed "s|^$at/||" | LC_ALL=C sort >"$TMP/list"
# The library is one file. The soname and the name for linking and preloading are links to it.
file=$(grep -E '^lib/libfiberthread\.so' "$TMP/list")
[[ $file =~ ^lib/libfiberthread\.so\.[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the library: $file"
soname=$(readelf -dW "$at/$file" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname =~ ^libfiberthread\.so\.[0-9]+$ && $file == lib/$soname.* ]] || fail "$file has the soname $soname"
for link in libfiberthread.so "$soname"; do
  [ "$(readlink "$at/lib/$link")" = "${file#lib/}" ] || fail "$link is no link to ${file#lib/}"
done
grep -qE '^include/fiberthread/(parking_lot|times)\.h$' "$TMP/list" && fail "headers of the inside were installed"

# ---- headers ----
strict="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I$at/include"
cd "$TMP" || exit
all=all.h
for h in "$at"/include/fiberthread/*.h; do
  name=$(basename "$h")
  echo "#include <fiberthread/$name>" >"one_$name.cpp"
  cat "one_$name.cpp" >>$all
done
echo '#include <fiberthread/fiberthread.h>' >c.c
echo "#include \"$all\"" >all.cpp
ls one_*.cpp | xargs -P 2 -n 1 g++ -std=c++20 $strict || fail "a header does not compile by itself"
# libc++ is the C++ library whose headers include the least.
ls one_*.cpp | xargs -P 2 -n 1 clang++ -std=c++2b -stdlib=libc++ $strict || fail "a header does not compile by itself with libc++"
status=0
for compiler in g++ clang++ "clang++ -stdlib=libc++"; do
  for mode in "-std=c++17" "-std=c++17 -fno-exceptions -fno-rtti" "-std=c++20" "-std=c++20 -fno-exceptions -fno-rtti" "-std=c++20 -DFIBERTHREAD_DEBUG_CHECKS" -std=c++2b; do
    $compiler $mode $strict all.cpp || { echo "$compiler $mode: the headers do not compile"; status=1; }
  done
done
for compiler in gcc clang; do
  for mode in -std=c11 -std=c17 -std=c2x -std=gnu11; do
    $compiler $mode $strict -Wstrict-prototypes c.c || { echo "$compiler $mode: fiberthread.h does not compile"; status=1; }
  done
done
[ $status = 0 ] || exit 1

# ---- a C program by pkg-config ----
export PKG_CONFIG_SYSROOT_DIR=$TMP/dest PKG_CONFIG_PATH=$at/lib/pkgconfig
flags=$(pkg-config --cflags --libs fiberthread) || fail "pkg-config does not find it"
case $flags in *include/fiberthread*) fail "pkg-config names a directory that hides <semaphore.h>: $flags" ;; esac
cat >program.c <<'C'
#include <fiberthread/fiberthread.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
static sem_t sem;
static void *fiber(void *p) {
  sem_post(&sem);
  return fiberthread_yield() == 0 ? p : NULL;
}
int main(void) {
  fiberthread_t f;
  fiberthread_statistics_t s;
  void *result;
  pthread_t t;
  sem_init(&sem, 0, 0);
  if (fiberthread_spawn(&f, NULL, fiber, "C runs") != 0 || sem_wait(&sem) != 0) return 1;
  fiberthread_wakeup(f);
  if (fiberthread_join(f, &result) != 0) return 2;
  if (pthread_create(&t, NULL, fiber, "threads too") != 0) return 3;
  fiberthread_wakeup(fiberthread_of(t));
  if (pthread_join(t, NULL) != 0) return 4;
  fiberthread_get_statistics(&s);
  printf("%s, %d fibers\n", (char *)result, (int)s.spawned);
  return 0;
}
C
gcc -std=c11 -Wall -Wextra -Werror program.c -o program $flags || fail "the C program does not build"
said=$(LD_LIBRARY_PATH=$at/lib timeout 20 ./program) || fail "the C program: $?"
[ "$said" = "C runs, 2 fibers" ] || fail "the C program says: $said"

# ---- linked and preloaded: one library, by any name ----
[ "$(readelf -dW program | grep -c "(NEEDED).*\[$soname\]")" = 1 ] || fail "the C program does not need $soname"
cat >loaded.c <<'C'
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <string.h>
static int one(struct dl_phdr_info *o, size_t size, void *count) {
  (void)size;
  *(int *)count += strstr(o->dlpi_name, "libfiberthread") != NULL;
  return 0;
}
int main(void) {
  int count = 0;
  dl_iterate_phdr(one, &count);
  printf("%d\n", count);
  return 0;
}
C
gcc -Wall -Wextra -Werror loaded.c -o loaded $flags || fail "the program that counts libraries does not build"
cp "$LIBRARY" libfiberthread.so
for preload in "$at/lib/libfiberthread.so" "$at/lib/$soname" "$at/$file" libfiberthread.so "$soname" "$LIBRARY" "$TMP/libfiberthread.so" "libfiberthread.so $soname"; do
  said=$(LD_PRELOAD=$preload LD_LIBRARY_PATH=$at/lib timeout 20 ./loaded 2>&1) || fail "linked, and preloaded as $preload: $?: $said"
  [ "$said" = 1 ] || fail "linked, and preloaded as $preload: the library is loaded $said times"
  said=$(LD_PRELOAD=$preload LD_LIBRARY_PATH=$at/lib timeout 20 ./program 2>&1) || fail "linked, and preloaded as $preload: $?: $said"
  [ "$said" = "C runs, 2 fibers" ] || fail "linked, and preloaded as $preload, the C program says: $said"
done
# The same in a build directory.
gcc loaded.c -o loaded_here -Wl,--no-as-needed "$LIBRARY" -Wl,-rpath,"${LIBRARY%/*}" || fail "a program does not link with $LIBRARY"
for preload in "" "$LIBRARY"; do
  [ "$(LD_PRELOAD=$preload timeout 20 ./loaded_here)" = 1 ] || fail "in the build directory, preloaded as \"$preload\", it is not loaded once"
done

# ---- gdb's script: found by the name of the file that the links lead to, here below a directory of our own ----
scripts=share/gdb/auto-load$prefix/lib
grep -qx "$scripts/${file#lib/}-gdb.py" "$TMP/list" || fail "gdb's script is not there by the library's name"
if gdb -nx -batch -ex 'python print(1)' 2>/dev/null | grep -q 1; then
  mkdir -p "auto-load$at" && cp -r "$at/$scripts" "auto-load$at/" || fail "cp"
  for preload in "" "$at/lib/libfiberthread.so"; do
    gdb -nx -batch -iex 'set debuginfod enabled off' -iex "set auto-load scripts-directory $TMP/auto-load" -iex "set auto-load safe-path $TMP" \
      -ex 'set startup-with-shell off' -ex "set environment LD_LIBRARY_PATH $at/lib" ${preload:+-ex "set environment LD_PRELOAD $preload"} \
      -ex 'break main' -ex run -ex 'info fibers' ./program </dev/null >gdb.log 2>&1
    grep -q 'fiber [0-9]* (main)' gdb.log || fail "gdb does not find its script by itself: $(cat gdb.log)"
  done
fi

# ---- a C++ program by CMake, of two files, since all is inline ----
mkdir cmake && cp $all cmake/
cat >cmake/CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.13)
project(program CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(fiberthread 0.1 REQUIRED)
find_package(fiberthread 99 QUIET)
if(fiberthread_FOUND)
  message(FATAL_ERROR "version 99 was found")
endif()
find_package(fiberthread REQUIRED)
add_executable(program main.cpp other.cpp)
target_link_libraries(program fiberthread::fiberthread)
C
cat >cmake/main.cpp <<'C'
#include "all.h"
#include <cstdio>
int other();
int main() {
  int sum = 0;
  fiberthread::Fiber f = fiberthread::Fiber::spawn([&](int n) { sum = n + other(); }, 40);
  if (f.join() != 0) return 1;
  std::printf("C++ runs, %d\n", sum);
}
C
cat >cmake/other.cpp <<'C'
#include "all.h"
int other() {
  fiberthread::CancelToken token;
  token.cancel();
  fiberthread::CancelToken::Scope scope(token);
  return fiberthread::Fiber::cancelled() ? 2 : 0;
}
C
cmake -S cmake -B cmake/build -DCMAKE_PREFIX_PATH="$at" >cmake.log 2>&1 && cmake --build cmake/build >>cmake.log 2>&1 || { cat cmake.log; fail "CMake fails"; }
said=$(timeout 20 cmake/build/program) || fail "the C++ program: $?"
readelf -dW cmake/build/program | grep -q "(NEEDED).*\[$soname\]" || fail "the C++ program does not need $soname"
[ "$said" = "C++ runs, 42" ] || fail "the C++ program says: $said"

# ---- where distributions have it: the library's directory below lib, without the name for linking, which is in another package there ----
lib=/usr/lib/$(uname -m)-linux-gnu
multi=$TMP/multi
make -C "$top" --no-print-directory -j1 install DESTDIR="$multi" PREFIX=/usr LIBDIR=$lib >"$TMP/install" 2>&1 || { cat "$TMP/install"; fail "make install LIBDIR=$lib failed"; }
found=$(find "$multi" -type f | sed "s|^$multi/usr/||; s|^${lib#/usr/}/|lib/|; s|auto-load$lib/|auto-load$prefix/lib/|" | LC_ALL=C sort)
[ "$found" = "$(cat "$TMP/list")" ] || fail "LIBDIR=$lib: other files: $(diff <(echo "$found") "$TMP/list")"
grep -rlE '@[A-Z_]+@' "$multi/usr/lib" "$at/lib" --include='*.pc' --include='*.cmake' && fail "a word is not filled in"
flags=$(PKG_CONFIG_SYSROOT_DIR=$multi PKG_CONFIG_PATH=$multi$lib/pkgconfig pkg-config --cflags --libs fiberthread) || fail "pkg-config does not find it in $lib"
gcc program.c -o program_multi $flags -I"$multi/usr/include" -L"$multi$lib" || fail "the C program does not build with $lib"
rm -rf cmake/build
cmake -S cmake -B cmake/build -DCMAKE_PREFIX_PATH="$multi/usr" -DCMAKE_LIBRARY_ARCHITECTURE="${lib##*/}" >cmake.log 2>&1 && cmake --build cmake/build >>cmake.log 2>&1 ||
  { cat cmake.log; fail "CMake fails with $lib"; }
grep -qE "^fiberthread_DIR:PATH=$multi" cmake/build/CMakeCache.txt || fail "CMake takes another library: $(grep ^fiberthread_DIR cmake/build/CMakeCache.txt)"
[ "$(timeout 20 cmake/build/program)" = "C++ runs, 42" ] || fail "the C++ program does not run with $lib"
rm "$multi$lib/libfiberthread.so"
[ "$(LD_LIBRARY_PATH=/nowhere timeout 20 "$multi/usr/bin/fiberthread" ./program_multi)" = "C runs, 2 fibers" ] || fail "the launcher does not find the library in $lib"
gcc -g -pthread -o account "$top/tests/explore/account.c" || fail "gcc failed"
timeout 100 "$multi/usr/bin/fiberthread" explore -n 300 ./account >explored 2>&1
[ $? = 1 ] || fail "explore finds no failure where it is installed: $(cat explored)"
[ -e "$multi$lib/fiberthread-explore/fiberthread-tsan/libtsan.so.2" ] || fail "the names of ThreadSanitizer's run-time lead nowhere"
version=$(timeout 20 "$at/bin/fiberthread" --version)
grep -q "^fiberthread (${version#fiberthread }[)~+-]" "$top/debian/changelog" || fail "debian/changelog begins with another version than $version"

# ---- the rest ----
[ "$(timeout 20 "$at/bin/fiberthread" echo launched)" = launched ] || fail "the launcher does not run"
[ "$(timeout 20 "$at/bin/fiberthread" ./program)" = "C runs, 2 fibers" ] || fail "the launcher does not find the library"
for name in libfiberthread fiberthread_start Fiber FiberRef CancelToken; do
  MANPATH=$at/share/man man -w 3 "$name" >/dev/null || fail "man does not find $name"
done
