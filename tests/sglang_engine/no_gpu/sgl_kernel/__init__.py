"""In the place of SGLang's kernels for CUDA: every name is there, and fails when it is called."""

__version__ = "0.4.10"


class _Missing:
    def __init__(self, name):
        self.name = name

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{self.name}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)
