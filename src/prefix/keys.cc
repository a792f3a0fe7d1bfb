#include "prefix/keys.h"

#include <bit>
#include <cstring>

#include "base/shape.h"
#include "base/status.h"
#include "routecap.h"

#include "third_party/blake2/config.h"

#include "third_party/blake2/blake2.h"

namespace routecap {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

int32_t key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens, size_t count,
                  uint32_t block_rows, uint32_t key_bytes, void *keys, size_t keys_bytes) {
    if (seed == nullptr && seed_bytes > 0) return report(ROUTECAP_ERR_ARGUMENT, "seed is NULL");
    if (int32_t s = check_between("chain", "block_rows", block_rows, 1, ROUTECAP_MAX_BLOCK_ROWS);
        s < 0)
        return s;
    if (int32_t s = check_between("chain", "key_bytes", key_bytes, ROUTECAP_MIN_KEY_BYTES,
                                  ROUTECAP_MAX_KEY_BYTES);
        s < 0)
        return s;
    const size_t blocks = count / block_rows;
    if (blocks == 0) return ROUTECAP_OK;
    if (tokens == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "tokens is NULL");
    if (keys == nullptr && keys_bytes > 0) return report(ROUTECAP_ERR_ARGUMENT, "keys is NULL");
    if (blocks > keys_bytes / key_bytes)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%zu keys of %u bytes do not fit in %zu",
                      blocks, key_bytes, keys_bytes);

    blake2b_param param{};
    param.digest_length = static_cast<uint8_t>(key_bytes);
    param.fanout = param.depth = 1;
    std::memcpy(param.personal, "routecap", 8);
    std::memcpy(param.personal + 8, &block_rows, sizeof block_rows);
    const void *before = seed;
    size_t before_bytes = seed_bytes;
    auto *key = static_cast<uint8_t *>(keys);
    for (size_t b = 0; b < blocks; b++, key += key_bytes) {
        blake2b_state state;
        blake2b_init_param(&state, &param);
        blake2b_update(&state, before, before_bytes);
        blake2b_update(&state, tokens + b * block_rows, size_t{block_rows} * sizeof *tokens);
        blake2b_final(&state, key, key_bytes);
        before = key, before_bytes = key_bytes;
    }
    return ROUTECAP_OK;
}

}  // namespace routecap
