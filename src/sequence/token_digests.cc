#include "sequence/token_digests.h"

#include <algorithm>

#include "third_party/blake2/config.h"

#include "third_party/blake2/blake2.h"

namespace routecap {
namespace {

TokenDigest next_digest(const TokenDigest &before, std::span<const int32_t> block) {
    TokenDigest digest;
    blake2b_state state;
    blake2b_init(&state, digest.size());
    blake2b_update(&state, before.data(), before.size());
    blake2b_update(&state, block.data(), block.size_bytes());
    blake2b_final(&state, digest.data(), digest.size());
    return digest;
}

std::span<const int32_t> block_of(std::span<const int32_t> tokens, uint64_t index) {
    const uint64_t first = index * kDigestTokens;
    return tokens.subspan(first, std::min(kDigestTokens, tokens.size() - first));
}

}  // namespace

std::vector<TokenDigest> token_digests(std::span<const int32_t> tokens) {
    std::vector<TokenDigest> digests;
    digests.reserve(digests_of(tokens.size()));
    TokenDigest digest{};
    for (uint64_t i = 0; i < digests_of(tokens.size()); i++)
        digests.push_back(digest = next_digest(digest, block_of(tokens, i)));
    return digests;
}

uint64_t common_tokens(std::span<const TokenDigest> digests, std::span<const int32_t> tokens) {
    TokenDigest digest{};
    for (uint64_t i = 0; i < digests.size(); i++) {
        digest = next_digest(digest, block_of(tokens, i));
        if (digest != digests[i]) return i * kDigestTokens;
    }
    return tokens.size();
}

}  // namespace routecap
