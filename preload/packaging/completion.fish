# SPDX-License-Identifier: MIT
# Completion of fiberthread's options for fish. fiberthread --table lists the options and subcommands.
for row in (fiberthread --table 2>/dev/null)
    set -l fields (string split \t -- $row)
    if test $fields[2] = -
        test $fields[1] = -; and complete -c fiberthread -n __fish_use_subcommand -a $fields[4] -d $fields[6]
        continue
    end
    set -l more
    test $fields[3] != -; and set more -s $fields[3]
    switch $fields[4]
        case -
            complete -c fiberthread -l $fields[2] $more -d $fields[6]
        case FILE
            complete -c fiberthread -l $fields[2] $more -r -F -d $fields[6]
        case '*'
            complete -c fiberthread -l $fields[2] $more -x -a (string join ' ' -- (string split '|' -- (string replace -a , '|' -- $fields[4]))) -d $fields[6]
    end
end
complete -c fiberthread -n __fish_use_subcommand -xa '(__fish_complete_command)'
