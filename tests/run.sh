#!/usr/bin/env bash
# Runs the suites, after setting up all they need, and ends with one line for each and exit status 0
# if all passed.
#
#     run.sh                  the default: what finds most, in thirteen minutes of two cores, fetching included
#     run.sh --full           every suite
#     run.sh NAME...          these alone, begun in this order; each sets up what it needs
#     run.sh --list           their names, and the usual minutes of each beside another on two cores
#
# What each printed is in build/test-logs.
cd "$(dirname "$0")/.." && . dev/setup.sh
set +e

logs=$build/test-logs
results=$logs/results

# ---- What there is: NAME|default, full or alone|minutes, beside another on two cores|COMMAND. Those
# that are alone are of the default too, after the others: what they do depends on the time that they
# have.
suites='
asan-ubsan|default|2.5|bash tests/programs.sh asan
python|default|2.5|bash bindings/python/test.sh $prefix
tsan|default|2.5|bash tests/programs.sh tsan
tests|default|2|bash tests/programs.sh installed
transformers|default|1.4|bash integrations/transformers/check.sh
quick-starts|default|1.3|bash tests/quick_starts/check.sh $prefix
rust|default|0.6|bash bindings/rust/test.sh $prefix
trainers|default|0.6|bash integrations/replay/check.sh
replay|default|0.5|bash integrations/replay/examples/gap/check.sh
go|default|0.4|bash bindings/go/test.sh $prefix
engines|default|0.3|bash tests/engines/check.sh --without rust --without ollama --without candle
llama-cpp|default|0.3|bash integrations/llama_cpp/check.sh
html|default|0.3|bash tools/tests/html/check.sh
docs|default|0.1|bash tests/docs/check.sh
routing|default|0.1|bash tests/recording/check.sh --quick
installed-tree|default|0.1|bash tests/install/check.sh
abi|default|0.1|bash tests/abi/check.sh
model|default|0.1|bash tests/model/check.sh
loading|default|0.1|bash tests/loading/check.sh
headers|default|0.1|bash tests/headers/check.sh
every-place|default|0.1|bash tests/generate/check.sh
soak|alone|0.2|bash tests/soak/check.sh --seconds 5
every-test|full|5|bash tests/programs.sh every-test
every-routing|full|1|bash tests/recording/check.sh
every-tsan|full|9|bash tests/programs.sh every-tsan
every-asan|full|12|bash tests/programs.sh every-asan
aarch64|full|6|bash tests/aarch64.sh
fuzz|full|4|bash tests/fuzz/run.sh
bench|full|3|bash lab/bench/check.sh
python-more|full|6|bash bindings/python/test.sh --more $prefix
rust-more|full|5|bash bindings/rust/test.sh --more $prefix
go-more|full|5|bash bindings/go/test.sh --more $prefix
every-place-more|full|2|bash tests/generate/check.sh --more
contributing|full|9|bash tests/quick_starts/check.sh $prefix CONTRIBUTING.md
jax|full|1|bash examples/jax/check.sh
remote|full|3|bash bindings/python/tests/remote/check.sh
static-tree|full|3|bash tests/install/check.sh --static
llama-cpp-rust|full|4|bash integrations/llama_cpp/check.sh --rust
ollama|full|4|bash integrations/ollama/check.sh
candle|full|2|bash integrations/candle/check.sh
every-engine|full|9|bash tests/engines/check.sh --full
more-transformers|full|9|bash integrations/transformers/check.sh --full
every-transformers|full|60|bash integrations/transformers/releases.sh
newest|full|1|python3 -m unittest discover tests/newest
site|full|2|bash tests/docs/check.sh --site
every-trainer|full|9|bash integrations/replay/check.sh --full
grpo|full|2|bash integrations/replay/examples/grpo/check.sh --full
whole-ways|full|9|bash integrations/replay/tests/whole_ways/check.sh
load|full|0.5|bash tools/tests/load/check.sh
frontier|full|3|bash lab/frontier/check.sh
llama-server|full|1|bash integrations/llama_cpp/check.sh --server
vllm|full|9|bash integrations/vllm/examples/check.sh
deepep|full|1|bash integrations/deepep/check.sh
conform|full|2|bash tools/tests/conform/check.sh
conform-llama-cpp|full|2|bash integrations/llama_cpp/check.sh --conform
conform-transformers|full|2|bash integrations/transformers/check.sh --conform
vllm-engine|full|60|bash integrations/vllm/check.sh
vllm-releases|full|60|bash integrations/vllm/release.sh
sglang|full|60|bash integrations/sglang/check.sh
more-random|full|9|bash tests/fuzz/more.sh
more-faults|full|9|bash tests/fault/more.sh
abi-proof|full|1|bash tests/abi/prove.sh . c++
fuzz-proof|full|60|bash tests/fuzz/prove.sh
unwatched|full|5|bash lab/bench/unwatched.sh
valgrind|full|9|bash tests/valgrind.sh
artefacts|full|50|bash packaging/check.sh
coverage|full|9|bash tests/coverage.sh
lint|full|4.5|bash tests/lint.sh
'

