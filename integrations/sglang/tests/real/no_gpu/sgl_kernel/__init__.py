"""In the place of SGLang's kernels: those for drafts on a CPU, in PyTorch. Every other name, and
every other module, is there, and fails when it is called."""

import importlib.machinery
import sys

from .drafts import (
    assign_draft_cache_locs_contiguous_cpu as assign_draft_cache_locs_contiguous_cpu,
)
from .drafts import assign_extend_cache_locs_cpu as assign_extend_cache_locs_cpu
from .drafts import assign_req_to_token_pool_cpu as assign_req_to_token_pool_cpu
from .drafts import build_draft_decode_metadata_cpu as build_draft_decode_metadata_cpu
from .drafts import build_tree_kernel_efficient_cpu as build_tree_kernel_efficient_cpu
from .drafts import copy_all_layer_kv_cache_cpu as copy_all_layer_kv_cache_cpu
from .drafts import fill_accept_out_cache_loc_cpu as fill_accept_out_cache_loc_cpu
from .drafts import fill_bonus_tokens_cpu as fill_bonus_tokens_cpu
from .drafts import rotate_input_ids_cpu as rotate_input_ids_cpu
from .drafts import verify_tree_greedy_cpu as verify_tree_greedy_cpu

__version__ = "0.4.10"


class _Missing:
    def __init__(self, name):
        self.name = name

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{self.name}")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.name}.{name}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Modules:
    """Finds those that are no files here, behind all finders of files."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("sgl_kernel."):
            return None
        return importlib.machinery.ModuleSpec(name, _Modules)

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        module.__getattr__ = __getattr__


sys.meta_path.append(_Modules)
