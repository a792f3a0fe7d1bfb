suite(frontier full 180 bash lab/frontier/check.sh)
