#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# Fibers for some programs only: FIBERTHREAD_ONLY, FIBERTHREAD_NOT, the files of settings, doctor's account of them, and systemd's drop-ins.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
ft=$BUILD/fiberthread
mkdir -p "$TMP/bin" "$TMP/config"
gcc -O2 -w -pthread -o "$TMP/bin/many" "$top/tests/programs/src/many.c" || fail "gcc failed"
ln -s many "$TMP/bin/alias"
conf=$TMP/config/fiberthread.conf
unset FIBERTHREAD_ONLY FIBERTHREAD_NOT

# on WHAT [NAME=VALUE…] COMMAND…: fails unless the command, preloaded, runs on fibers (yes) or on libc's threads (no), with status 0.
on() {
  local what=$1 got=no
  shift
  env LD_PRELOAD="$LIBRARY" XDG_CONFIG_HOME="$TMP/config" FIBERTHREAD_STATS=1 "$@" >"$TMP/out" 2>"$TMP/err" || fail "$*: status $?: $(cat "$TMP/err")"
  grep -q 'fibers=[1-9]' "$TMP/err" && got=yes
  [ $got = "$what" ] || fail "$*: on fibers: $got, expected: $what; $(cat "$TMP/err")"
}
many="$TMP/bin/many 10"

on yes $many
on yes FIBERTHREAD_ONLY=many $many
on yes FIBERTHREAD_ONLY=a:many:b $many
on no FIBERTHREAD_ONLY=man:any:many2:bin/many $many
on yes FIBERTHREAD_ONLY="m*y" $many
on no FIBERTHREAD_ONLY="m*n" $many
on yes FIBERTHREAD_ONLY="$TMP/bin/*" $many
on yes FIBERTHREAD_ONLY="$TMP/bin/many" $many
on no FIBERTHREAD_ONLY=/bin/many $many
on yes FIBERTHREAD_ONLY= FIBERTHREAD_NOT= $many
on no FIBERTHREAD_NOT=many $many
on yes FIBERTHREAD_NOT=other FIBERTHREAD_ONLY=many $many
on no FIBERTHREAD_NOT=many FIBERTHREAD_ONLY=many $many
# By the name of the file, and by the name that it is called by.
on yes FIBERTHREAD_ONLY=many "$TMP/bin/alias" 10
on yes FIBERTHREAD_ONLY=alias "$TMP/bin/alias" 10
on no FIBERTHREAD_ONLY=alias $many
# A child is another program.
on yes FIBERTHREAD_ONLY=many sh -c "$many"
on no FIBERTHREAD_ONLY=sh sh -c "$many"
# A script, by its own name and by its interpreter's.
printf '#!%s\nimport threading\nthreading.Thread(target=print, args=("in a thread",)).start()\n' "$(command -v python3)" >"$TMP/bin/script.py"
chmod +x "$TMP/bin/script.py"
on yes FIBERTHREAD_ONLY=script.py "$TMP/bin/script.py"
on yes FIBERTHREAD_ONLY="python3*" "$TMP/bin/script.py"
on no FIBERTHREAD_ONLY=python "$TMP/bin/script.py"

# Files.
settings() { printf "$@" >"$conf"; }
settings '# one program\n\n  only = many \r\n; the end'
on yes $many
on no "$TMP/bin/script.py"
on yes FIBERTHREAD_ONLY= "$TMP/bin/script.py"
settings 'workers = 2\n[many]\nworkers=3\nstats = json\n[other:man*]\nWORKERS = 1\n[nobody]\nnptl = 1\nworkers=7'
env LD_PRELOAD="$LIBRARY" XDG_CONFIG_HOME="$TMP/config" $many 2>"$TMP/err" >/dev/null
grep -q '"slots":1,' "$TMP/err" || fail "options of a section: $(cat "$TMP/err")"
env LD_PRELOAD="$LIBRARY" XDG_CONFIG_HOME="$TMP/config" FIBERTHREAD_WORKERS=5 $many 2>"$TMP/err" >/dev/null
grep -q '"slots":5,' "$TMP/err" || fail "a variable comes before the files: $(cat "$TMP/err")"
mkdir -p "$TMP/home/.config"
cp "$conf" "$TMP/home/.config/"
env -u XDG_CONFIG_HOME HOME="$TMP/home" LD_PRELOAD="$LIBRARY" $many 2>"$TMP/err" >/dev/null
grep -q '"slots":1,' "$TMP/err" || fail "the file in ~/.config: $(cat "$TMP/err")"
settings '[many]\nnptl = 1\n'
on no $many
on yes FIBERTHREAD_NPTL=0 $many
rm "$conf"

