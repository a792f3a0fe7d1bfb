#!/usr/bin/env bash
# The headers compile alone in every standard of C and C++, without a warning, and say all that a
# caller needs; so do the kernels' and the C programs that include them. usage: check.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh
set +e
need cc=gcc c++=g++ python3=python3

warnings=(-Wall -Wextra -pedantic -Wpadded -Werror -fsyntax-only)
sh dev/single.sh include "$build/routecap_single.h"
for source in "$build/routecap_single.h" include/routecap.h include/routecap/*.h; do
    for standard in c99 c11 c17; do run cc -x c -std=$standard "${warnings[@]}" "$source"; done
    for standard in c++11 c++17 c++20; do run c++ -x c++ -std=$standard "${warnings[@]}" "$source"; done
done
for source in kernels/*.h; do
    echo "#include \"$source\"" > "$build/kernel.cc"
    run c++ -std=c++20 -Wall -Wextra -Werror -Iinclude -I. -fsyntax-only "$build/kernel.cc"
done
for source in examples/*.c tests/abi/*.c tests/loading/*.c; do
    run cc -std=c11 -Wall -Wextra -pedantic -Werror -Iinclude -fsyntax-only "$source"
done
run python3 tests/headers/headers.py include
run bash tests/rooms.sh

# headers.py notices a parameter without a text.
rm -rf "$build/headers" && cp -r include "$build/headers"
sed -i '/@param\[in\] options /d' "$build/headers/routecap/capture.h"
names_the_function() {
    ! python3 tests/headers/headers.py "$build/headers" > "$build/headers.log" && grep -q routecap_step_issue "$build/headers.log"
}
run names_the_function
closing
