"""All models of the checks, so that SGLang imports no others: SGLANG_EXTERNAL_MODEL_PACKAGE."""
