#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: zsh
# The completion for zsh: it offers the options and subcommands that the launcher has.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
# The last function that zsh's completion would call prints what it was given.
PATH=$BUILD:$PATH zsh -f -c '_arguments() { print -rl -- "$@" }; complete_() { . "$1" }; complete_ "$1"' - \
  "$top/preload/packaging/completion.zsh" >"$TMP/given" || fail "the script fails"
offered=$(sed -n 's/.*subcommands:subcommand:(\([^)]*\)).*/\1/p' "$TMP/given")
made=$("$BUILD/fiberthread" --table | awk -F'\t' '$1 == "-" && $2 == "-" { print $4 }' | xargs)
[ "$offered" = "$made" ] || fail "it offers \"$offered\", and the launcher has \"$made\""
while read -r option; do
  grep -qF -- "--$option" "$TMP/given" || fail "it does not offer --$option"
done < <("$BUILD/fiberthread" --table | awk -F'\t' '$2 != "-" { print $2 }')
exit 0
