suite(newest full 60 python3 -m unittest discover tests/newest)
