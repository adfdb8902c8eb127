#compdef fiberthread
# SPDX-License-Identifier: MIT
# Completion of fiberthread's options for zsh. fiberthread --table lists the options and subcommands.
local -a rows options commands fields
rows=("${(@f)$(fiberthread --table 2>/dev/null)}")
for row in $rows; do
  fields=("${(@s:	:)row}")
  if [[ $fields[2] == - ]]; then
    [[ $fields[1] == - ]] && commands+=($fields[4])
    continue
  fi
  local help=${fields[6]//[\[\]:]/ }
  case $fields[4] in
    -) options+=("--$fields[2][$help]") ;;
    FILE) options+=("--$fields[2]=[$help]:file:_files") ;;
    0\|*) options+=("--$fields[2]=-[$help]::value:(${${fields[4]//|/ }})") ;;
    *[\|,]*) options+=("--$fields[2]=[$help]:value:(${${fields[4]//[|,]/ }})") ;;
    *) options+=("--$fields[2]=[$help]:value: ") ;;
  esac
done
_arguments -S $options '(-):program or subcommand:{_alternative "subcommands:subcommand:('"$commands"')" "commands:program:_command_names -e"}' '*::arguments:_normal'
