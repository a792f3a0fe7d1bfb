#!/usr/bin/env bash
# The library's probes, as a tracer finds them: probes.sh LIBRARY
set -u
found=$(readelf -n "$1" | awk '
    $1 == "Provider:" { provider = $2 }
    $1 == "Name:" { name = $2 }
    $1 == "Arguments:" { print provider ":" name, NF - 1 }' | sort -u)
diff - <(echo "$found") << 'END'
routecap:begin 2
routecap:filed 4
routecap:issued 4
END
