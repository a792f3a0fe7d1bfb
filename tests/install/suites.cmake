suite(installed-tree default 6 bash tests/install/check.sh)
suite(static-tree full 180 bash tests/install/check.sh --static)
