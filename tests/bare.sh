# SPDX-License-Identifier: MIT
# Bare systems of Debian, which have only git and make, for scripts that run as root from the top of the project. A system is made once by
# debootstrap, kept in ${TEST_CACHE:-~/.cache/fiberthread}/systems, and copied for each run.
top=$PWD
cache=${TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fiberthread}/systems

# Prints why no system can be run here, or nothing.
obstacle() {
  if [ "$(id -u)" != 0 ]; then echo "this needs root, to make a system and to mount in it"
  elif ! command -v debootstrap >/dev/null; then echo "debootstrap is not installed"
  elif ! unshare --mount --pid --ipc --fork mount -t tmpfs tmpfs /mnt 2>/dev/null; then echo "root may not mount here"
  fi
}
# Prints the Debian mirror that this machine uses, if it is a Debian system.
mirror() {
  local m=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' Origin:\ Debian 2>/dev/null | grep -v security | head -n 1)
  echo "$m" # if empty, debootstrap uses its default
}

base() { # release
  local to=$cache/$1/base
  [ -e "$to.done" ] && return
  rm -rf --one-file-system "$to"
  mkdir -p "$to"
  debootstrap --variant=minbase --include=git,make,ca-certificates "$1" "$to" $(mirror) >"$cache/$1/debootstrap.log" 2>&1 || return
  rm -rf "$to"/var/lib/apt/lists/*
  touch "$to.done"
}

# Runs commands in namespaces of their own, and there in a clone of HEAD. When the first process there ends, the kernel kills all others and
# removes the mounts.
inside() { # release, root, log, commands
  cp -L /etc/resolv.conf /etc/hosts "$2/etc/" 2>/dev/null
  # apt reaches the mirror as on this machine. No other setting of this machine is copied.
  apt-config dump 2>/dev/null | grep -iE '^Acquire::(https?|ftp|Retries|Check-Valid-Until)' >"$2/etc/apt/apt.conf.d/90machine"
  mkdir -p "$cache/$1/archives"
  [ -e "$2/root/fiberthread" ] || git clone -q "$top" "$2/root/fiberthread" || return
  ROOT=$2 ARCHIVES=$cache/$1/archives RUN=$4 unshare --mount --pid --ipc --fork --kill-child bash -euc '
    cd "$ROOT"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount -t tmpfs -o mode=755 tmpfs dev
    for n in null zero full random urandom tty; do
      touch dev/$n
      mount --bind /dev/$n dev/$n
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount --bind "$ARCHIVES" var/cache/apt/archives
    # The kept base may be older than the archive. Users have the packages that are in the archive now.
    exec chroot . /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
      DEBIAN_FRONTEND=noninteractive bash -c "
        (apt-get update && apt-get -y dist-upgrade && rm -rf /var/lib/apt/lists/*) >/root/upgrade.log 2>&1 || { tail -n 1 /root/upgrade.log; exit 99; }
        cd /root/fiberthread && $RUN"
  ' >"$3" 2>&1 </dev/null &
  child=$!
  wait $child
}

# Copies the bare system of a release. The copy is `root`.
root= child=
copy() { # release
  root=$(mktemp -d "$cache/$1/run.XXXXXX") && cp -a --reflink=auto "$cache/$1/base/." "$root/" || exit
}

# The first process of a namespace ignores all signals except SIGKILL, and the others end with it.
cleanup() {
  [ "$child" ] && kill -KILL "$child" && wait "$child"
  [ "$root" ] && rm -rf --one-file-system "$root"
} 2>/dev/null
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