# A broken file: one line, libc's threads, and the program runs.
broken() { # the line after the file's name
  on no $many
  [ "$(grep -v ' fibers=0 ' "$TMP/err")" = "fiberthread: $conf$1; this program's threads stay libc's" ] || fail "$1: $(cat "$TMP/err")"
}
settings 'workers = 2\n\nwokers = 3\n' && broken ':3: WOKERS is no option (nearest: WORKERS)'
settings '[other]\nworkers = many' && broken ':2: WORKERS=many is not a number from 1 to 1024'
settings 'workers' && broken ':1: neither "name = value" nor "[program]"'
settings '[many\n' && broken ':1: a line that begins with [ must end with ]'
settings '[]\n' && broken ':1: no program between [ and ]'
settings 'workers = 2\n\0\n' && broken ':2: a zero byte'
rm "$conf"; mkfifo "$conf" && broken ': it is no regular file'
rm "$conf"; mkdir "$conf" && broken ': it is no regular file'
rmdir "$conf"; head -c 100000 /dev/zero | tr '\0' '#' >"$conf" && broken ': it is too large'
if [ "$(id -u)" = 0 ]; then
  settings 'workers = 2' && chown 12345 "$conf" && broken ': it belongs to another user'
fi
rm -f "$conf"; ln -s "$conf" "$conf" && broken ': it cannot be opened'
rm "$conf"; : >"$conf" && on yes $many
head -c 30000 /dev/urandom >"$conf" && on no $many
rm "$conf"

# The system's file, in a mount namespace of our own. Programs with more rights than their caller read no file.
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null && id -u nobody >/dev/null 2>&1; then
  readable_library
  cp "$TMP/bin/many" "$TMP/bin/setuid" && chmod 4755 "$TMP/bin/setuid" && chmod 755 "$TMP" "$TMP/bin" "$TMP/config"
  mkdir "$TMP/etc"
  cp /etc/passwd /etc/group /etc/ld.so.cache "$TMP/etc/"
  printf 'workers = 3\nstats = json\n' >"$TMP/etc/fiberthread.conf"
  in_etc() { TMP=$TMP LIBRARY=$LIBRARY unshare --mount bash -c 'mount --bind "$TMP/etc" /etc && '"$1"; }
  in_etc 'LD_PRELOAD=$LIBRARY HOME=/nonexistent "$TMP/bin/many" 10' >/dev/null 2>"$TMP/err"
  grep -q '"slots":3,' "$TMP/err" || fail "/etc/fiberthread.conf: $(cat "$TMP/err")"
  printf 'workers = 2\n' >"$conf"
  in_etc 'LD_PRELOAD=$LIBRARY XDG_CONFIG_HOME=$TMP/config "$TMP/bin/many" 10' >/dev/null 2>"$TMP/err"
  grep -q '"slots":2,' "$TMP/err" || fail "the user's file comes after the system's: $(cat "$TMP/err")"
  # A daemon's HOME may be one that it cannot search.
  mkdir -m 700 "$TMP/closed" && printf 'workers = none\n' >"$TMP/closed/fiberthread.conf"
  setpriv --reuid=nobody --clear-groups env LD_PRELOAD="$LIBRARY" XDG_CONFIG_HOME="$TMP/closed" FIBERTHREAD_STATS=1 "$TMP/bin/many" 10 >/dev/null 2>"$TMP/err"
  grep -q 'fibers=[1-9]' "$TMP/err" && ! grep -q conf "$TMP/err" || fail "a closed home: $(cat "$TMP/err")"
  printf 'workers = none\n' >"$TMP/etc/fiberthread.conf"
  in_etc 'setpriv --reuid=nobody --clear-groups env LD_PRELOAD=$LIBRARY "$TMP/bin/setuid" 10' >/dev/null 2>"$TMP/err" ||
    fail "a setuid program beside a broken file: $(cat "$TMP/err")"
  ! grep -q conf "$TMP/err" || fail "a setuid program reads files: $(cat "$TMP/err")"
  rm "$conf"
fi

