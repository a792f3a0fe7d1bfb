suite(deepep full 60 bash integrations/deepep/check.sh)
