#!/usr/bin/env bash
# Runs the suites, after setting up what they share, and ends with one line for each and exit status
# 0 if all passed.
#
#     run.sh                  the default: what finds most, in twelve minutes of two cores
#     run.sh --full           every suite
#     run.sh NAME...          these alone; each sets up what it needs
#     run.sh --list           their names, and the seconds of each beside another on two cores
#
# A suite is a line of suites.cmake in the folder that it tests. What each printed is in
# build/test-logs.
cd "$(dirname "$0")/.." && . dev/setup.sh
set +e
logs=$build/test-logs
list=$build/suites/list # NAME LABEL SECONDS

need cmake=cmake ninja=ninja-build
locked suites cmake -S tests/suites -B build/suites -G Ninja > "$build/suites.log" 2>&1 || { cat "$build/suites.log"; exit 1; }
full=0 names=()
for argument; do
    case $argument in
        --full) full=1 ;;
        --list) awk '{ printf "%-20s %5d s  %s\n", $1, $3, $2 == "full" ? "--full" : "" }' "$list"; exit ;;
        -*) say "no option is called $argument"; exit 2 ;;
        *) grep -q "^$argument " "$list" || { say "no suite is called $argument: run.sh --list"; exit 2; }
           names+=("$argument") ;;
    esac
done

say "setup: compilers and tools"
need c++=g++ cc=gcc pkg-config=pkg-config python3=python3
install_nvcc
# Kernels for every device take a minute and a half of two cores. Where there is none, PTX that is not
# optimised is enough by default: 11 seconds.
if [ $full = 1 ]; then
    export ROUTECAP_ARCHS_OPTION=-UROUTECAP_CUDA_ARCHS
elif [ ! -e /dev/nvidiactl ] && ! grep -q ^ROUTECAP_CUDA_ARCHS: build/release/CMakeCache.txt 2> /dev/null; then
    export ROUTECAP_ARCHS_OPTION=-DROUTECAP_CUDA_ARCHS=90-virtual NVCC_APPEND_FLAGS='-Xcicc -O0'
fi
install_library
unset NVCC_APPEND_FLAGS
export ROUTECAP_INSTALLED=$prefix
install_fake_driver

# suites OPTION...: three at a time, as some wait or fetch.
status=0
suites() { ctest --test-dir build/suites -j 3 --output-on-failure --no-label-summary "$@" || status=1; }
rm -rf "$logs" && mkdir "$logs" && touch "$logs"/{passed,failed}
trap 'exit 130' INT
if [ ${#names[@]} != 0 ]; then
    suites -R "^($(IFS='|'; echo "${names[*]}"))$"
else
    suites -L default
    [ $full = 0 ] || suites -L full
    [ $full = 1 ] || left_out=$(awk '$2 == "full" { printf " %s", $1 }' "$list")
fi

say
cat "$logs"/failed "$logs"/passed
[ -z "${left_out:-}" ] || say "left out without --full:$left_out"
say "$(wc -l < "$logs/passed") passed, $(grep -c ^FAILED "$logs/failed") failed"
exit $status