# doctor and the launcher.
export XDG_CONFIG_HOME=$TMP/config
settings '[many]\nworkers = 3\n[script.py]\nonly = none\n'
"$ft" doctor "$TMP/bin/many" >"$TMP/out" || fail "doctor: $(cat "$TMP/out")"
grep -qF "  WORKERS = 3, by $conf:2" "$TMP/out" || fail "doctor does not say where a setting comes from: $(cat "$TMP/out")"
FIBERTHREAD_NOT="m*" "$ft" doctor "$TMP/bin/many" >"$TMP/out" && fail "doctor and FIBERTHREAD_NOT"
grep -q 'NO   settings: FIBERTHREAD_NOT names this program' "$TMP/out" || fail "doctor: $(cat "$TMP/out")"
"$ft" doctor "$TMP/bin/script.py" >"$TMP/out" && fail "doctor and a script's own section"
grep -q "NO   settings: a file of settings has an \"only\"" "$TMP/out" || fail "doctor: $(cat "$TMP/out")"
settings 'only = other\nwokers = 1' && "$ft" doctor "$TMP/bin/many" >"$TMP/out" && fail "doctor and a broken file"
grep -qF "NO   settings: $conf:2: WOKERS is no option" "$TMP/out" || fail "doctor: $(cat "$TMP/out")"
settings 'only = other'
"$ft" --stats $many 2>&1 | grep -q 'fibers=[1-9]' || fail "the launcher's user has asked for fibers by name"
"$ft" doctor >"$TMP/out" || fail "doctor beside an \"only\": $(cat "$TMP/out")"
"$ft" --only=other --stats $many >"$TMP/out" 2>&1
grep -q 'many: no fibers: FIBERTHREAD_ONLY does not name this program' "$TMP/out" || fail "--only: $(cat "$TMP/out")"
settings 'not = many'
"$ft" $many 2>&1 | grep -q 'no fibers: a file of settings has a "not"' || fail "the launcher is silent"
rm "$conf"

# Services.
units=$TMP/root/lib/systemd/system
mkdir -p "$units" "$TMP/root/etc/systemd/system/two.service.d" "$TMP/root/usr/bin"
printf '[Service]\nExecStartPre=/bin/true\nExecStart=-/usr/sbin/oned \\\n  --option\nEnvironment="A=1" LD_PRELOAD=/x/libjemalloc.so.2\n' >"$units/one.service"
printf '[Service]\nExecStart=/usr/bin/twod-start\n' >"$units/two@.service"
printf '#!/bin/sh\n' >"$TMP/root/usr/bin/twod-start"
service() { # status, text in the output, arguments
  local status=$1 text=$2
  shift 2
  "$ft" "$@" >"$TMP/out" 2>&1
  [ $? = "$status" ] && grep -qF -- "$text" "$TMP/out" || fail "fiberthread $*: $(cat "$TMP/out")"
}
root=--root=$TMP/root file=$TMP/root/etc/systemd/system/one.service.d/fiberthread.conf
service 0 'Environment="FIBERTHREAD_ONLY=oned"' enable $root one workers=4
grep -qF "Environment=\"LD_PRELOAD=$BUILD/libfiberthread.so" "$TMP/out" && grep -qF ':/x/libjemalloc.so.2"' "$TMP/out" &&
  grep -qF 'Environment="FIBERTHREAD_WORKERS=4"' "$TMP/out" || fail "enable: $(cat "$TMP/out")"
[ ! -e "$file" ] || fail "enable writes without --write"
service 0 'is written' enable $root --write one.service only=oned:java
grep -qF 'Environment="FIBERTHREAD_ONLY=oned:java"' "$file" || fail "the drop-in: $(cat "$file")"
service 0 'is written' enable $root --write one # again; what was written before does not count as the unit's own
[ "$(grep -o libfiberthread "$file" | wc -l)" = 1 ] || fail "twice: $(cat "$file")"
service 0 'add --write' disable $root one
service 0 'is removed' disable $root --write one
[ ! -e "$file" ] && [ ! -e "${file%/*}" ] || fail "disable leaves something"
service 0 'nothing to take back' disable $root --write one
mkdir -p "${file%/*}" && echo '[Service]' >"$file"
service 1 'was not written by this command' enable $root --write one
service 1 'stays' disable $root --write one
service 0 'started by a script' enable $root two@a
! grep -q ONLY "$TMP/out" || fail "a script's own name only: $(cat "$TMP/out")"
service 127 'there is no three.service' enable $root three
service 2 'nearest: WORKERS' enable $root one wokers=4
service 2 'not a number' enable $root one workers=many
service 2 'usage' enable
service 2 'is no name' enable $root ../one
exit 0
