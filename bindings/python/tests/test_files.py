"""Routings in files: what is saved comes back equal, and what is damaged is an error."""

import json
import os
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
import safetensors.numpy
from routecap_testing.helpers import EXPERTS, K, LAYERS, expected_ids
from routecap._samples import token_texts

INFO = {"tokens": ["a", "\udcc3", "\udca9", "\n"], "prompt_tokens": 2, "reward": 0.5}


@pytest.fixture
def wide() -> routecap.Routing:
    """More than 256 experts, other decoder layers, one of them recomputed, a later first row, many
    tags, and cells missing for each reason.
    """
    ids = expected_ids(5, 40, layers=3, k=2, experts=500).astype(np.int16)
    valid = np.ones((40, 3), bool)
    for number, reason in enumerate(routecap.Missing):
        valid[number * 3 : number * 3 + 2, number % 3] = False
        ids[~valid[:, number % 3], number % 3, 0] = reason
    return routecap.Routing.from_arrays(
        ids,
        first=17,
        valid=valid,
        tags=np.arange(40, dtype=np.uint64) // 4 + (1 << 63),
        layer_map=[1, 4, 9],
        layer_experts=[500, 500, 501],
        layer_provenance=["captured", "recomputed", "captured"],
        id_space="physical",
    )


@pytest.fixture
def samples(
    routing: routecap.Routing, holey: routecap.Routing, wide: routecap.Routing
) -> dict[str, routecap.Sample]:
    holey.wait()
    none = routecap.Routing.from_arrays(np.zeros((0, 2, 2), np.uint8), experts=4)
    return {
        "complete": routecap.Sample(routing, INFO),
        "with holes": routecap.Sample(holey),
        "wide.10": routecap.Sample(wide),
        "wide.9": routecap.Sample(wide),
        "empty": routecap.Sample(none),
    }


