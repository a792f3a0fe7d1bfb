#!/usr/bin/env bash
# Checks the Go package against an installed library. In the project's root:
#
#     bash bindings/go/test.sh PREFIX           the tests
#     bash bindings/go/test.sh --more PREFIX    the generator, staticcheck, races, mutants, benchmark
#
# The tests of the CUDA backend run on the driver without a device of tests/fault. Ends with one
# line and exit status 0 if all passed.
. dev/setup.sh
set +e
more=0
[ "${1:-}" = --more ] && more=1 && shift

prefix=$(realpath "${1:?the prefix of an installed library is missing}")
need pkg-config=pkg-config cc=gcc python3=python3
install_fake_driver
command -v go > /dev/null || { say "Go 1.24 or newer is needed"; exit 1; }
module=$root/bindings/go
work=$build/go
mkdir -p "$work"
export GOCACHE=$work/cache GOMODCACHE=$work/modules GOFLAGS="-modcacherw" GOBIN=$work/bin
libraries=$(dirname "$(find "$prefix" -name libroutecap.so.1)")
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)")
LD_LIBRARY_PATH=$libraries:$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH LD_LIBRARY_PATH FAKE_CUDA_ABORT=1
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
export ROUTECAP_REQUIRE_CUDA=1
passed=0 failed=0 skipped=0

# run NAME COMMAND...: one check.
run() {
    local name=$1
    shift
    say "-- $name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "failed: $name"
    fi
}
# run_tests NAME COMMAND...: the tests of a command that writes what go test -v does; each is a
# check.
run_tests() {
    local name=$1 log
    log=$work/${name// /_}.log
    shift
    say "-- $name"
    "$@" > "$log" 2>&1
    local status=$? failures
    failures=$(grep -c -e '^ *--- FAIL' "$log")
    [ $status = 0 ] || [ "$failures" -gt 0 ] || failures=1
    passed=$((passed + $(grep -c -e '^ *--- PASS' "$log")))
    skipped=$((skipped + $(grep -c -e '^ *--- SKIP' "$log")))
    failed=$((failed + failures))
    [ "$failures" = 0 ] || grep -v -e '^=== ' -e '^ *--- PASS' "$log" | tail -n 60
    grep -h -m 1 -e 'no GPU' -e 'no vectors' "$log" # why some were skipped
}

formatted() { local files; files=$(gofmt -l .); say "$files"; [ -z "$files" ]; }

staticcheck_version=v0.8.2
install_staticcheck() {
    [ -e "$work/staticcheck-$staticcheck_version" ] && return
    say "setup: building staticcheck"
    (cd "$work" && go install honnef.co/go/tools/cmd/staticcheck@$staticcheck_version) && touch "$work/staticcheck-$staticcheck_version"
}

# A program of somebody else, in a folder of its own, with nothing of the project but a copy of the
# module.
outside() (
    local folder status
    local path=github.com/routecap/routecap/bindings/go
    folder=$(mktemp -d) && mkdir "$folder/program" && cp -r "$module" "$folder/module" &&
        cp "$module/examples/worker_loop/main.go" "$folder/program" && cd "$folder/program" && go mod init example.org/program &&
        go mod edit -require=$path@v1.0.0 -replace=$path=../module && go build -o program . && ./program
    status=$?
    rm -rf "$folder"
    return $status
)

# Vectors with one wrong expectation each: every one fails. Those of abi.json are for C alone.
mutants() {
    local folder=$work/mutants
    rm -rf "$folder" && mkdir -p "$folder" && python3 "$root/tests/vectors/files.py" --mutate 200 "$folder" || return 1
    grep -l '"topic": "abi_' "$folder"/*.json | xargs -r rm
    ROUTECAP_VECTORS=$folder go test -count=1 -run TestTheConformanceVectors -v . > "$work/mutants.log" 2>&1
    local all noticed
    all=$(find "$folder" -name '*.json' | wc -l)
    noticed=$(grep -c -e '^    --- FAIL' "$work/mutants.log")
    grep -e '^    --- PASS' -e '^panic' "$work/mutants.log"
    say "$noticed of $all wrong vectors noticed"
    [ "$noticed" -gt 0 ] && [ "$noticed" = "$all" ]
}

cd "$module" || exit 1
# All tests of a package together may take this long; 10 minutes, Go's default, are too few on a
# machine with a load of 20.
export GOFLAGS="${GOFLAGS:-} -timeout=60m"
if [ $more = 0 ]; then
    run "what is generated is of these headers" python3 "$root/dev/generate" --check --without rust --without go
    run "formatted" formatted
    run "vet" go vet ./...
    run_tests "tests" go test -short -vet=off -count=1 -v ./...
    run "an example" go run ./examples/worker_loop
    # What a machine with a GPU and without Go runs: this program and libroutecap.so.1.
    run "the tests on CUDA as a program" go test -c -o "$work/cuda.test" ./internal/cudatest
    run_tests "tests on CUDA as a program" env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" ROUTECAP_CHECKED=1 ROUTECAP_REQUIRE_CUDA=1 "$work/cuda.test" -test.v
else
    need clang=clang
    run "what is generated is what the headers say" python3 "$root/dev/generate" --check --without rust
    install_staticcheck
    run "staticcheck" "$GOBIN/staticcheck" ./...
    run_tests "tests with the race detector" go test -count=1 -race -v ./...
    run_tests "tests with checked pointers" env GOEXPERIMENT=cgocheck2 go test -count=1 -v ./...
    run "the vectors' mutants are noticed" mutants
    run "fuzzed" go test -run '^$' -fuzz FuzzDeserialize -fuzztime 5s .
    run "the benchmark as a program" go build -o "$work/bench_go" ./bench
    run "the benchmark runs" "$work/bench_go"
    run "outside of the project" outside
fi

say "$passed checks passed, $failed failed${skipped:+, $skipped skipped}"
[ $failed = 0 ]
