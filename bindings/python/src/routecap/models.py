"""What a model's configuration says of its mixture of experts: which layers route, among how many
experts, and how many of these each token gets.

    model = routecap.models.describe("path/of/config.json")
    capturer = routecap.Capturer(**model.settings(), rows=8192)

Configurations agree on none of it. `FAMILIES` says of each family of transformers which fields its
code reads, and what it takes where a configuration leaves one out. A configuration of another model
is read by the names that are in use. Neither torch nor transformers is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from . import _model_fields as in_use
from ._constants import MAX_K, Status
from ._errors import error
from ._model_fields import FAMILIES, Family

__all__ = ["FAMILIES", "CapturerSettings", "Description", "Family", "describe"]


class CapturerSettings(TypedDict):
    """Settings of a `Capturer` that a model decides."""

    layers: int
    k: int
    experts: int
    layer_map: list[int]
    layer_experts: list[int]
    layer_k: NotRequired[list[int]]
    """Where layers differ in it."""
    layer_visit: NotRequired[list[int]]
    """Where layers run several times."""


@dataclass(frozen=True, slots=True)
class Description:
    """What `describe` returns. A fact that is not known is None, and named in `unknown`.

    What it says is of the model's decoder alone; `elsewhere` names what else routes.
    """

    family: str | None
    """The entry of `FAMILIES` by which the configuration was read. None: by the names in use."""
    decoder_layers: int | None
    """Layers of the decoder, dense ones counted; layers that only predict drafts are not."""
    layer_map: tuple[int, ...] | None
    """Index in the decoder of each layer that routes, ascending. Empty: there are no experts. A layer
    that runs several times is there as often, see `layer_visit`."""
    layer_visit: tuple[int, ...] | None
    """Of each layer of `layer_map`, how often the decoder ran it before: 0, unless it loops."""
    layer_experts: tuple[int, ...] | None
    """Of each layer of `layer_map`, how many experts it chooses from: ids are below. Zero experts
    are counted, shared experts are not; all banks are."""
    layer_k: tuple[int, ...] | None
    """Of each layer of `layer_map`, how many experts each token gets."""
    experts: int | None
    """The most of any layer; known also where the layers are not. 0: the model has none."""
    k: int | None
    """The most of any layer; known also where the layers are not. 0: the model has no experts."""
    zero_experts: int
    """How many of a layer's experts compute nothing (identity, or skip). Their ids are the last."""
    shared_experts: int | None
    """Experts that every token passes beside those it is routed to; they have no ids. Where a
    configuration gives only their width, they count as one."""
    groups: int
    """Into how many groups a layer's experts are divided before the choice; 1: they are not."""
    groups_kept: int
    """From how many of the groups a token's experts are chosen."""
    banks: int
    """How many banks of experts a layer has, each for tokens of another kind: text and images, say.
    They have `layer_experts` / `banks` experts each, and what captures them adds so many to the ids
    of each bank after the first."""
    uncaptured: str
    """Why no adapter captures the model; "" if some do. A `Capturer` may all the same, as long as
    `settings` does not refuse the model."""
    elsewhere: tuple[str, ...]
    """What else of the model routes and is not described here: "encoder", "attention", or the name
    of another part of the configuration, which `describe` takes by itself."""
    unknown: tuple[str, ...]
    """Fields of this class that the configuration does not tell."""
    assumed: tuple[str, ...]
    """Fields that were concluded from what the configuration does not have, of a model that is in
    no family. Empty where the family is known."""

    @property
    def layers(self) -> int | None:
        """How many layers route, each counted as often as it runs."""
        return None if self.layer_map is None else len(self.layer_map)

    @property
    def has_experts(self) -> bool | None:
        """Whether any layer routes; None if that is not known."""
        return None if self.layer_map is None else bool(self.layer_map)

    def settings(self) -> CapturerSettings:
        """Settings for a `Capturer`; it needs `rows` besides, the most tokens of a forward pass.

        Raises:
            ValueError: The model has no experts, something of this is not known, or a layer gives a
                token more than MAX_K experts.
        """
        if self.has_experts is False:
            raise ValueError(
                "the model has no experts: there is nothing to capture. Give a mixture-of-experts"
                " model's configuration"
            )
        if (
            self.layer_map is None
            or self.layer_visit is None
            or self.layer_experts is None
            or self.layer_k is None
        ):
            missing = [name for name in self.unknown if name in ("layer_map", "experts", "k")]
            raise ValueError(
                f"the configuration does not tell {' and '.join(missing)}: give them to Capturer"
                " yourself"
            )
        k = max(self.layer_k)
        if k > MAX_K:
            raise ValueError(
                f"a token gets {k} experts in layer {self.layer_map[self.layer_k.index(k)]}, and a"
                f" layer must have at most {MAX_K} of a token to be captured"
            )
        settings: CapturerSettings = {
            "layers": len(self.layer_map),
            "k": k,
            "experts": max(self.layer_experts),
            "layer_map": list(self.layer_map),
            "layer_experts": list(self.layer_experts),
        }
        if min(self.layer_k) < k:
            settings["layer_k"] = list(self.layer_k)
        if any(self.layer_visit):
            settings["layer_visit"] = list(self.layer_visit)
        return settings


