#!/usr/bin/env bash
# Runs one suite, in the project's root: one.sh NAME COMMAND... What it prints goes to
# build/test-logs/NAME.log. The line that it ends with is kept in build/test-logs/passed or failed;
# of one that failed also the ten lines that matter, and what runs it again.
logs=build/test-logs name=$1
log=$logs/$name.log
mkdir -p "$logs"
word=FAILED
# What it began ignores an interrupt, in the background as it is, and is found by its environment.
trap 'grep -l -s -z -x -F "ROUTECAP_SUITE=$$" /proc/[0-9]*/environ | cut -d / -f 3 | xargs -r kill; exit 130' INT TERM
ROUTECAP_SUITE=$$ "${@:2}" > "$log" 2>&1 < /dev/null &
! wait $! || word=passed
closing=$(tail -n 1 "$log")
line="$word  $name: ${closing:-it printed nothing} ($SECONDS s)"
if [ $word = passed ]; then
    echo "$line" >> "$logs/passed"
    exit
fi
pattern='failed|FAILED|[Ee]rror|ERROR|SUMMARY|panicked|difference|could not'
matters=$({ grep -E "$pattern" "$log" || tail -n 10 "$log"; } | head -n 10 | cut -c 1-200 | sed 's/^/    /')
printf '%s\n' "$line" ${matters:+"$matters"} "    again: bash tests/run.sh $name     all it printed: $log" | tee -a "$logs/failed"
exit 1
