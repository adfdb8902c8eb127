#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: squashfs-tools
# Readers, compressors, fragment packers and a writer that hand blocks to each other.
. "$(dirname "$0")/../lib.sh"
need mksquashfs
mkdir "$TMP/files" && cp -r /usr/share/perl "$TMP/files"
export SOURCE_DATE_EPOCH=1
# The image is made in a file, in which it can seek.
pack="rm -f $TMP/image; mksquashfs $TMP/files $TMP/image -processors 8 -no-progress -quiet -all-root >/dev/null && cat $TMP/image"
compare 10 sh -c "$pack"
compare 10 sh -c "rm -rf $TMP/out; unsquashfs -processors 8 -no-progress -quiet -d $TMP/out $TMP/image >/dev/null && diff -r $TMP/files $TMP/out"
