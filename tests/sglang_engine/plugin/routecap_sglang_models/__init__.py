"""All models that the checks need, so that SGLang imports no others: SGLANG_EXTERNAL_MODEL_PACKAGE."""
