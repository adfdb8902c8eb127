#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: handbrake-cli ffmpeg
. "$(dirname "$0")/../lib.sh"
need HandBrakeCLI
need ffmpeg
ffmpeg -nostdin -v error -f lavfi -i testsrc=duration=3:size=320x240:rate=25 -f lavfi -i sine=440:duration=3 -c:v libx264 -c:a aac "$TMP/in.mkv" ||
  fail "no video"
# The file itself has the time at which it was made.
cat >"$TMP/encode" <<'SH'
HandBrakeCLI -i "$TMP/in.mkv" -o "$TMP/out.mkv" -e "$1" -q 30 -E copy:aac -f av_mkv >/dev/null 2>"$TMP/log"
status=$?
grep '^fiberthread: ' "$TMP/log" >&2
LD_PRELOAD= ffmpeg -nostdin -v error -i "$TMP/out.mkv" -c copy -f framemd5 -
rm -f "$TMP/out.mkv"
exit $status
SH
export TMP
for encoder in x264 x265; do
  compare 20 sh "$TMP/encode" $encoder
  [ "$(grep -c '^0,' "$TMP/nptl.out")" = 75 ] || fail "$encoder: not all frames"
done
