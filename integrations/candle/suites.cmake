suite(candle full 120 bash integrations/candle/check.sh)
