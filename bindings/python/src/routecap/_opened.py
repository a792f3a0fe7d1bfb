"""What a capturer is: its settings, its memory, and its end."""

import warnings
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from ._config import Config, Settings
from ._constants import Backend, Dtype, Role, Status
from ._docs import documented
from ._layers import experts_per_token
from ._library import raw
from ._tensors import HOST


class Opened:
    """Capturer, without what it does in forward passes and with requests."""

    @documented("routecap_capturer_create")
    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Create a capturer with all the memory that it needs on its device."""
        self._handle: object = None
        config = self._config = Config(settings)
        self._host = config.backend == Backend.HOST
        self._place = HOST if self._host else config.device
        self._disabled = config.role == Role.DISABLED
        self._stream_setting = settings.get("stream")
        self._warned_of_loss = False
        self._in_step = False  # an OpenStep is open
        self._in_flight: dict[int, object] = {}  # memory of steps whose rows arrive later
        self._handle = raw.routecap_capturer_create(config.memory)[1]

    def _keep_in_flight(self, ticket: int, memory: object) -> None:
        """Keep memory that the library reads before the step lands, and no longer others'."""
        self._in_flight[ticket] = memory
        for each in list(self._in_flight):
            if raw.routecap_step_poll(self._handle, each) is not Status.PENDING:
                del self._in_flight[each]

    def close(self) -> None:
        """Destroy the capturer, after all issued steps have landed and the calls of other threads
        have returned. Routings and arrays of the sink stay valid. Any other call on the capturer or
        its requests raises an Error (routecap_capturer_destroy). Closing a request is none: it does
        nothing.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            raw.routecap_capturer_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(
                f"unclosed {self!r}: call close(), or make it in a `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self.close()

    # ---- What it is

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def layers(self) -> int:
        """The number of captured (MoE) layers."""
        return self._config.layers

    @property
    def k(self) -> int:
        """The number of experts per token, the most of any layer."""
        return self._config.k

    @property
    def experts(self) -> int:
        """The largest number of experts of any layer."""
        return self._config.experts

    @property
    def rows(self) -> int:
        """Sink rows: the most tokens of one forward pass."""
        return self._config.rows

    @property
    def slots(self) -> int:
        """How many steps may be in flight."""
        return self._config.slots

    @property
    def backend(self) -> Backend:
        return self._config.backend

    @property
    def device(self) -> int:
        """The ordinal of the device; 0 on the host backend."""
        return self._config.device

    @property
    def role(self) -> Role:
        return self._config.role

    @property
    def layer_map(self) -> NDArray[np.int32]:
        """The index of each captured layer in the decoder, [layers]."""
        return self._config.layer_map.copy()

    @property
    def layer_experts(self) -> NDArray[np.uint32]:
        """The number of experts of each layer, [layers]."""
        return self._config.layer_experts.copy()

    @property
    def layer_k(self) -> NDArray[np.uint32]:
        """The most experts of a token in each layer, [layers]."""
        return self._config.layer_k.copy()

    @property
    def layer_min_k(self) -> NDArray[np.uint32]:
        """The fewest, [layers]: the same, unless a router may choose fewer."""
        return self._config.layer_min_k.copy()

    @property
    def layer_visit(self) -> NDArray[np.uint32]:
        """How often a looped decoder ran each layer before, [layers]."""
        return self._config.layer_visit.copy()

    @property
    def weights_dtype(self) -> Dtype | None:
        """Of the weights that it captures beside the ids: F32, F16 or BF16; None: it captures none."""
        return self._config.weights_dtype

    def __repr__(self) -> str:
        config = self._config
        place = "host" if self._host else f"cuda:{config.device}"
        closed = ", closed" if self.closed else ""
        k = experts_per_token(config.layer_k, config.layer_min_k)
        return (
            f"<routecap.Capturer of {config.layers} layers, k={k}, {config.experts} experts,"
            f" {config.rows} rows, {place}{closed}>"
        )
