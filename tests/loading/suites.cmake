suite(loading default 6 bash tests/loading/check.sh)
