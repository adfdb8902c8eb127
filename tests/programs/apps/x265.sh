#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: x264 x265 ffmpeg
. "$(dirname "$0")/../lib.sh"
need x264
need x265
need ffmpeg
ffmpeg -nostdin -v error -f lavfi -i testsrc=duration=2:size=320x240:rate=25 -pix_fmt yuv420p "$TMP/in.y4m" || fail "no video"
compare 8 x264 --quiet --no-progress --threads 8 --lookahead-threads 4 --muxer raw -o - "$TMP/in.y4m"
compare 6 x264 --quiet --no-progress --threads 6 --sliced-threads --muxer raw -o - "$TMP/in.y4m"
compare 8 x265 --log-level error --no-progress --pools 6 --frame-threads 4 --wpp --input "$TMP/in.y4m" -o -
[ -s "$TMP/nptl.out" ] || fail "no video"
