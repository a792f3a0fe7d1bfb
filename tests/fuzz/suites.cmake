suite(fuzz full 240 bash tests/fuzz/run.sh)
suite(more-random full 540 bash tests/fuzz/more.sh)
suite(fuzz-proof full 3600 bash tests/fuzz/prove.sh)