# ---- How they run

full=0 only=()
for argument; do
    case $argument in
        --full) full=1 ;;
        --list) awk -F'|' 'NF { printf "%-16s %5s min  %s\n", $1, $3, $2 == "full" ? "--full" : "" }' <<< "$suites"; exit ;;
        -*) say "no option is called $argument"; exit 2 ;;
        *) grep -q "^$argument|" <<< "$suites" || { say "no suite is called $argument: run.sh --list"; exit 2; }
           only+=("$argument") ;;
    esac
done

# chosen WHERE...: the lines of the suites that run there, of those that were asked for, in the order
# in which they were.
chosen() {
    local line where
    while IFS= read -r line; do
        IFS='|' read -r _ where _ <<< "$line"
        [ -n "$line" ] && [[ " $* " == *" $where "* ]] || continue
        [ ${#only[@]} != 0 ] || [ $full = 1 ] || [ "$where" != full ] || continue
        say "$line"
    done < <(
        [ ${#only[@]} != 0 ] || say "$suites"
        for line in "${only[@]}"; do grep "^$line|" <<< "$suites"; done
    )
}

rm -rf "$logs"
mkdir -p "$logs/running" "$logs/taken"
: > "$results"
started=$SECONDS
planned=$(chosen default alone full | awk -F'|' '{ sum += $3 } END { print sum + 0 }')

# What runs now, for how long all has run, and which share of the minutes is done.
progress() {
    local share
    share=$(awk -F'|' -v all="$planned" '{ sum += $3 } END { print all ? int(100 * sum / all) : 100 }' "$logs/done" 2> /dev/null)
    say "$(printf '%3d:%02d %3d %%' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "${share:-0}")  $(ls "$logs/running" | tr '\n' ' ')"
}

# one LINE: runs a suite in a shell of its own, keeps its output, and notes the line it ends with.
one() {
    local line=$1 name where minutes command status began=$SECONDS word=passed
    IFS='|' read -r name where minutes command <<< "$line"
    : > "$logs/running/$name"
    progress
    ( passed=0 failed=0; eval "$command" ) > "$logs/$name.log" 2>&1 < /dev/null
    status=$?
    [ $status = 0 ] || word=FAILED
    rm "$logs/running/$name"
    say "$line" >> "$logs/done"
    say "$word  $name: $(tail -n 1 "$logs/$name.log") ($((SECONDS - began)) s)" >> "$results"
    [ $status = 0 ] || failure "$name"
}
# The ten lines that matter of a suite that failed, and what runs it again.
failure() {
    local name=$1 pattern='failed|FAILED|[Ee]rror|ERROR|SUMMARY|panicked|difference|could not'
    grep "^FAILED  $name: " "$results"
    { grep -E "$pattern" "$logs/$name.log" || tail -n 10 "$logs/$name.log"; } | head -n 10 | cut -c 1-200 | sed 's/^/    /'
    say "    again: bash tests/run.sh $name     all it printed: build/test-logs/$name.log"
}

# lane WHERE: takes one suite after the other until none is left.
lane() {
    local line
    while IFS= read -r line; do
        ! mkdir "$logs/taken/${line%%|*}" 2> /dev/null || one "$line"
    done < <(chosen "$@")
}

say "setup: compilers and tools"
need cmake=cmake ninja=ninja-build c++=g++ cc=gcc pkg-config=pkg-config python3=python3
install_nvcc
# Kernels for every device take a minute and a half of two cores: where there is none, one is enough
# by default.
if [ $full = 1 ]; then
    export ROUTECAP_ARCHS_OPTION=-UROUTECAP_CUDA_ARCHS
elif [ ! -e /dev/nvidiactl ] && ! grep -q ^ROUTECAP_CUDA_ARCHS: build/release/CMakeCache.txt 2> /dev/null; then
    export ROUTECAP_ARCHS_OPTION=-DROUTECAP_CUDA_ARCHS=90
fi
install_library
export ROUTECAP_INSTALLED=$prefix
install_fake_driver

# Two at a time: what compiles on all cores beside what has one thread, waits, or fetches.
lane default & lane default
wait
lane alone
lane full

say
failures=$(grep -c ^FAILED "$results")
[ "$failures" = 0 ] || while read -r _ name _; do failure "${name%:}"; done < <(grep ^FAILED "$results")
grep ^passed "$results"
[ $full = 1 ] || [ ${#only[@]} != 0 ] || say "left out without --full: $(awk -F'|' '$2 == "full" { printf "%s ", $1 }' <<< "$suites")"
progress
say "$(grep -c ^passed "$results") passed, $failures failed"
[ "$failures" = 0 ] && [ -s "$results" ]
