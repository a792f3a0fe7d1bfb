// Configurations with any number in any field, in structs of any size: what the header says of each
// field, and of structs of older and newer callers.
#include <algorithm>
#include <cstring>

#include "../support/declared.h"
#include "bytes.h"
#include "check.h"

namespace {

using fuzz::Bytes;

// A struct of a caller with another header, in memory of just its size, so that a sanitizer sees
// what is read or written beyond it.
template <class T>
class Sized {
public:
    Sized(Bytes &in, T value) {
        const uint64_t kind = in.below(16);
        const size_t size = kind < 8    ? sizeof(T)
                            : kind < 14 ? sizeof(T) + 1 + in.below(64)
                            : kind < 15 ? sizeof(T) + in.below(4096)
                                        : sizeof(uint32_t) + in.below(sizeof(T) - sizeof(uint32_t));
        value.struct_size = static_cast<uint32_t>(size);
        memory_.assign(size, 0);
        std::memcpy(memory_.data(), &value, std::min(size, sizeof(T)));
        memory_.shrink_to_fit();
    }
    // Sets a byte that this library does not know, at times. Returns whether it did.
    bool set_tail(Bytes &in) {
        const bool sets = memory_.size() > sizeof(T) && in.chance(64);
        if (sets) memory_[sizeof(T) + in.below(memory_.size() - sizeof(T))] = 0x5a;
        return sets;
    }
    bool small() const { return memory_.size() < sizeof(T); }
    T *get() { return reinterpret_cast<T *>(memory_.data()); }
    void check_filled() {
        SAME(memory_.size(), get()->struct_size);
        for (size_t i = sizeof(T); i < memory_.size(); i++)
            if (memory_[i] != 0)
                check::fail("byte %zu of %zu is %u", i, memory_.size(), memory_[i]);
    }

private:
    std::vector<uint8_t> memory_;
};

uint32_t any32(Bytes &in, std::initializer_list<uint32_t> likely) {
    return in.chance(16) ? static_cast<uint32_t>(in.number(4)) : in.pick(likely);
}

// What the header's words say of each field.
int32_t judge(const routecap_config &c) {
    const auto sane = [&] {
        if (c.backend <= 0 || c.id_space < 0 || c.id_space > 1 || (c.flags & ~kConfigFlags) != 0 ||
            (c.flags & (ROUTECAP_CONFIG_LOAD | ROUTECAP_CONFIG_LOAD_TAGS)) ==
                ROUTECAP_CONFIG_LOAD_TAGS ||
            c.reserved != 0)
            return false;
        if (c.layers < 1 || c.layers > ROUTECAP_MAX_LAYERS || c.k < 1 || c.k > ROUTECAP_MAX_K ||
            c.rows < 1 || c.rows > ROUTECAP_MAX_ROWS || c.slots > ROUTECAP_MAX_SLOTS ||
            c.max_requests > 1u << 24)
            return false;
        if (c.sink_dtype != 0 && c.sink_dtype != ROUTECAP_DTYPE_I16 &&
            c.sink_dtype != ROUTECAP_DTYPE_I32 && c.sink_dtype != ROUTECAP_DTYPE_I64)
            return false;
        for (uint32_t l = 0; l < c.layers; l++) {
            const uint32_t experts = c.layer_experts != nullptr ? c.layer_experts[l] : c.experts;
            if (experts < c.k || experts > ROUTECAP_MAX_EXPERTS) return false;
            if (c.layer_map != nullptr &&
                (c.layer_map[l] < 0 || (l > 0 && c.layer_map[l] <= c.layer_map[l - 1])))
                return false;
            if (c.layer_provenance != nullptr && c.layer_provenance[l] != 0 &&
                c.layer_provenance[l] != 1)
                return false;
        }
        return true;
    };
    if (c.role < 0 || c.role > 2) return ROUTECAP_ERR_ARGUMENT;
    // CUDA itself is not tried here.
    if (c.backend > ROUTECAP_BACKEND_CUDA) return ROUTECAP_ERR_NO_BACKEND;
    return sane() ? ROUTECAP_OK : ROUTECAP_ERR_ARGUMENT;
}

void configure(Bytes &in) {
    routecap_config c;
    SAME_STATUS(ROUTECAP_OK, routecap_config_init(&c, sizeof c));
    c.backend = ROUTECAP_BACKEND_HOST;
    c.layers = 3, c.k = 1, c.experts = 8, c.rows = 4;
    c.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
    std::vector<int32_t> map, provenance;
    std::vector<uint32_t> experts;
    for (uint64_t changes = 1 + in.below(4); changes > 0; changes--) switch (in.below(16)) {
            case 0: c.role = static_cast<int32_t>(any32(in, {0, 1, 2, 3})); break;
            case 1: c.device = static_cast<int32_t>(any32(in, {0, 1, 7})); break;
            case 2: c.layers = any32(in, {1, 2, 7, 8, 9, 1024, 1025, 0}); break;
            case 3: c.k = any32(in, {1, 2, 8, 31, 32, 33, 0}); break;
            case 4: c.experts = any32(in, {1, 8, 255, 256, 257, 32767, 32768, 32769, 0}); break;
            case 5: c.rows = any32(in, {1, 2, 1000, 1048576, 1048577, 0}); break;
            case 6: c.slots = any32(in, {0, 1, 2, 64, 65}); break;
            case 7:
                c.sink_dtype = static_cast<int32_t>(any32(in, {0, 1, 2, 3, 4, 5, 6, 7, 16}));
                break;
            case 8:
                c.flags = any32(in, {0, 1, 2, 8, 16, 32, 64, 96, kConfigFlags, kConfigFlags + 1}) |
                          ROUTECAP_CONFIG_MANUAL_PROGRESS;
                break;
            case 9: c.id_space = static_cast<int32_t>(any32(in, {0, 1, 2})); break;
            case 10: c.max_requests = any32(in, {0, 1, 65536, UINT32_MAX}); break;
            case 11: c.reserved = any32(in, {0, 1}); break;
            case 12:
                c.backend = static_cast<int32_t>(in.pick({ROUTECAP_BACKEND_HOST, 0, 3, -1}));
                break;
            case 13: map.resize(ROUTECAP_MAX_LAYERS), c.layer_map = map.data(); break;
            case 14: experts.resize(ROUTECAP_MAX_LAYERS), c.layer_experts = experts.data(); break;
            default:
                provenance.resize(ROUTECAP_MAX_LAYERS), c.layer_provenance = provenance.data();
                break;
        }
    const uint32_t read = std::min<uint32_t>(c.layers, ROUTECAP_MAX_LAYERS);
    for (uint32_t l = 0; l < read; l++) {
        if (!map.empty())
            map[l] =
                in.chance(2) ? static_cast<int32_t>(in.number(4)) : static_cast<int32_t>(3 * l);
        if (!experts.empty()) experts[l] = in.chance(2) ? static_cast<uint32_t>(in.number(3)) : 300;
        if (!provenance.empty())
            provenance[l] =
                in.chance(2) ? static_cast<int32_t>(in.number(1)) : static_cast<int32_t>(l % 2);
    }
    // In memory of just their size.
    map.resize(std::min<size_t>(map.size(), read)), map.shrink_to_fit();
    experts.resize(std::min<size_t>(experts.size(), read)), experts.shrink_to_fit();
    provenance.resize(std::min<size_t>(provenance.size(), read)), provenance.shrink_to_fit();
    if (c.layer_map != nullptr) c.layer_map = map.data();
    if (c.layer_experts != nullptr) c.layer_experts = experts.data();
    if (c.layer_provenance != nullptr) c.layer_provenance = provenance.data();

    const bool disabled = c.role == ROUTECAP_ROLE_DISABLED;
    int32_t expected = judge(c);
    Sized<routecap_config> config(in, c);
    Sized<routecap_memory> memory(in, {});
    const bool tail = config.set_tail(in);
    routecap_capturer *capturer = nullptr;
    if (config.small() || tail) {
        SAME_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_capturer_create(config.get(), &capturer));
        SAME(0, capturer != nullptr);
        return;
    }
    memory.set_tail(in);
    if (!disabled) {
        SAME_STATUS(memory.small() ? ROUTECAP_ERR_STRUCT_SIZE : expected,
                    routecap_config_memory(config.get(), memory.get()));
        if (memory.small()) return;
    }
    if (expected == ROUTECAP_OK && !disabled) {
        memory.check_filled();
        SAME(0, memory.get()->device_bytes + memory.get()->pinned_bytes);
        if (memory.get()->host_bytes > 1 << 22) return;
        const uint64_t page = memory.get()->page_bytes,
                       budget = in.pick({uint64_t{0}, page, page - 1, UINT64_MAX});
        config.get()->budget_bytes = budget;
        if (budget == page - 1) expected = ROUTECAP_ERR_ARGUMENT;
    }
    SAME_STATUS(disabled ? ROUTECAP_OK : expected,
                routecap_capturer_create(config.get(), &capturer));
    SAME(disabled || expected == ROUTECAP_OK, capturer != nullptr);
    if (capturer == nullptr) return;
    routecap_request request = 77;
    SAME_STATUS(ROUTECAP_OK, routecap_request_open(capturer, nullptr, &request, 1));
    SAME(c.role == ROUTECAP_ROLE_OWNER, request != 0);
    routecap_capturer_destroy(capturer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    configure(in);
    return 0;
}
