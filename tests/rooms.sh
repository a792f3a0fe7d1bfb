#!/usr/bin/env bash
# The rooms, as the folders of src/ are called, include only what lies below them: api, then
# capture, wire, sequence and plan, then prefix, then routing and backend, then rows, then load, then
# base.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A height=([base]=0 [load]=1 [rows]=2 [routing]=3 [backend]=3 [prefix]=4 [capture]=5 [wire]=5 [sequence]=5 [plan]=5 [api]=6)
files=0 upward=0
while read -r file; do
    room=${file#src/} room=${room%%/*}
    [ -n "${height[$room]:-}" ] || { echo "rooms: $file lies in no room that is known"; upward=$((upward + 1)); continue; }
    files=$((files + 1))
    while read -r other; do
        [ "$other" = "$room" ] || [ "${height[$other]}" -lt "${height[$room]}" ] ||
            { echo "rooms: $file includes what lies above it or beside it, in $other"; upward=$((upward + 1)); }
    done < <(sed -n -E 's/^#include "(base|load|rows|routing|backend|prefix|capture|wire|sequence|plan|api)\/.*/\1/p' "$file")
done < <(find src -mindepth 2 -not -path 'src/third_party/*' '(' -name '*.h' -o -name '*.cc' ')' | sort)
echo "rooms: $files files, $upward includes that do not go down"
[ "$upward" = 0 ]
