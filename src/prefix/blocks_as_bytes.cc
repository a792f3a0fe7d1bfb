#include "prefix/blocks_as_bytes.h"

#include <cstddef>
#include <cstring>

#include "base/completion.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "routing/routing.h"
#include "routing/serialized.h"

namespace routecap {
namespace {

constexpr char kMagic[8] = {'R', 'C', 'B', 'L', 'O', 'C', 'K', 'S'};
constexpr uint32_t kVersion = 1;

// Then come the keys, padding to a multiple of 64, and the rows as a serialised routing: those of
// the i-th key from i * block_rows on.
struct Header {
    char magic[8];
    uint32_t version;
    uint32_t flags;  // ROUTECAP_STORE_*
    uint64_t bytes;  // of everything
    uint64_t generation;
    uint64_t blocks;
    uint32_t block_rows;
    uint32_t key_bytes;
    uint32_t check;  // CRC32C of all before the rows, of which these bytes count as 0
    uint32_t reserved;
    uint64_t reserved2;
};
static_assert(sizeof(Header) == 64);

uint64_t rows_at(uint64_t blocks, uint64_t key_bytes) {
    return (sizeof(Header) + blocks * key_bytes + 63) / 64 * 64;
}

uint32_t check_of(const uint8_t *data, uint64_t bytes) {
    return crc32c_without(data, bytes, offsetof(Header, check));
}

}  // namespace

int32_t export_blocks(Store &store, Keys keys, uint64_t generation, void *dst, size_t dst_bytes,
                      uint64_t *needed) {
    const StoreConfig &config = store.config();
    std::vector<size_t> there;
    std::vector<Segment> segments;
    if (int32_t s = store.collect(keys, generation, there, segments); s < 0) return s;
    const auto storage = std::make_shared<const Storage>(
        config.shape, PagePool::unlimited(config.shape), std::make_shared<Completion>());
    const RoutingPtr rows(
        new Routing(storage, 0, there.size() * config.block_rows, std::move(segments)));
    uint64_t row_bytes = 0;
    int32_t status = serialize(*rows, ROUTECAP_SERIALIZE_CHECKED, nullptr, 0, &row_bytes);
    if (status != ROUTECAP_ERR_BUFFER_TOO_SMALL) return status;
    const uint64_t at = rows_at(there.size(), config.key_bytes), bytes = at + row_bytes;
    if (needed != nullptr) *needed = bytes;
    if (dst == nullptr && dst_bytes > 0) return report(ROUTECAP_ERR_ARGUMENT, "dst is NULL");
    if (dst_bytes < bytes)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%llu bytes do not fit in %zu", ull(bytes),
                      dst_bytes);
    auto *to = static_cast<uint8_t *>(dst);
    Header header{.magic = {},
                  .version = kVersion,
                  .flags = config.flags,
                  .bytes = bytes,
                  .generation = generation,
                  .blocks = there.size(),
                  .block_rows = config.block_rows,
                  .key_bytes = config.key_bytes,
                  .check = 0,
                  .reserved = 0,
                  .reserved2 = 0};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    std::memset(to, 0, at);
    std::memcpy(to, &header, sizeof header);
    for (size_t i = 0; i < there.size(); i++)
        std::memcpy(to + sizeof header + i * config.key_bytes, keys[there[i]], config.key_bytes);
    header.check = check_of(to, at);
    std::memcpy(to, &header, sizeof header);
    status = serialize(*rows, ROUTECAP_SERIALIZE_CHECKED, to + at, row_bytes, nullptr);
    if (status < 0) return status;
    if (there.size() == keys.count) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "%zu of %zu blocks are there", there.size(), keys.count);
}

int32_t import_blocks(Store &store, const void *data, size_t bytes, uint64_t *blocks) {
    const StoreConfig &config = store.config();
    if (data == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "data is NULL");
    const auto *from = static_cast<const uint8_t *>(data);
    Header header;
    if (bytes < sizeof header)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes are fewer than a header", bytes);
    std::memcpy(&header, from, sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
        return report(ROUTECAP_ERR_FORMAT, "these are no exported blocks");
    if (header.version != kVersion || header.reserved != 0 || header.reserved2 != 0)
        return report(ROUTECAP_ERR_FORMAT, "version %u; this library reads version %u",
                      header.version, kVersion);
    if (header.bytes != bytes)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes were exported, and %zu are here",
                      ull(header.bytes), bytes);
    if (header.block_rows != config.block_rows || header.key_bytes != config.key_bytes ||
        (header.flags & ROUTECAP_STORE_SLOT_KEYS) != (config.flags & ROUTECAP_STORE_SLOT_KEYS))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "blocks of %u rows with keys of %u bytes, and flags %u", header.block_rows,
                      header.key_bytes, header.flags);
    if (header.blocks > (bytes - sizeof header) / header.key_bytes)
        return report(ROUTECAP_ERR_FORMAT, "%llu keys are more than there are bytes for",
                      ull(header.blocks));
    const uint64_t at = rows_at(header.blocks, header.key_bytes);
    for (uint64_t b = sizeof header + header.blocks * header.key_bytes; b < at; b++)
        if (b >= bytes || from[b] != 0)
            return report(ROUTECAP_ERR_FORMAT, "padding is missing or not 0");
    if (header.check != check_of(from, at))
        return report(ROUTECAP_ERR_FORMAT,
                      "the keys are not what was written: their check differs");
    Routing *read = nullptr;
    if (int32_t s = deserialize(from + at, bytes - at, 0, nullptr, nullptr, &read); s < 0) return s;
    const RoutingPtr rows(read);
    if (!rows->shape().same_rows(*config.shape) || !config.shape->can_hold(rows->shape()))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the blocks are of another model or layer map");
    if (rows->first() != 0 || rows->end() != header.blocks * header.block_rows)
        return report(ROUTECAP_ERR_FORMAT, "%llu blocks do not have rows [%llu,%llu)",
                      ull(header.blocks), ull(rows->first()), ull(rows->end()));
    std::shared_ptr<Publication> publication;
    const Keys keys{from + sizeof header, header.blocks, header.key_bytes};
    if (int32_t s = store.publish(keys, 0, header.generation, nullptr, false, publication); s < 0)
        return s;
    if (publication != nullptr) {
        publication->land(rows->segments());
        store.note_imported(header.blocks);
    }
    if (blocks != nullptr) *blocks = header.blocks;
    return ROUTECAP_OK;
}

}  // namespace routecap
