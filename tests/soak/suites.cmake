suite(soak full 60 bash tests/soak/check.sh)
