suite(headers default 6 bash tests/headers/check.sh)
