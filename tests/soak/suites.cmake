suite(soak default 12 ALONE bash tests/soak/check.sh --seconds 5)
