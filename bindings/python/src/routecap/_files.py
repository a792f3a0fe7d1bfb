"""Routings in files: the serialised form, one file each, in a folder or in a tar archive;
safetensors, for those who have no routecap; and messages of
the wire.
"""

import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._constants import IdSpace, Status
from ._errors import Error, error, member
from ._layers import ARRAYS, layers_of
from ._mapped import INFO, ROUTING, TAR, routings_in
from ._message import WireHint, WireOptions, wire_format
from ._routing import Routing
from ._samples import Sample
from ._wire import wire_decode, wire_encode, wire_formats

_SAFETENSORS = ".safetensors"
_Progress = Callable[[Any], Iterable[Any]]


WIRE_ENDINGS = {
    each.ending: name
    for name, each in wire_formats().items()
    if each.ending and each.ending != ROUTING
}
"""The formats of the wire by the endings of files."""


def save(
    path: str | os.PathLike[str],
    samples: Routing | Sample | Mapping[str, Routing | Sample],
    *,
    progress: _Progress = iter,
    wire: WireOptions | None = None,
) -> None:
    """Write routings to a file or folder. The ending of its name says which:

    - ``.routecap``: the serialised form of one; its `info` is beside it, in a file of the same name
      with the ending ``.json``.
    - ``.tar``: files like these, NAME.routecap and NAME.json, in one archive (what WebDataset calls
      a shard).
    - ``.safetensors``: arrays that need no routecap to be read: see the package's README.
    - ``.npy``, ``.npy.b64``, ``.b64``, ``.routes.json``, ``.nrlre1``, ``.lists.json``: a message of
      the wire, as servers send it, of one; `wire` has the arguments of `wire_encode`. What it
      cannot say is an error, unless they allow that.
    - No ending: a folder of files NAME.routecap and NAME.json; what else it holds stays there.

    A name that ends in a slash, and a folder that is there, mean a folder whatever the ending. Any
    other ending is refused, before anything is written.

    A sample without a name gets that of the file. A file that is there is replaced at once, when
    all is written. Missing cells, tags and the table of layers are kept in each of them: what
    `load` gives is equal to what was saved. `progress` wraps what is iterated over, as tqdm does.
    """
    kind = kind_to_write(path)
    path = Path(path)
    if isinstance(samples, (Routing, Sample)):
        samples = {path.name.removesuffix(kind): samples}
    named = {
        name: each if isinstance(each, Sample) else Sample(each) for name, each in samples.items()
    }
    for name in named:
        if not name or name.startswith(".") or set(name) & set("/\0\n"):
            raise error(
                Status.ERR_ARGUMENT,
                f"{name!r} cannot be the name of a file: name the sample otherwise, without a slash"
                " and without a dot in front",
            )
    if kind == ROUTING or kind in WIRE_ENDINGS:
        if len(named) != 1:
            raise error(
                Status.ERR_ARGUMENT,
                f"{path} holds one routing, not {len(named)}: name a folder, .tar or .safetensors",
            )
        [sample] = named.values()
        _save_one(path, sample, kind, wire or {})
    elif kind == TAR:
        _save_tar(path, named, progress)
    elif kind == _SAFETENSORS:
        _save_safetensors(path, named, progress)
    else:
        path.mkdir(parents=True, exist_ok=True)
        for name, sample in progress(named.items()):
            _save_one(path / (name + ROUTING), sample)


def kind_to_write(path: str | os.PathLike[str]) -> str:
    """The ending that says what `save` makes of a name; "" for a folder. Any other is refused."""
    kind = _ending(Path(path))
    if not kind or os.fspath(path).endswith(os.sep) or os.path.isdir(path):
        return ""
    _expect_known(path, kind, "write")
    return kind


def _expect_known(path: str | os.PathLike[str], kind: str, does: str) -> None:
    """Refuse the ending of a file's name that routecap does not write, or read."""
    if kind not in (ROUTING, TAR, _SAFETENSORS, *WIRE_ENDINGS):
        raise error(
            Status.ERR_ARGUMENT,
            f"{path} ends in {kind}, which routecap does not {does}: name a file {ROUTING}, "
            f"{TAR}, {_SAFETENSORS} or, for a message of the wire, {', '.join(WIRE_ENDINGS)}; "
            "a folder has no ending, ends in a slash or is there",
        )


def _ending(path: Path) -> str:
    """The ending of a file's name: the longest that is known, or what is behind its last dot."""
    return wire_ending(path) or path.suffix


def wire_ending(path: Path) -> str:
    """The ending of a file's name that says which message of the wire it is, or ""."""
    return max(
        (ending for ending in WIRE_ENDINGS if path.name.endswith(ending)), key=len, default=""
    )


def load(
    path: str | os.PathLike[str],
    *,
    mmap: bool = False,
    progress: _Progress = iter,
    wire: WireHint | None = None,
) -> dict[str, Sample]:
    """The routings of a file or folder that `save` wrote, or a program in C, by their names.

    A file whose name ends as a message of the wire does (see `save`) is decoded: `wire` is what is
    known of it beside its bytes, `experts` above all. Any other ending is refused; a file without
    one is in the serialised form.

    A routing of an archive has the name of its file, without folders. Where several would have one
    name, as rank0/r.routecap and rank1/r.routecap, each keeps its folders: "rank0/r". A file may
    have several, one behind another, which are "0", "1", and so on.

    Nothing in it is trusted. With `mmap` files are mapped and used in place: they must not change
    as long as the routings live (safetensors are copied all the same).
    """
    path = Path(path)
    kind = "" if path.is_dir() else _ending(path)
    if kind:
        _expect_known(path, kind, "read")
    if kind in WIRE_ENDINGS:
        return {path.name.removesuffix(kind): _load_message(path, kind, wire or {})}
    if kind == _SAFETENSORS:
        return _load_safetensors(path, progress)
    return {
        each.name: Sample(
            _routing(each.data if mmap else bytes(each.data), each.source),
            {} if each.info is None else _info(bytes(each.info), each.info_source),
        )
        for each in routings_in(path, progress)
    }


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write in the place of `path`, where it appears when it is complete."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


