#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: blender graphicsmagick
. "$(dirname "$0")/../lib.sh"
need blender
need gm
cat >"$TMP/scene.py" <<'PY'
import bpy
import os
scene = bpy.context.scene
scene.render.engine = 'CYCLES'
scene.cycles.device = 'CPU'
scene.cycles.samples = 4
scene.cycles.seed = 3
scene.cycles.use_denoising = False
scene.render.resolution_x, scene.render.resolution_y, scene.render.resolution_percentage = 64, 48, 100
scene.render.threads_mode, scene.render.threads = 'FIXED', 4
cube = bpy.data.objects['Cube']
cube.keyframe_insert('rotation_euler', frame=1)
cube.rotation_euler = 1, 1, 0
cube.keyframe_insert('rotation_euler', frame=2)
scene.frame_start, scene.frame_end = 1, 2
scene.render.filepath = os.environ['TMP'] + '/frame'
PY
# The files themselves have the time of rendering.
cat >"$TMP/render" <<'SH'
blender -b --factory-startup -noaudio -P "$TMP/scene.py" -a >"$TMP/log" 2>&1
status=$?
grep '^fiberthread: ' "$TMP/log" >&2
for frame in "$TMP"/frame*.png; do LD_PRELOAD= gm convert "$frame" ppm:- | LD_PRELOAD= md5sum; done
rm -f "$TMP"/frame*.png
exit $status
SH
export TMP
compare 8 sh "$TMP/render"
[ "$(sort -u "$TMP/nptl.out" | wc -l)" = 2 ] || fail "not two frames"
