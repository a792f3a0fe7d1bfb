"""One thread, so that tiny models do not wait for others, and what transformers warns of on
machines like this.
"""

import torch

torch.set_num_threads(1)
