#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: binutils
# Each object of the library is marked as having landing pads for all indirect jumps, IBT on x86-64 and BTI on AArch64. So is the library,
# if the compiler's own parts in it are marked. Objects from assembly, and so the library, are not marked as keeping a shadow stack.
. "$(dirname "$0")/../lib.sh"
need readelf
# Prints the marks. They are in a note, or (GCC 16 for AArch64) in a section of attributes, which the linker turns into a note.
properties() { LC_ALL=C readelf -nA "$1" 2>/dev/null | sed -n '/feature:/p; s/^ *Tag_Feature_\(.*\):.*(0x1)/\1/p'; }
check() { # build directory, property, the compiler's archive
  local object found=0 compilers
  [ -d "$1/obj" ] || return 0
  while read -r object; do
    properties "$object" | grep -qw "$2" || fail "$object has no $2"
    case $object in *.S.o) properties "$object" | grep -qwE 'SHSTK|GCS' && fail "$object says that it keeps a shadow stack" ;; esac
    found=$((found + 1))
  done < <(find "$1/obj" -name '*.o' ! -path '*/launcher/*')
  [ $found -ge 80 ] || fail "$1: only $found objects"
  properties "$1/libfiberthread.so" | grep -qwE 'SHSTK|GCS' && fail "$1/libfiberthread.so says that it keeps a shadow stack"
  compilers=$(LC_ALL=C readelf -n "$3" 2>/dev/null | grep -c "feature:.*$2")
  if [ "$(ar t "$3" | wc -l)" = "$compilers" ]; then
    properties "$1/libfiberthread.so" | grep -qw "$2" || fail "$1/libfiberthread.so has no $2"
  fi
}
case $(uname -m) in
  x86_64) check "$BUILD" IBT "$(gcc -print-libgcc-file-name)" ;;
  aarch64) check "$BUILD" BTI "$(gcc -print-libgcc-file-name)" ;;
esac
if command -v aarch64-linux-gnu-gcc >/dev/null; then check "$BUILD/aarch64" BTI "$(aarch64-linux-gnu-gcc -print-libgcc-file-name)"; fi
exit 0
