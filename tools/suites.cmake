suite(html full 90 bash tools/tests/html/check.sh)
suite(load full 30 bash tools/tests/load/check.sh)
suite(conform full 120 bash tools/tests/conform/check.sh)
