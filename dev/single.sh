#!/bin/sh
# Makes one file of routecap.h and the headers that it includes: single.sh FOLDER [FILE]
# FOLDER has routecap.h. Without FILE it goes to standard output.
set -e
[ $# = 1 ] || exec > "$2"
cd "${1:?usage: single.sh FOLDER [FILE]}"
exec awk '
    function put(file,    folder, line, found) {
        if (file in done) return
        done[file] = 1
        folder = file
        sub(/[^\/]*$/, "", folder)
        while ((found = (getline line < file)) > 0) {
            if (line !~ /^#include "/) { print line; continue }
            split(line, part, "\"")
            line = folder part[2]
            sub(/[^\/]+\/\.\.\//, "", line)
            put(line)
        }
        if (found < 0) {
            print "single.sh: there is no " file > "/dev/stderr"
            exit 1
        }
        close(file)
    }
    BEGIN {
        print "/* Generated: routecap.h and the headers that it includes, in one file. */"
        put("routecap.h")
    }'
