#include "prefix/store.h"

#include <ctime>

#include "base/log.h"
#include "base/status.h"
#include "base/structs.h"

namespace routecap {

int32_t read_store_config(const routecap_store_config *config, const routecap_config *shape,
                          StoreConfig &out) {
    routecap_store_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    routecap_config of;
    if (int32_t s = read_struct(of, shape, "shape"); s < 0) return s;
    const ShapeSource source{of.layers,          of.k,         of.experts,
                             of.id_space,        of.layer_map, of.layer_experts,
                             of.layer_provenance};
    if (int32_t s = make_shape(source, "shape", out.shape); s < 0) return s;
    if ((c.flags & ~ROUTECAP_STORE_SLOT_KEYS) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.flags is %u", c.flags);
    out.flags = c.flags;
    out.block_rows = c.block_rows != 0 ? c.block_rows : 16;
    out.key_bytes = c.key_bytes != 0 ? c.key_bytes : 32;
    out.budget_bytes = c.budget_bytes != 0 ? c.budget_bytes : uint64_t{1} << 30;
    out.generation = c.generation;
    if (int32_t s =
            check_between("config", "block_rows", out.block_rows, 1, ROUTECAP_MAX_BLOCK_ROWS);
        s < 0)
        return s;
    return check_between("config", "key_bytes", out.key_bytes, ROUTECAP_MIN_KEY_BYTES,
                         ROUTECAP_MAX_KEY_BYTES);
}

int32_t Store::check_generation(uint64_t generation) const {
    const uint64_t at = this->generation();
    if (generation <= at) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_STATE, "generation %llu: the store is at %llu, advance it first",
                  ull(generation), ull(at));
}

void Store::note_key(size_t i, int32_t reason, routecap_adoption &found) const {
    found.found += reason == 0;
    if (found.found == i + 1) found.rows = (i + 1) * config_.block_rows;
    found.evicted += reason == ROUTECAP_MISSING_EVICTED;
    found.stale += reason == ROUTECAP_MISSING_STALE;
    found.not_published += reason == ROUTECAP_MISSING_NOT_PUBLISHED;
}

void Store::note_stale(uint64_t tag, uint64_t generation) {
    stale_tag_.store(tag, std::memory_order_relaxed);
    stale_generation_.store(generation, std::memory_order_relaxed);
    stale_.fetch_add(1, std::memory_order_release);
}

void Store::log_creation() const {
    tell(ROUTECAP_LOG_INFO,
         "store made: blocks of %u rows, keys of %u bytes, %u layers, budget_bytes %llu",
         config_.block_rows, config_.key_bytes, config_.shape->layers, ull(config_.budget_bytes));
}

void Store::tell_refusals() {
    if (!logs(ROUTECAP_LOG_WARNING)) return;
    const auto [refused, mismatched] = refusals();
    const auto second = static_cast<int64_t>(std::time(nullptr));
    // How often since it was told; 0 if it is not to be told now.
    const auto fresh = [second](Told &told, uint64_t times) {
        uint64_t before = told.times.load(std::memory_order_relaxed);
        if (times <= before || told.second.load(std::memory_order_relaxed) == second ||
            !told.times.compare_exchange_strong(before, times, std::memory_order_relaxed))
            return uint64_t{0};
        told.second.store(second, std::memory_order_relaxed);
        return times - before;
    };
    if (const uint64_t blocks = fresh(told_refused_, refused); blocks > 0)
        tell(ROUTECAP_LOG_WARNING, "store: %llu blocks refused, %llu in all; budget_bytes is %llu",
             ull(blocks), ull(refused), ull(config_.budget_bytes));
    if (const uint64_t blocks = fresh(told_mismatched_, mismatched); blocks > 0)
        tell(ROUTECAP_LOG_WARNING, "store: %llu blocks were published again with other ids",
             ull(blocks));
    if (const uint64_t times = fresh(told_stale_, stale_.load(std::memory_order_acquire));
        times > 0)
        tell(ROUTECAP_LOG_WARNING,
             "store: %llu publishes had only rows of older weights: their tag is %llu, and the "
             "store is at generation %llu",
             ull(times), ull(stale_tag_.load(std::memory_order_relaxed)),
             ull(stale_generation_.load(std::memory_order_relaxed)));
}

}  // namespace routecap
