#!/bin/bash
# SPDX-License-Identifier: MIT
# glibc's own tests of threads have the same verdicts as on NPTL: all of nptl, and those of other folders that use threads, from the source
# package of the installed libc. They are built against that libc alone (glibc_suite.mk). Tests that may differ are in glibc_suite.txt, each
# with the reason. All run ROUNDS (1) times on each number of workers, some at once. TESTS_OF_GLIBC='nptl/tst-join1 …' runs these only.
# packages: dpkg-dev patch procps
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
list=$here/glibc_suite.txt
need dpkg-source
need gcc
need pkill
source_of glibc
built=${BUILT:-$BUILD/suites/glibc-tests}
readable_library
# A test belongs to the suite if its source, or a source that it includes, has one of these words.
threads='pthread_create|thrd_create|std::thread|SIGEV_THREAD|resolv_test_start|aio_(read|write|init)|lio_listio|mq_notify|getaddrinfo_a'

# make_in FOLDER …: glibc's makefile of this folder with our rules. The variables are those that glibc's configure would set.
make_in() {
  local folder=$1
  shift
  mkdir -p "$built/$folder"
  env -u MAKEFLAGS -u MAKELEVEL make -rRks --no-print-directory -C "$source/$folder" CC=gcc CXX=g++ cpu="$(uname -m)" ..=../ common-objpfx="$built/" \
    objpfx="$built/$folder/" build-shared=yes run-built-tests=yes have-thread-library=yes have-cxx-thread_local=yes have-z-execstack=yes \
    enable-hardcoded-path-in-tests=no have-GLIBC_2.31=yes have-GLIBC_2.33=yes libpthread-routines-var=routines librt-routines-var=routines \
    libanl-routines-var=routines libdl-routines-var=routines libresolv-routines-var=routines LDFLAGS-rdynamic=-rdynamic \
    no-as-needed=-Wl,--no-as-needed have-test-mtls-descriptor=gnu2 "$@"
}
# Prints the folder's tests that use threads.
thread_tests() { # folder
  local name file included f
  make_in "$1" suite-list 2>/dev/null | while read -r name file; do
    cd "$source/$1" && [ -e "$file" ] || continue
    included=
    for f in $(sed -nE 's/^# *include ["<]([^">]+\.c)[">].*/\1/p' "$file"); do
      for f in "${file%/*}/$f" "$f" "../$f"; do [ -e "$f" ] && included+=" $f" && break; done
    done
    [ "$1" = nptl ] || grep -qE "$threads" "$file" $included && echo "$name"
  done
}
# Builds all tests once. $built/tests has those that could be built, $built/missing the others.
build() {
  local folder names base=GLIBC_2.2.5 name
  [ -e "$built/.complete" ] && return
  [ "$(uname -m)" = x86_64 ] || base=GLIBC_2.17
  rm -rf "$built"
  mkdir -p "$built/malloc" "$built/nptl_db" "$built/linkobj"
  ln -s "$(gcc -print-file-name=libc_malloc_debug.so.0)" "$built/malloc/libc_malloc_debug.so"
  for name in libthread_db.so libthread_db.so.1; do ln -s "$(gcc -print-file-name=libthread_db.so.1)" "$built/nptl_db/$name"; done
  # Names that libc has for old programs alone get a library to link with. The loader finds them in libc, as they have no version there.
  nm -D --defined-only "$(gcc -print-file-name=libc.so.6)" | awk -v old="@$base" '{ name = $NF; sub(/@.*/, "", name) }
    $NF ~ /@@/ { new[name] } $NF == name old { names[name] }
    END { for (n in names) if (!(n in new)) printf ".globl %s\n.type %s, %%function\n%s:\n", n, n, n }' >"$built/old.s"
  gcc -shared -nostdlib -Wl,-soname,libdl.so.2 "$built/old.s" -o "$built/linkobj/libc.so" || fail "old names"
  # This reads the loader's own form of a library's description, for a check that holds anyway.
  sed -i 's/lm->l_type == lt_loaded && //' "$source/stdlib/tst-tls-atexit.c"
  # These repeat something so often that it takes minutes. The last one waits 5 s for each of many answers that do not come.
  sed -i 's/RETEST_TIMES \* 1000/RETEST_TIMES * 10/' "$source/nptl/tst-pthread-timedlock-lockloop.c"
  sed -i 's/iteration_count = 1000000/iteration_count = 10000/' "$source/sysdeps/pthread/tst-mutex10.c"
  sed -i 's/iterations = 10000/iterations = 500/' "$source/malloc/tst-mallocfork3.c"
  sed -i 's/type <= 65535/type <= 2000/' "$source/resolv/tst-resolv-qtypes.c"
  sed -i 's/nscount <= 3/nscount <= 2/' "$source/resolv/tst-resolv-rotate.c"
  # glibc's build makes these files. The tests need no more of them.
  : >"$source/Makeconfig" >"$source/config.h" >"$source/libof-iterator.mk"
  printf '#define %s\n' 'ABI_libpthread_GLIBC_2_0 1' 'ABI_libpthread_GLIBC_2_34 2' "VERSION_libpthread_GLIBC_2_0 $base" "VERSION_libc_GLIBC_2_0 $base" \
    >"$source/abi-versions.h"
  cp "$here/glibc_suite.mk" "$source/Rules"
  make_in support -j"$(nproc)" suite-support >"$built/log" 2>&1
  make_in support suite-archive >>"$built/log" 2>&1 || fail "glibc's support library does not build; see $built/log"
  for folder in "$source"/*/Makefile; do
    folder=$(basename "${folder%/Makefile}")
    case $folder in fbtl* | htl | hurd | mach | support) continue ;; esac
    names=$(thread_tests "$folder" | tr '\n' ' ')
    [ "$names" ] || continue
    make_in "$folder" -j"$(nproc)" suite names="$names" >>"$built/log" 2>&1
    for name in $names; do
      if [ -e "$built/$folder/$name.out" ]; then echo "$folder/$name" >>"$built/tests"; else echo "$folder/$name" >>"$built/missing"; fi
    done
  done
  touch "$built/.complete" "$built/missing"
}
# one MODE TEST: runs a test, with the library if the mode is WORKERS:ROUND, and keeps its status and output in $TMP/MODE/TEST. The file .out
# has the test's variables in its first line and its arguments in the second, as a shell would read them. The test's own time limit, which
# TIMEOUTFACTOR multiplies, finds hangs. Tests that may hang are not waited for that long.
one() {
  local mode=$1 test=$2 result=$TMP/$1/$2 factor=${TIMEOUTFACTOR:-10} library= variables arguments
  mkdir -p "${result%/*}"
  { read -r variables; read -r arguments; } <"$built/$test.out"
  grep -q "^$test " "$list" && factor=1
  case $mode in
    *:*) library="LD_PRELOAD=$LIBRARY" variables=${variables/LD_PRELOAD=/LD_PRELOAD=$LIBRARY:} ;;&
    [0-9]*) library+=" FIBERTHREAD_WORKERS=${mode%:*}" ;;
  esac
  cd "$source/${test%/*}" || exit
  # A session of its own, so that nothing of the test outlives it.
  setsid --wait bash -c "echo \$\$ >'$result.session'; exec timeout -k 5 3000 env LD_LIBRARY_PATH='$built/${test%/*}' TIMEOUTFACTOR=$factor $library $variables '$built/$test' $arguments" \
    >"$result.text" 2>&1 </dev/null
  echo $? >"$result"
  pkill -KILL -s "$(cat "$result.session")"
}
run() { # mode, tests
  local mode=$1
  shift
  [ $# = 0 ] || printf '%s\n' "$@" | xargs -P "${AT_ONCE:-$(($(nproc) * 6))}" -I{} bash -c "one $mode {}"
}
verdict() { cat "$TMP/$1/$2"; }
build
export -f one
export TMP LIBRARY source built list
mapfile -t tests < <(if [ "${TESTS_OF_GLIBC:-}" ]; then printf '%s\n' $TESTS_OF_GLIBC; else cat "$built/tests"; fi)
modes=$(for ((i = 0; i < ${ROUNDS:-1}; i++)); do echo "1:$i 2:$i all:$i"; done)
run nptl "${tests[@]}"
# From here on the longest come first, so that nothing waits for them in the end.
mapfile -t tests < <(for test in "${tests[@]}"; do
  echo "$(($(stat -c %Y "$TMP/nptl/$test") - $(stat -c %Y "$TMP/nptl/$test.session"))) $test"
done | sort -rn | cut -d' ' -f2)
for mode in $modes; do run $mode "${tests[@]}"; done
# A verdict that differs gets a second chance to be NPTL's own.
different=()
for test in "${tests[@]}"; do
  for mode in $modes; do [ "$(verdict $mode $test)" = "$(verdict nptl $test)" ] || { different+=("$test") && break; }; done
done
run second "${different[@]}"
bad=0 excepted=0
for test in "${tests[@]}"; do
  differs=
  for mode in $modes; do
    [ "$(verdict $mode $test)" = "$(verdict nptl $test)" ] || [ "$(verdict $mode $test)" = "$(verdict second $test)" ] ||
      differs+=" $(verdict $mode $test) on ${mode%:*} workers,"
  done
  reason=$(grep "^$test " "$list")
  if [ "$differs" ] && [ "$reason" ]; then
    excepted=$((excepted + 1))
  elif [ "$differs" ]; then
    echo "$test:$differs $(verdict nptl $test) on NPTL"
    for mode in $modes; do [ "$(verdict $mode $test)" = "$(verdict nptl $test)" ] || { tail -n 5 "$TMP/$mode/$test.text" && break; }; done
    bad=$((bad + 1))
  elif [ "$reason" ]; then
    echo "agrees now, but is in glibc_suite.txt: $reason"
  fi
done
echo "${#tests[@]} tests, $bad differ, $excepted may differ; $(wc -l <"$built/missing") do not build: $(tr '\n' ' ' <"$built/missing")"
[ $bad = 0 ]
