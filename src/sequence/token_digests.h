// Digests of a sequence's tokens: each stands for its block of tokens and all before it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "routecap.h"

namespace routecap {

constexpr uint64_t kDigestTokens = ROUTECAP_DIGEST_TOKENS;

// BLAKE2b with 16 bytes over the digest before (zeros before the first) and the block's tokens, 4
// bytes each.
using TokenDigest = std::array<uint8_t, 16>;

// One for each block; the last may be of fewer tokens.
std::vector<TokenDigest> token_digests(std::span<const int32_t> tokens);
constexpr uint64_t digests_of(uint64_t tokens) {
    return (tokens + kDigestTokens - 1) / kDigestTokens;
}

// Number of `tokens`, from the first on, whose digests match: all, or those before the first block
// whose digest differs.
uint64_t common_tokens(std::span<const TokenDigest> digests, std::span<const int32_t> tokens);

}  // namespace routecap
