#!/usr/bin/env bash
# Programs of other suites under valgrind: scenarios, api, loading, consumers of an installed tree,
# structs of other sizes. usage: valgrind.sh
cd "$(dirname "$0")/.." && . dev/setup.sh
need valgrind=valgrind
install_library
build_tests scenarios api
for folder in loading install abi; do bash tests/$folder/check.sh; done > "$build/valgrind.log" 2>&1 || true  # for their programs
set +e
under=(valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible)
for program in scenarios api; do
    run "${under[@]}" "build/tests/$program" --gtest_filter='-*F24*:*F27_memory*:*F34*:Sizes.*:Lifecycle.forked_child'
done
run "${under[@]}" build/loading/loading "$library" build/loading/copy/libroutecap.so.1
run env LD_LIBRARY_PATH="$(dirname "$library")" "${under[@]}" build/consumers/linked
run "${under[@]}" build/consumers/loaded "$library"
run "${under[@]}" build/abi_structs "$library"
closing
