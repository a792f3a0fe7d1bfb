suite(transformers default 140 bash integrations/transformers/check.sh)
suite(more-transformers full 540 bash integrations/transformers/check.sh --full)
suite(every-transformers full 3600 bash integrations/transformers/releases.sh)
suite(conform-transformers full 120 bash integrations/transformers/check.sh --conform)
