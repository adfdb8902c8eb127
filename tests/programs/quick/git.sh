#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: git
. "$(dirname "$0")/../lib.sh"
need git
export HOME=$TMP GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='@1000000000 +0000' GIT_COMMITTER_DATE='@1000000000 +0000'
mkdir "$TMP/repository" && cd "$TMP/repository" || exit 1
cp -r /usr/share/perl files
git init -q . && git config maintenance.auto false && git add . && git -c user.name=a -c user.email=a@b commit -qm 1 || fail "no repository"
find files -name '*.pm' | head -n 200 | xargs sed -i 's/the/THE/g'
git -c user.name=a -c user.email=a@b commit -qam 2
compare 1 git --no-pager grep --threads=8 -n -E 'sub +[a-z]+_[a-z]+'
compare 0 git -c core.preloadIndex=true status --short
for workers in 1 2 16; do
  fiber $workers git -c pack.threads=8 repack -adfq --window=20 || fail "repack on $workers workers: status $?"
  made_fibers 1
  git fsck --full 2>&1 | grep -v dangling | grep . && fail "the pack is broken"
  fiber $workers git index-pack --threads=4 -o "$TMP/index.idx" .git/objects/pack/*.pack >"$TMP/name" || fail "index-pack on $workers workers: status $?"
  made_fibers 1
  cmp "$TMP/index.idx" .git/objects/pack/*.idx || exit 1
  rm -f "$TMP/index.idx"
done