KINDS = ["folder", "job.tar", "job.safetensors"]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded_again(
    kind: str, mmap: bool, samples: dict[str, routecap.Sample], tmp_path: Path
) -> None:
    routecap.save(tmp_path / kind, samples)
    loaded = routecap.load(tmp_path / kind, mmap=mmap)
    assert {name: (sample.routing, dict(sample.info)) for name, sample in loaded.items()} == {
        name: (sample.routing, dict(sample.info)) for name, sample in samples.items()
    }
    assert all(
        loaded[name].routing.serialize() == sample.routing.serialize()
        for name, sample in samples.items()
    )
    assert not list(tmp_path.glob("**/*.part"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_converts_into_every_other(
    kind: str, samples: dict[str, routecap.Sample], tmp_path: Path
) -> None:
    routecap.save(tmp_path / kind, samples)
    for other in KINDS:
        routecap.save(tmp_path / f"again-{other}", routecap.load(tmp_path / kind))
        again = routecap.load(tmp_path / f"again-{other}")
        assert {name: sample.routing for name, sample in again.items()} == {
            name: sample.routing for name, sample in samples.items()
        }


def test_one_routing_is_a_file_with_its_text_beside_it(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    file = tmp_path / "request-7.routecap"
    routecap.save(file, routecap.Sample(routing, INFO))
    assert file.read_bytes() == routing.serialize()
    assert json.loads((tmp_path / "request-7.json").read_text()) == INFO
    assert routecap.load(file)["request-7"] == (routing, INFO)
    routecap.save(file, routing)  # of which nothing else is known
    assert (
        not (tmp_path / "request-7.json").exists() and routecap.load(file)["request-7"].info == {}
    )


def test_what_a_c_program_writes_is_loaded(routing: routecap.Routing, tmp_path: Path) -> None:
    for number in (10, 9):
        (tmp_path / f"request-{number}.routecap").write_bytes(routing.serialize())
    (tmp_path / "request-9.json").write_text('{"tokens": ["x"]}\n')
    (tmp_path / "notes.txt").write_text("none of ours")
    loaded = routecap.load(tmp_path)
    assert list(loaded) == ["request-9", "request-10"] and loaded["request-9"].info == {
        "tokens": ["x"]
    }


def test_an_archive_that_tar_makes_of_a_folder_is_loaded(
    samples: dict[str, routecap.Sample], tmp_path: Path
) -> None:
    routecap.save(tmp_path / "job", samples)
    with tarfile.open(tmp_path / "job.tar", "w") as archive:
        archive.add(tmp_path / "job", "job")
    loaded = routecap.load(tmp_path / "job.tar")
    assert {name: sample.routing for name, sample in loaded.items()} == {
        name: sample.routing for name, sample in samples.items()
    }


def test_a_mapped_file_is_used_in_place(routing: routecap.Routing, tmp_path: Path) -> None:
    for kind in ("one.routecap", "job.tar"):
        routecap.save(tmp_path / kind, routing)
        [sample] = routecap.load(tmp_path / kind, mmap=True).values()
        maps = Path("/proc/self/maps").read_text().splitlines()
        [(start, end)] = [
            [int(each, 16) for each in line.split()[0].split("-")]
            for line in maps
            if line.endswith(f"/{kind}")
        ]
        segment = sample.routing.segments[0].ids
        assert segment is not None and start <= segment.ctypes.data < end


def test_safetensors_need_no_routecap(holey: routecap.Routing, tmp_path: Path) -> None:
    holey.wait()
    routecap.save(tmp_path / "job.safetensors", {"a": routecap.Sample(holey, INFO)})
    arrays = safetensors.numpy.load_file(tmp_path / "job.safetensors")
    assert set(arrays) == {
        f"a/{name}"
        for name in (
            "ids",
            "missing",
            "tags",
            "first",
            "layer_map",
            "layer_experts",
            "layer_k",
            "layer_min_k",
            "layer_visit",
            "layer_provenance",
        )
    }
    valid = arrays["a/missing"] == 0
    assert (valid == holey.mask()).all() and not valid.all()
    assert (arrays["a/ids"] == np.where(valid[..., None], expected_ids(3, 10), -1)).all()
    assert (
        arrays["a/missing"][4, 0] == routecap.Missing.ABSENT
        and arrays["a/missing"][6, 2] == routecap.Missing.UNWRITTEN
    )
    assert arrays["a/tags"].tolist() == [1] * 4 + [0] * 2 + [2] * 4 and arrays[
        "a/first"
    ].tolist() == [0]
    assert (
        arrays["a/layer_map"].tolist() == list(range(LAYERS))
        and arrays["a/layer_experts"].tolist() == [EXPERTS] * LAYERS
    )


def test_progress_sees_every_sample(samples: dict[str, routecap.Sample], tmp_path: Path) -> None:
    seen: list[Any] = []

    def progress(items: Any) -> Any:
        for item in items:
            seen.append(item)
            yield item

    for kind in KINDS:
        for step in (
            lambda: routecap.save(tmp_path / kind, samples, progress=progress),
            lambda: routecap.load(tmp_path / kind, progress=progress),
        ):
            seen.clear()
            step()
            assert len(seen) >= len(samples)


def test_tokens_that_are_characters_only_together_are_put_together(
    routing: routecap.Routing,
) -> None:
    assert token_texts(routecap.Sample(routing[:4], INFO)) == ["a", "", "é", "\n"]
    assert token_texts(routecap.Sample(routing[2:6], INFO)) == ["é", "\n", "", ""]
    assert token_texts(routecap.Sample(routing)) is None
    with pytest.raises(ValueError, match="array of strings"):
        token_texts(routecap.Sample(routing, {"tokens": [1, 2]}))


# ---- Wrong use and damage


@pytest.mark.parametrize(
    "name", ["out.npy.gz", "out.npz", "out.json", "out.txt", "out.TAR", "v1.2"]
)
def test_an_ending_that_no_kind_of_file_has_is_refused(
    name: str, routing: routecap.Routing, tmp_path: Path
) -> None:
    """It made a folder of that name, and the file that was asked for was nowhere."""
    with pytest.raises(routecap.ArgumentError) as raised:
        routecap.save(tmp_path / name, routing)
    for word in (name, ".routecap", ".tar", ".safetensors", "folder", "slash"):
        assert word in str(raised.value)
    assert not list(tmp_path.iterdir())
    (tmp_path / name).write_bytes(routing.serialize())
    with pytest.raises(routecap.ArgumentError, match="does not read: name a file .routecap"):
        routecap.load(tmp_path / name)


def test_a_folder_is_a_name_without_an_ending_or_with_a_slash_or_one_that_is_there(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    routecap.save(tmp_path / "job", {"a": routing})
    routecap.save(f"{tmp_path}/v1.2/", {"a": routing})
    routecap.save(tmp_path / "v1.2", {"b": routing})
    routecap.save(f"{tmp_path}/x.tar/", {"a": routing})
    (tmp_path / "y.safetensors").mkdir()
    routecap.save(tmp_path / "y.safetensors", {"a": routing})
    for folder, names in (("job", "a"), ("v1.2", "ab"), ("x.tar", "a"), ("y.safetensors", "a")):
        assert sorted(each.name for each in (tmp_path / folder).iterdir()) == [
            f"{name}.routecap" for name in names
        ]
        assert list(routecap.load(tmp_path / folder)) == list(names)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "line\nbreak"])
def test_a_name_that_is_no_file_name_is_refused(
    name: str, routing: routecap.Routing, tmp_path: Path
) -> None:
    for kind in KINDS:
        with pytest.raises(ValueError, match="name of a file"):
            routecap.save(tmp_path / kind, {"good": routing, name: routing})
    assert not list(tmp_path.iterdir())


def test_a_file_for_one_routing_takes_no_two(routing: routecap.Routing, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds one routing, not 2"):
        routecap.save(tmp_path / "a.routecap", {"a": routing, "b": routing})


def test_a_file_is_there_as_a_whole_or_as_it_was(routing: routecap.Routing, tmp_path: Path) -> None:
    routecap.save(tmp_path / "job.tar", routing)
    before = (tmp_path / "job.tar").read_bytes()
    with pytest.raises(TypeError):
        routecap.save(
            tmp_path / "job.tar", {"a": routing, "b": routecap.Sample(routing, {"tokens": {1, 2}})}
        )
    assert (tmp_path / "job.tar").read_bytes() == before and [
        each.name for each in tmp_path.iterdir()
    ] == ["job.tar"]


def test_what_is_damaged_is_an_error_that_names_the_file(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    good = routing.serialize()
    for number, (data, info) in enumerate(
        [(good[:-1], "{}"), (b"", "{}"), (good, "[]"), (good, "{"), (good, "[" * 100_000)]
    ):
        for kind in ("routecap", "tar"):
            path = tmp_path / f"{number}.{kind}"
            if kind == "tar":
                with tarfile.open(path, "w") as archive:
                    for name, part in (("x.routecap", data), ("x.json", info.encode())):
                        entry = tarfile.TarInfo(name)
                        entry.size = len(part)
                        archive.addfile(entry, BytesIO(part))
            else:
                path.write_bytes(data)
                path.with_suffix(".json").write_text(info)
            for mmap in (False, True):
                with pytest.raises(ValueError, match=f"/{number}\\.") as raised:
                    routecap.load(path, mmap=mmap)
                assert (
                    isinstance(raised.value, routecap.Error)
                    and raised.value.status == routecap.Status.ERR_FORMAT
                )


def test_what_is_no_archive_is_an_error(routing: routecap.Routing, tmp_path: Path) -> None:
    routecap.save(tmp_path / "good.tar", {"a": routing})
    good = (tmp_path / "good.tar").read_bytes()
    for data in (b"x" * 2000, good[:700], good[:300]):
        (tmp_path / "bad.tar").write_bytes(data)
        with pytest.raises(ValueError, match="bad.tar"):
            routecap.load(tmp_path / "bad.tar")


def archive_of(path: Path, files: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return path


def test_routings_of_one_name_in_an_archive_keep_their_folders(
    routing: routecap.Routing, holey: routecap.Routing, tmp_path: Path
) -> None:
    """`stored` gave the last of them for both, and said nothing."""
    holey.wait()
    path = archive_of(
        tmp_path / "ranks.tar",
        [
            ("rank1/r.json", b'{"rank": 1}'),
            ("rank0/r.routecap", routing.serialize()),
            ("./rank1/r.routecap", holey.serialize()),
            ("rank0/other.routecap", routing.serialize()),
            ("rank0/other.json", b'{"rank": 0}'),
            ("rank0/notes.txt", b""),
        ],
    )
    expected = {"rank0/r": routing, "rank1/r": holey, "other": routing}
    for mmap in (False, True):
        loaded = routecap.load(path, mmap=mmap)
        assert {name: sample.routing for name, sample in loaded.items()} == expected
        assert {name: dict(sample.info) for name, sample in loaded.items()} == {
            "rank0/r": {},
            "rank1/r": {"rank": 1},
            "other": {"rank": 0},
        }
    found = routecap.stored(path)
    assert {name: each.read(0, each.rows) for name, each in found.items()} == expected


def test_load_and_stored_refuse_the_same_archives(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    good = routing.serialize()
    twice = archive_of(tmp_path / "twice.tar", [("a.routecap", good), ("./a.routecap", good)])
    cut = tmp_path / "cut.tar"
    cut.write_bytes(twice.read_bytes()[:1024])
    # A size below 0 leads back to its own header: an archive that never ends.
    again = tmp_path / "again.tar"
    header = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(-512, 12, tarfile.GNU_FORMAT)
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    again.write_bytes(header * 4)
    # A comment of 8 EiB, of which nothing is there; and header after header before a file.
    claims, deep = tmp_path / "claims.tar", tmp_path / "deep.tar"
    comment = tarfile.TarInfo("x")
    comment.type, comment.size = tarfile.XHDTYPE, 1 << 62
    claims.write_bytes(comment.tobuf(tarfile.GNU_FORMAT) + bytes(512))
    long_name = tarfile.TarInfo("x")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 512
    deep.write_bytes((long_name.tobuf(tarfile.GNU_FORMAT) + b"x" * 512) * 3000)
    # A file of 1 TiB that says it is all holes.
    sparse = tmp_path / "sparse.tar"
    holes = tarfile.TarInfo("a.routecap")
    holes.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(holes.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = tarfile.itn(1 << 40, 12, tarfile.GNU_FORMAT)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    sparse.write_bytes(block + bytes(1024))
    damaged = archive_of(tmp_path / "damaged.tar", [("a.routecap", good[:-1])])
    for path in (twice, cut, again, claims, deep, sparse, damaged):
        for read in (routecap.load, routecap.stored):
            with pytest.raises(routecap.ArgumentError, match=path.name) as raised:
                read(path)
            assert raised.value.status == routecap.Status.ERR_FORMAT


def test_a_folder_gives_its_files_in_the_order_of_their_numbers(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    for number in (10, 9, 100):
        (tmp_path / f"r-{number}.routecap").write_bytes(routing.serialize())
    os.mkfifo(tmp_path / "r-1.routecap")  # would be waited for, for ever
    for found in (routecap.load(tmp_path), routecap.stored(tmp_path)):
        assert list(found) == ["r-9", "r-10", "r-100"]


def test_safetensors_of_something_else_are_an_error(
    routing: routecap.Routing, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    routecap.save(path, {"a": routing})
    good = safetensors.numpy.load_file(path)
    texts = {"a": '{"id_space": "logical", "info": {}}'}

    def refused(arrays: dict[str, Any], metadata: dict[str, str]) -> None:
        safetensors.numpy.save_file(arrays, path, metadata)
        with pytest.raises((routecap.Error, ValueError)):
            routecap.load(path)

    safetensors.numpy.save_file(good, path, texts)
    assert routecap.load(path)["a"].routing == routing
    refused(good, {"format": "pt"})
    refused(good, {"a": '{"id_space": "neither"}'})
    refused({name: array for name, array in good.items() if name != "a/tags"}, texts)
    refused({**good, "a/ids": good["a/ids"][:5].copy()}, texts)
    refused({**good, "a/ids": np.zeros_like(good["a/ids"])}, texts)
    refused({**good, "a/ids": good["a/ids"] + np.int16(EXPERTS)}, texts)
    refused({**good, "a/ids": good["a/ids"].astype(np.float32)}, texts)
    refused({**good, "a/first": np.zeros(0, np.int64)}, texts)
    refused({**good, "a/first": np.array([-1])}, texts)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="x.safetensors"):
        routecap.load(path)
    assert K == good["a/ids"].shape[2]


def test_a_missing_extra_is_named(
    routing: routecap.Routing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'routecap\[safetensors\]'"):
        routecap.save(tmp_path / "a.safetensors", routing)
