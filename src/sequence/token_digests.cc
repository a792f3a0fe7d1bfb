#include "sequence/token_digests.h"

#include <algorithm>

#include "base/sha256.h"

namespace routecap {
namespace {

TokenDigest next_digest(const TokenDigest &before, std::span<const int32_t> block) {
    Sha256 hash;
    hash.add(before.data(), before.size());
    hash.add(block.data(), block.size_bytes());
    const auto whole = hash.finish();
    TokenDigest digest;
    std::copy_n(whole.begin(), digest.size(), digest.begin());
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
