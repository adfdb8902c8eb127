# SPDX-License-Identifier: MIT
# Completion of fiberthread's options for bash. fiberthread --table lists the options and subcommands.
_fiberthread() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i name values table
  COMPREPLY=()
  table=$(fiberthread --table 2>/dev/null) || return
  if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
  if [ "$word" = = ]; then word=; fi
  # After the first word that is neither an option nor an option's value, the program's own completion takes over.
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --) i=$((i + 1)); break ;;
      -w | -s | =) i=$((i + 1)) ;;
      --*)
        values=$(awk -F'\t' -v o="${COMP_WORDS[i]#--}" '$2 == o { print $4 }' <<<"$table")
        case $values in - | '' | 0\|*) ;; *) [ "${COMP_WORDS[i + 1]:-}" = = ] || i=$((i + 1)) ;; esac
        ;;
      -*) ;;
      *) break ;;
    esac
  done
  if [ "$i" -lt "$COMP_CWORD" ]; then
    if declare -F _command_offset >/dev/null; then _command_offset "$i"; else COMPREPLY=($(compgen -f -- "$word")); fi
    return
  fi
  case $before in
    --* | -w | -s)
      values=$(awk -F'\t' -v o="${before#--}" -v l="${before#-}" '$2 == o || $3 == l { print $4 }' <<<"$table")
      case $values in
        FILE) COMPREPLY=($(compgen -f -- "$word")); return ;;
        *\|* | *,*) COMPREPLY=($(compgen -W "${values//[|,]/ }" -- "$word")); return ;;
      esac
      ;;
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$(awk -F'\t' '$2 != "-" { print "--" $2 }' <<<"$table")" -- "$word")) ;;
    *)
      [ "$COMP_CWORD" = 1 ] && COMPREPLY=($(compgen -W "$(awk -F'\t' '$1 == "-" && $2 == "-" { print $4 }' <<<"$table")" -- "$word"))
      COMPREPLY+=($(compgen -c -- "$word"))
      ;;
  esac
}
complete -F _fiberthread fiberthread