# ---- The serialised form


def _load_message(path: Path, kind: str, hint: WireHint) -> Sample:
    try:
        routing, _ = wire_decode(path.read_bytes(), wire_format(kind), **hint)
    except Error as reason:
        raise error(reason.status, f"{path}: {reason}") from None
    beside = _beside(path, kind)
    return Sample(routing, _info(beside.read_bytes(), beside) if beside.is_file() else {})


def _save_one(path: Path, sample: Sample, kind: str = ROUTING, wire: WireOptions = {}) -> None:
    data = (
        sample.routing.serialize()
        if kind == ROUTING
        else wire_encode(sample.routing, wire_format(kind), **wire)[0]
    )
    with _replacing(path) as part:
        part.write_bytes(data)
    beside = _beside(path, kind)
    if sample.info:
        with _replacing(beside) as part:
            part.write_text(json.dumps(dict(sample.info)))
    else:
        beside.unlink(missing_ok=True)  # what was known of the routing that is replaced


def _save_tar(path: Path, samples: dict[str, Sample], progress: _Progress) -> None:
    with _replacing(path) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, (routing, info) in progress(samples.items()):
            files = {name + ROUTING: routing.serialize()}
            if info:
                files[name + INFO] = json.dumps(dict(info)).encode()
            for file, data in files.items():
                entry = tarfile.TarInfo(file)
                entry.size = len(data)
                archive.addfile(entry, BytesIO(data))


def _routing(data: Any, source: object) -> Routing:
    try:
        return Routing.deserialize(data)
    except ValueError as reason:
        raise error(Status.ERR_FORMAT, f"{source}: {reason}") from None


def _beside(path: Path, kind: str) -> Path:
    """The file of what is known of the routing in `path`."""
    return path.with_name(path.name.removesuffix(kind) + INFO)


def _info(text: bytes | str, source: object) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise error(Status.ERR_FORMAT, f"{source}: {reason}") from None
    return _object(info, source)


def _object(value: object, source: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise error(
            Status.ERR_FORMAT,
            f"{source}: this is not a JSON object: write {{...}}, or take the file away",
        )
    return value


# ---- safetensors


def _save_safetensors(path: Path, samples: dict[str, Sample], progress: _Progress) -> None:
    _safetensors()
    from safetensors.numpy import save_file

    tensors: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}
    for name, (routing, info) in progress(samples.items()):
        arrays = {
            "ids": routing.ids(np.int16),
            "missing": routing.reasons(),
            "tags": routing.tags,
            "first": np.array([routing.first], np.int64),
            **{name: array.astype(np.int32) for name, array in layers_of(routing).items()},
            "layer_provenance": routing.layer_provenance,
        }
        about = {"id_space": routing.id_space.name.lower(), "info": dict(info)}
        if routing.weights_dtype is not None:  # bfloat16 as uint16
            about["weights"] = routing.weights_dtype.name.lower()
            arrays["weights"] = routing.weights(routing.weights_dtype)
        tensors.update({f"{name}/{each}": array for each, array in arrays.items()})
        texts[name] = json.dumps(about)
    with _replacing(path) as part:
        save_file(tensors, part, texts)


def _load_safetensors(path: Path, progress: _Progress) -> dict[str, Sample]:
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return {
                name: _sample(name, text, file.get_tensor)
                for name, text in progress((file.metadata() or {}).items())
            }
    except (safetensors.SafetensorError, ValueError, TypeError, IndexError) as reason:
        raise error(Status.ERR_FORMAT, f"{path}: {reason}") from None


def _sample(name: str, text: str, tensor: Callable[[str], NDArray[Any]]) -> Sample:
    about = _info(text, name)
    ids, missing = tensor(f"{name}/ids"), tensor(f"{name}/missing")
    if ids.shape[:2] != missing.shape:
        raise error(
            Status.ERR_FORMAT,
            f"{name}: missing is {missing.shape}, ids are {ids.shape}: give a file that"
            " routecap.save wrote",
        )
    layers: dict[str, Any] = {each: tensor(f"{name}/{each}") for each in ARRAYS}
    routing = Routing.from_arrays(
        ids,
        first=tensor(f"{name}/first").item(),
        valid=missing == 0,
        reasons=missing,
        tags=tensor(f"{name}/tags"),
        **layers,
        layer_provenance=tensor(f"{name}/layer_provenance"),
        id_space=member(IdSpace, about.get("id_space", "")),
        weights=tensor(f"{name}/weights") if "weights" in about else None,
        weights_dtype=about.get("weights"),
    )
    return Sample(routing, _object(about.get("info", {}), name))


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            "safetensors is needed for this: pip install 'routecap[safetensors]'"
        ) from None
    return safetensors
