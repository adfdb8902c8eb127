#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: ffmpeg
. "$(dirname "$0")/../lib.sh"
need ffmpeg
ff() { compare "$1" ffmpeg -nostdin -v error "${@:2}"; }
ff 8 -f lavfi -i testsrc=duration=4:size=320x240:rate=25 -c:v libx264 -threads 8 -f h264 -
cp "$TMP/fiber.out" "$TMP/video.h264"
[ -s "$TMP/video.h264" ] || fail "no video"
ff 4 -threads 4 -i "$TMP/video.h264" -f framemd5 -