def describe(config: object) -> Description:
    """What a Hugging Face configuration says of a model's experts.

        model = routecap.models.describe(AutoConfig.from_pretrained("Qwen/Qwen3-30B-A3B"))
        capturer = routecap.Capturer(**model.settings(), rows=8192, backend="cuda")

    A configuration that leaves out what has a default is read as transformers reads it, if the
    family is known (`Description.family`). Otherwise see `assumed`, and `unknown`. What is no
    model that is known, or no model, gives a description that says so, and no exception.

    Args:
        config: A configuration object, of transformers or with fields of these names; a mapping, as
            config.json has it; the path of such a file, or of a folder with a config.json. Where it
            has parts (text_config, llm_config and so on), that of the language model is read.

    Raises:
        OSError: The file cannot be read.
        Error: The file has no JSON object (a ValueError, too).
    """
    if isinstance(config, (str, os.PathLike)):
        config = _read(Path(config))
    part, family, elsewhere = _language_model(config)
    return _describe(_Fields(part, family), family, elsewhere)


def _read(path: Path) -> Mapping[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as reason:
        raise error(Status.ERR_FORMAT, f"{path}: {reason}") from None
    if not isinstance(content, dict):
        raise error(
            Status.ERR_FORMAT,
            f"{path}: this is not a JSON object: name a model's config.json, or its folder",
        )
    return content


_DEEPEST = 8  # part of a part that is looked into
_MOST_LAYERS = 65536  # a number of layers above is none


def _language_model(
    config: object, parent: str = "", depth: int = 0
) -> tuple[Any, str | None, tuple[str, ...]]:
    """The part that is the language model's, its family, and which other parts have experts."""
    kind = _value(config, "model_type")
    kind = kind if isinstance(kind, str) and kind else f"{parent}_text"
    if kind in FAMILIES:
        return config, kind, ()
    for name in in_use.NESTED if depth < _DEEPEST else ():
        if _is_part(inner := _value(config, name)):
            part, family, elsewhere = _language_model(inner, kind, depth + 1)
            return part, family, (*elsewhere, *_others(config, name))
    others = (in_use.SAME_AS.get(kind), f"{kind}_text")
    family = next((each for each in others if each in FAMILIES), None)
    return config, family, ()


def _others(config: object, taken: str) -> Iterator[str]:
    """The names of the parts, but one, that have experts."""
    for name, part in (config if isinstance(config, Mapping) else vars(config)).items():
        if name != taken and name.endswith("_config") and _is_part(part):
            other = describe(part)
            if other.has_experts or other.family is not None and other.has_experts is None:
                yield name


def _is_part(value: object) -> bool:
    """Whether a value is a configuration by itself."""
    return isinstance(value, Mapping) or (hasattr(value, "__dict__") and not callable(value))


# ---- Reading


class _UnreadableError(Exception):
    """A field that says which layers route says it in no way that is known."""


def _value(config: object, name: str) -> Any:
    """Of a field, or of one in a part: "ffn_config.moe_top_k". None if it is not there, or differs
    from layer to layer."""
    for each in name.split("."):
        try:
            config = (
                config.get(each) if isinstance(config, Mapping) else getattr(config, each, None)
            )
        except Exception:  # transformers raises its own for what layers have in different ways
            return None
    return config


def has_experts_field(config: object) -> bool:
    """Whether a configuration has a field that says how many experts there are, by any of the names
    that models give it.
    """
    return _first(_language_model(config)[0], in_use.EXPERTS) is not None


def _first(config: object, names: Iterable[str]) -> Any:
    return next((value for name in names if (value := _value(config, name)) is not None), None)


def _has(config: object, name: str) -> bool:
    """Whether a configuration has a field, be it None."""
    part, _, name = name.rpartition(".")
    config = _value(config, part) if part else config
    try:
        return name in config if isinstance(config, Mapping) else hasattr(config, name)
    except Exception:
        return True


def _numbers(value: object) -> list[int]:
    """The numbers in a value: itself, or those of a list. What has more than 32 bits counts nothing
    of a model.
    """
    values = value if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
    numbers = (each for each in values if isinstance(each, int) and not isinstance(each, bool))
    return [each for each in numbers if -(1 << 31) <= each < 1 << 31]


def _most(value: object) -> int | None:
    return max(_numbers(value), default=None)


class _Fields:
    """The fields of one configuration, as its family reads them."""

    def __init__(self, config: object, family: str | None) -> None:
        self.config = config
        self.family = None if family is None else FAMILIES[family]

    def rule(self, name: str) -> Any:
        """A field that says which layers route. None: it is not there, or the family does not read
        it."""
        if self.family is not None and name not in self.family.fields:
            return None
        value = _value(self.config, name)
        return value if value is not None or self.family is None else self.family.fields[name]

    def rule_numbers(self, name: str) -> list[int]:
        """The numbers of such a field; none if it is not there."""
        value = self.rule(name)
        numbers = _numbers(value)
        if value is not None and len(numbers) != (
            len(value) if isinstance(value, (list, tuple, set, frozenset, range)) else 1
        ):
            raise _UnreadableError(name)
        return numbers

    def fact(self, names: Iterable[str]) -> Any:
        """The value under one of the names of one thing: under the family's own, any other, or else
        its default."""
        fields = {} if self.family is None else self.family.fields
        own = [name for name in names if name in fields]
        value = _first(self.config, (*own, *names))
        return fields[own[0]] if value is None and own and not _has(self.config, own[0]) else value

    def of_layers(self, names: Iterable[str], layers: tuple[int, ...]) -> tuple[int, ...] | None:
        """The number that each of some layers has, where there is one for all of them."""
        numbers = []
        for layer in layers:
            own = self._own(layer)
            value = None if own is None else _first(own, names)
            value = self.fact(names) if value is None else value
            if (
                isinstance(value, (list, tuple)) and len(value) > layers[-1]
            ):  # for each layer; or else, for each modality
                value = value[layer]
            number = _most(value)
            if number is None:
                return None
            numbers.append(number)
        return tuple(numbers)

    def _own(self, layer: int) -> Any:
        """What a layer has otherwise than the model."""
        layers = _first(self.config, in_use.PER_LAYER)
        if isinstance(layers, Mapping):
            return layers.get(layer, layers.get(str(layer)))
        try:
            return None if layers is None else layers[layer]
        except (LookupError, TypeError):
            return None

    def has_rules(self) -> bool:
        """Whether any field says which layers route."""
        return any(self.rule(name) is not None for name in in_use.RULES)

    def hints(self) -> bool:
        """Whether any field has a name that is of experts, and says something."""
        config = self.config
        fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        return any(
            isinstance(name, str) and name[:1] != "_" and value and in_use.HINT.search(name)
            for name, value in fields.items()
        )


# ---- What is said


def _describe(fields: _Fields, family: str | None, elsewhere: tuple[str, ...]) -> Description:
    known = fields.family
    experts, k = _most(fields.fact(in_use.EXPERTS)), _chosen(fields)
    zero = (known.zero_experts if known else 0) + (_most(fields.fact(in_use.ZERO)) or 0)
    named = known is not None or experts is not None or k is not None or fields.has_rules()
    decoder_layers, layer_map, listed = _layers(fields, named)
    layer_map, layer_visit = _visits(fields, layer_map)
    own = _value(fields.config, in_use.PER_LAYER[1]) is not None  # each layer says its own
    no_choice = not own and (k == 0 or (experts is not None and experts + zero <= 1))
    switched_off = any(fields.rule(name) is False for name in in_use.SWITCHES)
    nothing = not (named or listed or fields.hints())
    if layer_map == () or no_choice or switched_off or nothing:
        return _without_experts(family, decoder_layers, elsewhere)

    layer_experts = layer_k = None
    if layer_map is not None:
        layer_experts = fields.of_layers(in_use.EXPERTS, layer_map)
        layer_k = (
            (known.k,) * len(layer_map)
            if known and known.k
            else fields.of_layers(in_use.CHOSEN, layer_map)
        )
    banks = _banks(fields)
    if layer_experts is not None:
        layer_experts = tuple(each * banks + zero for each in layer_experts)
    groups, kept = _groups(fields)
    answer: dict[str, Any] = {
        "decoder_layers": decoder_layers,
        "layer_map": layer_map,
        "experts": (
            max(layer_experts)
            if layer_experts
            else None
            if experts is None
            else experts * banks + zero
        ),
        "k": max(layer_k) if layer_k else k,
        "shared_experts": _shared(fields),
    }
    concluded = (
        {}
        if known
        else {
            "layer_map": layer_map is not None and not listed,
            "zero_experts": zero == 0,
            "groups": groups == 1,
        }
    )
    return Description(
        family=family,
        layer_visit=layer_visit,
        layer_experts=layer_experts,
        layer_k=layer_k,
        zero_experts=zero,
        groups=groups,
        groups_kept=kept,
        banks=banks,
        uncaptured=known.uncaptured if known else "",
        elsewhere=(known.elsewhere if known else ()) + elsewhere,
        unknown=tuple(name for name, value in answer.items() if value is None),
        assumed=tuple(name for name, absent in concluded.items() if absent),
        **answer,
    )


def _without_experts(
    family: str | None, decoder_layers: int | None, elsewhere: tuple[str, ...]
) -> Description:
    return Description(
        family=family,
        decoder_layers=decoder_layers,
        layer_map=(),
        layer_visit=(),
        layer_experts=(),
        layer_k=(),
        experts=0,
        k=0,
        zero_experts=0,
        shared_experts=0,
        groups=1,
        groups_kept=1,
        banks=1,
        uncaptured="",
        elsewhere=elsewhere,
        unknown=() if decoder_layers is not None else ("decoder_layers",),
        assumed=("layer_map",) if family is None else (),
    )


def _visits(
    fields: _Fields, layer_map: tuple[int, ...] | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The layers with those that run several times as often as they do, and which visit each is.
    None: nothing says which these are."""
    passes = _most(fields.fact(in_use.LOOPS)) or 1
    if layer_map is None or passes <= 1:
        return layer_map, None if layer_map is None else (0,) * len(layer_map)
    start, end = (_most(fields.fact(names)) for names in (in_use.LOOP_START, in_use.LOOP_END))
    if start is None or end is None or passes * len(layer_map) > _MOST_LAYERS:
        return None, None
    pairs = [
        (layer, visit)
        for layer in layer_map
        for visit in range(passes if start <= layer < end else 1)
    ]
    return tuple(layer for layer, _ in pairs), tuple(visit for _, visit in pairs)


def _banks(fields: _Fields) -> int:
    """A number of experts for each kind of tokens says how many banks there are."""
    experts, layers = fields.fact(in_use.EXPERTS), _most(fields.fact(in_use.LAYERS))
    known = 1 if fields.family is None else fields.family.banks
    if isinstance(experts, (list, tuple)) and layers is not None and 1 < len(experts) < layers:
        return max(known, len(experts))
    return known


def _chosen(fields: _Fields) -> int | None:
    return (
        fields.family.k if fields.family and fields.family.k else _most(fields.fact(in_use.CHOSEN))
    )


def _groups(fields: _Fields) -> tuple[int, int]:
    groups, kept = (
        _most(fields.fact(in_use.GROUPS)) or 1,
        _most(fields.fact(in_use.GROUPS_KEPT)) or 1,
    )
    return (1, 1) if groups == 1 or fields.rule("topk_method") == "greedy" else (groups, kept)


def _shared(fields: _Fields) -> int | None:
    known = fields.family
    if known is not None and known.shared_experts is not None:
        return known.shared_experts
    number, width = _most(fields.fact(in_use.SHARED)), _most(fields.fact(in_use.SHARED_WIDTH))
    if number is None and width is not None:
        return int(width > 0)
    return 0 if number is None and known is not None else number


# ---- Which layers


def _layers(fields: _Fields, named: bool) -> tuple[int | None, tuple[int, ...] | None, bool]:
    """The number of layers, those that route, and whether they are listed. None: not known.

    named: The configuration says something else of experts. Otherwise only a list is believed.
    """
    total = _most(fields.fact(in_use.LAYERS))
    if _most(fields.fact(in_use.ZERO)) and (blocks := _most(_value(fields.config, "num_layers"))):
        total = blocks  # LongCat-Flash: some count its two attention blocks as two hidden layers
    total = total if total is not None and 0 <= total <= _MOST_LAYERS else None
    try:
        kinds, indices = _kinds(fields), _indices(fields)
        if kinds is not None:
            total = len(kinds) if total is None else total
            indices = {layer for layer, routes in enumerate(kinds) if routes}
        if indices is not None:
            inside = (layer for layer in indices if total is None or layer < total)
            return total, tuple(sorted(inside)), True
        dense_first = fields.family.dense_first if fields.family else 0
        if named and total is not None and dense_first is not None:
            return total, _by_rules(fields, total, dense_first), False
    except _UnreadableError:
        pass
    return total, None, False


def _kinds(fields: _Fields) -> list[bool] | None:
    """Of each layer whether it routes, where the configuration lists that."""
    for name in in_use.FLAGS:
        value = fields.rule(name)
        if isinstance(value, (list, tuple)):
            if any(
                isinstance(kind, str) and kind not in (*in_use.SPARSE, *in_use.DENSE_KINDS)
                for kind in value
            ):
                raise _UnreadableError(name)
            return [
                kind in in_use.SPARSE if isinstance(kind, str) else bool(kind) for kind in value
            ]
    blocks = _value(fields.config, in_use.PER_LAYER[1])
    if isinstance(blocks, (list, tuple)) and any(_has(each, in_use.BLOCK) for each in blocks):
        return [_value(each, in_use.BLOCK) == "moe" for each in blocks]
    letters = fields.rule(in_use.LETTERS)
    if isinstance(letters, str):
        return [kind == "E" for kind in letters.replace("|", "")]
    for name in in_use.BLOCKS:
        value = fields.rule(name)
        if isinstance(value, (list, tuple)) and ("moe" in value or "mlp" in value):
            return [kind == "moe" for kind in value]
    return None


def _indices(fields: _Fields) -> set[int] | None:
    """The layers that route, where the configuration lists them."""
    for name in in_use.INDICES:
        value = fields.rule(name)
        if isinstance(value, str) and re.fullmatch(r"[\d\s,]*\d[\d\s,]*", value):
            return {int(each) for each in re.findall(r"\d+", value)}
        if isinstance(value, (list, tuple, set, frozenset, range)):
            return set(fields.rule_numbers(name))
    return None


def _by_rules(fields: _Fields, total: int, dense_first: int) -> tuple[int, ...]:
    """The layers of `total` that route, from the numbers that say so."""
    first = [min(numbers) for name in in_use.DENSE_FIRST if (numbers := fields.rule_numbers(name))]
    last = max(fields.rule_numbers(in_use.LAST), default=-1)
    layers = set(range(max([dense_first, *first]), total if last < 0 else min(total, last + 1)))
    layers -= set(fields.rule_numbers(in_use.DENSE))
    for name, from_zero in in_use.PERIODS:
        for step in fields.rule_numbers(name):
            layers = {
                layer
                for layer in layers
                if step and (layer if from_zero else layer + 1) % step == 0
            }
    for period in fields.rule_numbers(in_use.PERIOD):
        layers = {
            layer
            for layer in layers
            if period and layer % period == max(fields.rule_numbers(in_use.OFFSET), default=0)
        }
    for sparse in fields.rule_numbers(in_use.SPREAD):
        step = total // sparse if sparse else total
        layers = {layer for layer in layers if step == 1 or step and layer % step == 1}
    return tuple(sorted(layers))
