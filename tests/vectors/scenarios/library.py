"""What needs no capturer, and the configuration of one."""

from model.routing import CONFIG, I16, I32, I64, U8
from script import SHAPE, Topic

topic = Topic("library")


@topic.vector("the library has the version of its header")
def _(v):
    v.version()


@topic.vector("the function table is there for this version and older ones of its major number")
def _(v):
    numbers = v.world.header
    major, minor = numbers["VERSION_MAJOR"], numbers["VERSION_MINOR"]
    for other in (
        (major, minor),
        (major, 0),
        (major, minor + 1),
        (major + 1, 0),
        (major - 1, minor),
    ):
        v.get_api(major=other[0], minor=other[1])


@topic.vector("every status has its name, and other numbers have one for all")
def _(v):
    numbers = v.world.header
    start = list(numbers).index("OK")
    for name in list(numbers)[start : list(numbers).index("ERR_INTERNAL") + 1]:
        v.status_name(status=numbers[name])
    for number in (6, -1, -99, -112, -501, 2**31 - 1, -(2**31)):
        v.status_name(status=number)


@topic.vector("the host backend is always available and has no devices")
def _(v):
    v.backend_info(backend=1)


@topic.vector("a backend that the library does not know is not available")
def _(v):
    for backend in (0, 3, -1):
        v.backend_info(backend=backend, raw=True)


@topic.vector("a configuration begins empty but for defaults")
def _(v):
    v.config_init()


@topic.vector("copy options begin with a fill of -1")
def _(v):
    v.copy_options_init()


@topic.vector("every method of routing has its score")
def _(v):
    for method in range(1, 12):
        v.router_init(method=method)
    for method in (0, 12, -1):
        v.router_init(method=method, expect="ERR_ARGUMENT", raw=True)


def memory(v, config):
    v.config_memory(config={"backend": 1, "flags": 4} | config)


for name, config in {
    "a row has a byte for each id up to 256 experts and a bit for each layer": {
        "layers": 58,
        "k": 8,
        "experts": 256,
        "rows": 64,
    },
    "a row has two bytes for each id beyond 256 experts": {
        "layers": 58,
        "k": 8,
        "experts": 257,
        "rows": 64,
    },
    "the layer with the most experts decides how wide ids are": {
        "layers": 3,
        "k": 2,
        "rows": 4,
        "layer_experts": [8, 300, 16],
    },
    "nine layers take two bytes of validity": {"layers": 9, "k": 1, "experts": 4, "rows": 1},
}.items():
    topic.vector(name, config)(memory)


def refused(v, change):
    config = {
        key: value
        for key, value in ({"backend": 1, "flags": 4} | SHAPE | change).items()
        if value is not None
    }
    v.config_memory(config=config, expect="ERR_ARGUMENT", raw=True)
    v.capturer_create(config=config, expect="ERR_ARGUMENT", raw=True)


for name, change in {
    "no layers": {"layers": 0},
    "more layers than there may be": {"layers": 1025},
    "no experts per token": {"k": 0},
    "more experts per token than there may be": {"k": 33, "experts": 64},
    "fewer experts than are chosen": {"experts": 1},
    "no experts": {"experts": None},
    "more experts than there may be": {"experts": 32769},
    "no rows": {"rows": 0},
    "more rows than there may be": {"rows": 1048577},
    "more slots than there may be": {"slots": 65},
    "no backend": {"backend": 0},
    "a load of tags alone": {"flags": 64},
    "an unknown role": {"role": 3},
    "an unknown flag": {"flags": sum(CONFIG.values()) + 1},
    "an unknown id space": {"id_space": 2},
    "a reserved field that is not 0": {"reserved": 1},
    "a layer map that does not ascend": {"layer_map": [1, 3, 3]},
    "a layer map that begins below 0": {"layer_map": [-1, 0, 1]},
    "a layer with fewer experts than are chosen": {"layer_experts": [16, 1, 16]},
    "a layer with more experts than there may be": {"layer_experts": [16, 16, 32769]},
    "an unknown provenance": {"layer_provenance": [0, 2, 0]},
}.items():
    topic.vector(f"a configuration with {name} is refused", change)(refused)

for dtype in (U8, 3, 5, 7, 99):
    topic.vector(f"a sink of dtype {dtype} is refused", {"sink_dtype": dtype})(refused)


@topic.vector("a configuration with a backend that the library does not know is refused")
def _(v):
    config = {"backend": 7, "flags": 4} | SHAPE
    v.config_memory(config=config, expect="ERR_NO_BACKEND", raw=True)
    v.capturer_create(config=config, expect="ERR_NO_BACKEND", raw=True)


@topic.vector("a budget smaller than a page is refused")
def _(v):
    v.told(
        "capturer_create",
        "ERR_ARGUMENT",
        config={"backend": 1, "flags": 4, "budget_bytes": 1} | SHAPE,
    )


def whole(v, config):
    c = v.capturer(**config)
    request = v.open(c)
    v.step(c, (request, 3, 0, 4), tag=1)
    v.land(c)
    v.expect_rows(c, request)


for name, config in {
    "one layer, one expert of one": {"layers": 1, "k": 1, "experts": 1},
    "all experts are chosen": {"layers": 2, "k": 4, "experts": 4},
    "257 experts are read as 16-bit ids": {"experts": 257},
    "256 experts are read as 8-bit ids": {"experts": 256},
    "the most experts there may be": {"experts": 32768},
    "the most experts per token there may be": {"layers": 1, "k": 32, "experts": 64},
    "nine layers": {"layers": 9},
    "seventeen layers of few experts": {"layers": 17, "k": 1, "experts": 3},
    "a layer map with dense layers between": {"layer_map": [1, 2, 60]},
    "layers with different numbers of experts": {"layer_experts": [4, 300, 16], "experts": 0},
    "ids of replicas": {"id_space": 1},
    "a sink of 32-bit ids": {"sink_dtype": I32},
    "a sink of 64-bit ids": {"sink_dtype": I64},
    "a sink of 16-bit ids": {"sink_dtype": I16},
    "one slot": {"slots": 1},
    "the most slots there may be": {"slots": 64},
    "layers declared as recomputed": {"layer_provenance": [0, 1, 0]},
}.items():
    topic.vector(f"rows of a capturer are read back: {name}", config)(whole)
