#!/bin/bash
# SPDX-License-Identifier: MIT
# Debian's programs for AArch64, preloaded under the emulator, give the same bytes, lines and status as on NPTL under the same emulator.
# They come from this machine's release, and are fetched once into $BUILD/aarch64/root. Without a network or the emulator the test is
# skipped. packages: python3
. "$(dirname "$0")/../lib.sh"
emulator=$(command -v qemu-aarch64-static qemu-aarch64 | head -n 1)
[ -n "$emulator" ] || skip "no emulator of AArch64 is installed"
library=$BUILD/aarch64/libfiberthread.so
[ -e "$library" ] || skip "the library is not built for AArch64: make CROSS=aarch64 all"
need python3
root=$BUILD/aarch64/root
fetch() {
  local state=$BUILD/aarch64/apt deb
  need apt-get
  need dpkg-deb
  rm -rf "$root" "$state"
  mkdir -p "$root/usr/lib" "$state/lists/partial" "$state/cache/archives/partial"
  ln -s usr/lib "$root/lib"
  : >"$state/status"
  # apt gets a state of its own, where nothing is installed. So it fetches all packages that the programs depend on, and the machine's state
  # stays as it is.
  local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=0 -o APT::Sandbox::User=root
    -o Acquire::Languages=none -o "Dir::State=$state" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache")
  (timeout 100 "${apt[@]}" update && timeout 150 "${apt[@]}" -y --download-only install pigz xz-utils python3 memcached) >"$TMP/apt" 2>&1 ||
    skip "the programs cannot be fetched: $(tail -n 1 "$TMP/apt")"
  for deb in "$state"/cache/archives/*.deb; do
    # memcached has scripts for perl, which do not run here. A package may have its files in /lib or in /usr/lib.
    case ${deb##*/} in perl* | libperl*) continue ;; esac
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink --no-same-owner -C "$root" || fail "$deb cannot be unpacked"
  done
  rm -rf "$state"
  touch "$root/.done"
}
[ -e "$root/.done" ] || fetch

# Two workers: each has a timer, and the emulator has 32.
nptl=(timeout -k 5 200 "$emulator" -L "$root")
fibers=("${nptl[@]}" -E "LD_PRELOAD=$library" -E FIBERTHREAD_WORKERS=2 -E FIBERTHREAD_STATS=1)
bin=$root/usr/bin
split_stderr() {
  grep '^fiberthread: ' "$TMP/stderr" >"$TMP/stats"
  grep -v '^fiberthread: ' "$TMP/stderr" >&2
}
# same FIBERS PROGRAM ARGUMENT…: fails unless NPTL and fibers give status 0 and the same output, which is in $TMP/fiber.out, with at least
# FIBERS fibers.
same() {
  local count=$1 program=$2
  shift 2
  "${nptl[@]}" "$bin/$program" "$@" >"$TMP/nptl.out" || fail "$program: status $? on NPTL"
  "${fibers[@]}" "$bin/$program" "$@" >"$TMP/fiber.out" 2>"$TMP/stderr" || fail "$program: status $?, 0 on NPTL: $(tail "$TMP/stderr")"
  split_stderr
  cmp "$TMP/nptl.out" "$TMP/fiber.out" || fail "$program: output differs"
  made_fibers "$count"
}
corpus 2

# pigz and xz start a thread only when all others are busy, so their number depends on the machine.
same 2 pigz -p 4 -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.gz"
same 2 pigz -dc "$TMP/corpus.gz"
cmp "$TMP/corpus" "$TMP/fiber.out" || fail "pigz: not what it was"

same 1 xz -T4 -1 --block-size=512KiB -c "$TMP/corpus"
cp "$TMP/fiber.out" "$TMP/corpus.xz"
same 1 xz -T4 -dc "$TMP/corpus.xz"
cmp "$TMP/corpus" "$TMP/fiber.out" || fail "xz: not what it was"

# The parts that fork or start other programs are left out: the emulator cannot fork a process with threads.
cp "$(dirname "$0")/../src/threads.py" "$TMP" || exit 1
same 64 python3 -B -c "import sys; sys.path.insert(0, '$TMP')
import threads as t
print(t.squares(), t.pool(), t.waits(), t.alarms(), t.sockets(), t.locals_())"
grep -q '^2664667000 124750 ' "$TMP/fiber.out" || fail "python3: $(cat "$TMP/fiber.out")"

# Four clients at once set, get, count and delete on the server, and print what it answers.
cat >"$TMP/clients.py" <<'END'
import concurrent.futures, hashlib, socket, sys

def client(n):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(150)
    connection.connect(sys.argv[1])
    stream, answers = connection.makefile("rwb"), []
    def ask(text, lines=1):
        stream.write(text)
        stream.flush()
        answers.extend(stream.readline() for _ in range(lines))
    for i in range(100):
        key = b"key-%d-%d" % (n, i)
        value = hashlib.sha256(key).hexdigest().encode() * (1 + i)
        ask(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        ask(b"get %s\r\n" % key, 3)
        if answers[-2] != value + b"\r\n":
            sys.exit(f"client {n}: {key} is {answers[-2]}")
        if i % 3 == 0:
            ask(b"delete %s\r\n" % key)
            ask(b"get %s\r\n" % key)
    ask(b"set count-%d 0 0 1\r\n0\r\n" % n)
    for i in range(50):
        ask(b"incr count-%d 3\r\n" % n)
        ask(b"incr common 1\r\n")
        answers.pop()  # this answer depends on the other clients
    return b"".join(answers)

with socket.socket(socket.AF_UNIX) as first:
    first.connect(sys.argv[1])
    first.sendall(b"set common 0 0 1\r\n0\r\n")
    assert first.recv(100) == b"STORED\r\n"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for answers in pool.map(client, range(4)):
            print(hashlib.sha256(answers).hexdigest(), answers[-5:])
    first.sendall(b"get common\r\n")
    print(first.recv(100))
END
# serve OUTPUT COMMAND…: runs memcached until the clients have finished and SIGTERM ends it. Its status is in $status.
serve() {
  local output=$1 pid i
  shift
  rm -f "$TMP/socket"
  "$@" "$bin/memcached" -t 2 -m 16 -c 64 -u "$(id -un)" -s "$TMP/socket" 2>"$TMP/stderr" &
  pid=$!  # the process of `timeout`, which passes the signal on and ends with the server's status
  for ((i = 0; i < 600; i++)); do
    [ -S "$TMP/socket" ] && break
    sleep 0.05
  done
  timeout 200 python3 "$TMP/clients.py" "$TMP/socket" >"$output" || fail "memcached: $output: $(cat "$output" "$TMP/stderr")"
  kill -TERM $pid
  wait $pid
  status=$?
}
serve "$TMP/nptl.out" "${nptl[@]}"
expected=$status
serve "$TMP/fiber.out" "${fibers[@]}"
split_stderr
[ $status = $expected ] || fail "memcached: SIGTERM ends it with status $status, $expected on NPTL"
diff "$TMP/nptl.out" "$TMP/fiber.out" || fail "memcached answers otherwise"
grep -qF "b'VALUE common 0 3\r\n200\r\n" "$TMP/fiber.out" || fail "memcached: $(cat "$TMP/fiber.out")"
made_fibers 3
