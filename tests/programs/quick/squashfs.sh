#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: squashfs-tools
# mksquashfs has threads that read, compress, pack fragments and write, and hand blocks to each other.
. "$(dirname "$0")/../lib.sh"
need mksquashfs
mkdir "$TMP/files" && cp -r /usr/share/perl "$TMP/files"
export SOURCE_DATE_EPOCH=1
# mksquashfs writes the image to a file, since it must seek in it.
pack="rm -f $TMP/image; mksquashfs $TMP/files $TMP/image -processors 8 -no-progress -quiet -all-root >/dev/null && cat $TMP/image"
compare 10 sh -c "$pack"
compare 10 sh -c "rm -rf $TMP/out; unsquashfs -processors 8 -no-progress -quiet -d $TMP/out $TMP/image >/dev/null && diff -r $TMP/files $TMP/out"
