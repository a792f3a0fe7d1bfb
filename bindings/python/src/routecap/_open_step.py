"""A step from its begin to its issue, as a context manager."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ._constants import Snapshot, Status
from ._errors import Error, error
from ._forward_path import ForwardPath
from ._protocols import StreamLike, TensorLike
from ._steps import Step

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _of_capturer(
    method: Callable[Concatenate[ForwardPath, _Given], _Found],
) -> Callable[Concatenate["OpenStep", _Given], _Found]:
    """A method of the capturer, for its open step: on the stream of the step, unless another is
    given.
    """
    name = method.__name__  # not the method itself, which another kind of capturer overrides

    @wraps(method)
    def call(step: "OpenStep", /, *given: _Given.args, **named: _Given.kwargs) -> _Found:
        capturer = step._expect_open()
        if step._stream is not None and named.get("stream") is None:
            named["stream"] = step._stream
        found: _Found = getattr(capturer, name)(*given, **named)
        return found

    return call


class OpenStep:
    """A forward pass that runs: what Capturer.step gives.

        with capturer.step(rows) as step:
            for layer, ids in enumerate(chosen): step.record(layer, ids)
            step.issue(routecap.spans(request=request, position=position, rows=rows))

    It ends by `issue`, or by `discard` for a warm-up run. Left by an exception before that it is
    discarded: its slot is free again, and its rows are missing. Left without either it is discarded
    too, and an Error (ERR_STATE) says so.
    """

    __slots__ = ("capturer", "rows", "_stream", "_is_open", "_snapshot")

    def __init__(self, capturer: ForwardPath, rows: int, stream: StreamLike | None) -> None:
        self.capturer = capturer
        self.rows = rows
        self._stream = stream
        self._is_open = False
        self._snapshot = Snapshot.MAKE

    def __enter__(self) -> Self:
        if self.capturer._in_step:
            raise error(
                Status.ERR_STATE,
                "a step of this capturer is open: issue or discard it before another begins",
            )
        self.capturer.begin(self.rows, stream=self._stream)
        self._is_open = self.capturer._in_step = True
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        if not self._is_open:
            return
        self._end()
        try:
            self.capturer.discard(stream=self._stream)
        except Error as refused:
            if raised is None:
                raise
            raised.add_note(f"Its step was not discarded, which the next one does: {refused}")
        if raised is None:
            raise error(
                Status.ERR_STATE,
                f"a step of {self.rows} rows was neither issued nor discarded: call"
                " step.issue(spans), or step.discard() if nobody wants its rows",
            )

    def _expect_open(self) -> ForwardPath:
        if not self._is_open:
            raise error(
                Status.ERR_STATE,
                f"this step is not open: record and issue it once, in its own `with"
                f" capturer.step({self.rows}) as step:`",
            )
        return self.capturer

    def _end(self) -> None:
        self._is_open = self.capturer._in_step = False

    record = _of_capturer(ForwardPath.record)
    record_layers = _of_capturer(ForwardPath.record_layers)
    route = _of_capturer(ForwardPath.route)

    def snapshot(self, *, stream: StreamLike | None = None) -> None:
        """Take the snapshot behind the last router, where the engine has work to do before `issue`,
        which takes it otherwise. See Capturer.snapshot.
        """
        self._expect_open().snapshot(stream=self._stream if stream is None else stream)
        self._snapshot = Snapshot.TAKEN

    def issue(
        self,
        spans: NDArray[np.void] | None,
        *,
        tag: int = 0,
        positions: TensorLike | None = None,
        status: NDArray[np.int32] | None = None,
        stream: StreamLike | None = None,
    ) -> Step:
        """End the step, and say which of its rows belong to which request. See Capturer.issue.

        After an error it is open still.
        """
        issued = self._expect_open().issue(
            spans,
            tag=tag,
            positions=positions,
            snapshot=self._snapshot,
            status=status,
            stream=self._stream if stream is None else stream,
        )
        self._end()
        return issued

    def discard(self, *, stream: StreamLike | None = None) -> None:
        """End the step without its rows, such as a warm-up run. See Capturer.discard."""
        self._expect_open().discard(stream=self._stream if stream is None else stream)
        self._end()

    def __repr__(self) -> str:
        return f"<routecap.OpenStep of {self.rows} rows{'' if self._is_open else ', not open'}>"
