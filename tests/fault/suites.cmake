suite(more-faults full 540 bash tests/fault/more.sh)
