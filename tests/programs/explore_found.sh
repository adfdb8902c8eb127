# SPDX-License-Identifier: MIT
# fiberthread explore finds the bug of each program, and none in TWIN_SCHEDULES of its mended twin. fiberthread replay then shows it again.
found() { # SOURCE…
  local source name compiler file most i
  cd "$TMP" || exit 1
  for source; do
    name=$(basename "${source%.*}")
    compiler=gcc
    [[ $source == *.cpp ]] && compiler=g++
    $compiler -O1 -g -w -pthread -o "$name" "$source" && $compiler -O1 -g -w -pthread -DMENDED -o "$name.mended" "$source" ||
      fail "$name: $compiler failed"
    most=3000
    [ "$name" = crowd_two_steps ] && most=20000 # which schedules are drawn there depends on the compiler, and one in some 3,000 fails
    timeout -k 5 200 "$BUILD/fiberthread" explore -q -n $most "./$name" >out 2>err
    [ $? = 1 ] || fail "$name: not found: $(cat out err)"
    file=$(sed -n 's/.*fiberthread replay //p' out)
    [ -s "$file" ] || fail "$name: no file: $(cat out err)"
    for i in 1 2; do
      # The environment has another size each time.
      env X="$(head -c $((i * 1000)) /dev/zero | tr '\0' x)" timeout -k 5 60 "$BUILD/fiberthread" replay "$file" >again 2>&1
      [ $? = 1 ] && grep -q '^fails again: ' again || fail "$name: replay $i: $(cat again) after $(cat out)"
    done
    timeout -k 5 $((200 + ${TWIN_SCHEDULES:-20} / 10)) "$BUILD/fiberthread" explore -q -n "${TWIN_SCHEDULES:-20}" "./$name.mended" >out 2>err ||
      fail "$name.mended: $(cat out err)"
  done
}
