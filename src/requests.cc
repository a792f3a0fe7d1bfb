#include "requests.h"

namespace routecap {

// A handle is the generation in the upper 32 bits and one plus the index in the lower. Generations start at the capturer's nonce, so that another
// capturer's handles are not taken for ours.

bool Requests::reserve(size_t count) {
    while (free_.size() < count) {
        const auto first = static_cast<uint32_t>(chunks_.size() * kChunk);
        if (first >= max_requests_) return false;
        chunks_.emplace_back(new Request[kChunk]);
        const uint32_t end = std::min(first + kChunk, max_requests_);
        free_.reserve(end);
        for (uint32_t i = end; i-- > first;) {
            at(i).generation = nonce_;
            free_.push_back(i);
        }
    }
    return true;
}

routecap_request Requests::open(std::shared_ptr<RowStore> rows, RowStore::Policy policy) {
    const uint32_t index = free_.back();
    free_.pop_back();
    Request &r = at(index);
    r.open = true;
    r.rows = std::move(rows);
    r.policy = policy;
    return static_cast<uint64_t>(r.generation) << 32 | (index + 1);
}

Request *Requests::find(routecap_request handle) {
    const auto index = static_cast<uint32_t>(handle) - 1;
    if (index / kChunk >= chunks_.size()) return nullptr;
    Request &r = at(index);
    return r.open && r.generation == handle >> 32 ? &r : nullptr;
}

void Requests::close(routecap_request handle) {
    Request &r = *find(handle);
    std::vector<DraftSpan> drafts = std::move(r.drafts);  // keeps its memory
    drafts.clear();
    const uint32_t generation = r.generation + 1;
    r = Request();
    r.generation = generation;
    r.drafts = std::move(drafts);
    free_.push_back(static_cast<uint32_t>(handle) - 1);
}

}  // namespace routecap
