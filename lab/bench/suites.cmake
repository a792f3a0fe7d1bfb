suite(bench full 180 bash lab/bench/check.sh)
suite(unwatched full 300 bash lab/bench/unwatched.sh)
